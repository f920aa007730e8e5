#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "manyhead/export.h"
#include "manyhead/isa.h"
#include "manyhead/kv_cache.h"
#include "manyhead/model.h"
#include "manyhead/status.h"
#include "manyhead/types.h"

namespace MANYHEAD_API manyhead {

/// Choices and limits of CalibrateKv.
struct CalibrateOptions {
  /// Largest size of the cache in bytes, as KvCapacityBytes counts one sequence of `context` tokens
  /// in steps of `chunk`.
  std::int64_t budget_bytes = 0;
  /// Alternative to budget_bytes, which is then 0: the budget as a share of the bytes that f16 with
  /// every token takes.
  double budget_fraction = 0;
  /// Number of tokens that the budget is for. As many tokens of the text are used, so it must have
  /// at least this many. 0: all tokens of the text, up to the model's context and 8192. At least
  /// 256.
  std::int64_t context = 0;
  std::vector<KvType> types;  ///< types of keys and of values to choose from; empty: all types
  /// Whether heads may also drop tokens; otherwise only tokens that the model's own windows hide
  /// are dropped.
  bool evict = true;
  MathMode math = MathMode::kFast;  ///< arithmetic of the products with weights
  int threads = 0;                  ///< 0 selects the CPUs this process may use
  std::optional<Isa> isa{};         ///< default SelectIsa()
  std::int64_t chunk = 512;         ///< largest number of tokens of one step, at least 1
  std::int64_t probe_tokens = 512;  ///< tokens of the pass that tries one head, at least 64
  /// Called after each step with (tokens evaluated, largest number to evaluate); may be empty.
  std::function<void(std::int64_t, std::int64_t)> on_progress;
  /// When any thread sets it, the search ends after the current step, with the results so far.
  const std::atomic<bool>* cancel = nullptr;
};

/// The size of a cache, and the loss of a text with it.
struct KvLoss {
  std::int64_t bytes = 0;   ///< size of the cache, counted as for the budget
  double mean_nll = 0;      ///< loss of the text, nats per token
  double fit_nll = 0;       ///< loss of the tokens that the choice was based on
  double held_out_nll = 0;  ///< loss of the held-out tokens, which the choice did not use
};

/// The types and policies that CalibrateKv chose, and what they cost.
struct Calibration {
  std::vector<std::vector<KvHeadParams>> heads;  ///< [layer][KV head]; see FormatKvHeads
  std::int64_t context = 0;                      ///< tokens evaluated for each combination
  std::int64_t budget_bytes = 0;                 ///< budget that `heads` keep to
  std::int64_t fit_tokens = 0;                   ///< tokens that the choice was based on
  std::int64_t held_out_tokens = 0;  ///< held-out tokens, which took no part in the choice
  KvLoss before;                     ///< loss with f16 and every token
  KvLoss after;                      ///< loss with `heads`; NaN where not `verified`
  double estimated_rise = 0;         ///< rise of mean_nll that the estimates predict
  bool verified = false;             ///< `after` was measured; false only when `interrupted`
  bool interrupted = false;  ///< true when `cancel` ended the search: better choices may exist
  std::int64_t evaluated_tokens = 0;  ///< tokens evaluated in all passes
  /// Results of each combination that was scored over the whole text, in order; `after` is the one
  /// with the lowest fit_nll.
  std::vector<KvLoss> candidates{};
};

/// Chooses a type and policy for every KV head so that the loss of a text rises least within a
/// budget.
///
/// One pass over the text stores keys and values as f32 and samples queries. From these follows the
/// error that each type and policy causes in each head's attention output. Short passes with one
/// head at int4 measure what such an error costs, as the mean square change of the tokens' log
/// probabilities. The combination within the budget that these estimates rate best is then scored
/// over the whole text, as are combinations that rely less and less on the estimates for evicted
/// tokens; the one with the lowest measured loss is the result. Every third run of 64 tokens is
/// held out: it takes no part in any choice.
///
/// Cost     at most 6 * context + heads * probe_tokens tokens are evaluated, heads being the KV
///          heads of all layers; memory for `context` tokens in f32.
/// Errors   kInvalidArgument, naming the option and both values: a budget below the least that the
///          types and policies reach, a text shorter than the context or than 256 tokens.
///          kUnsupported as Session::Create. kIoError when `cancel` was set before the first
///          result.
Result<Calibration> CalibrateKv(const Model& model, std::span<const TokenId> ids,
                                const CalibrateOptions& options);

}  // namespace manyhead
