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

/// What CalibrateKv may choose from, and how long it may take.
struct CalibrateOptions {
  /// Bytes the cache may take: as KvCapacityBytes counts one sequence of `context` tokens in steps
  /// of `chunk`.
  std::int64_t budget_bytes = 0;
  /// Instead of bytes, with budget_bytes = 0: the share of what f16 and every token take.
  double budget_fraction = 0;
  /// Tokens the budget is for; as many of the text are used, and it has no fewer. 0: the text's, up
  /// to the model's context and 8192. At least 256.
  std::int64_t context = 0;
  std::vector<KvType> types;  ///< of keys, and of values, to choose from; empty: all of them
  /// Heads may also drop tokens. Without it only those that the model's own windows hide are.
  bool evict = true;
  MathMode math = MathMode::kFast;  ///< of the products with weights
  int threads = 0;                  ///< 0 selects the CPUs this process may use
  std::optional<Isa> isa{};         ///< default SelectIsa()
  std::int64_t chunk = 512;         ///< most tokens of one step, at least 1
  std::int64_t probe_tokens = 512;  ///< of the pass that tries one head, at least 64
  /// Called after each step with (tokens evaluated, most tokens to evaluate); may be empty.
  std::function<void(std::int64_t, std::int64_t)> on_progress;
  /// When set by anyone, the search ends after the step it is in, with what it knows.
  const std::atomic<bool>* cancel = nullptr;
};

/// What a cache takes and what a text costs with it.
struct KvLoss {
  std::int64_t bytes = 0;   ///< of the cache, as the budget counts them
  double mean_nll = 0;      ///< nats per token of the text
  double fit_nll = 0;       ///< of the tokens that the choice was made by
  double held_out_nll = 0;  ///< of those it never saw
};

/// What CalibrateKv chose, and what that costs.
struct Calibration {
  std::vector<std::vector<KvHeadParams>> heads;  ///< [layer][KV head]; see FormatKvHeads
  std::int64_t context = 0;                      ///< tokens that were evaluated for each mix
  std::int64_t budget_bytes = 0;                 ///< that `heads` stay within
  std::int64_t fit_tokens = 0;                   ///< the choice was made by
  std::int64_t held_out_tokens = 0;              ///< that took no part in it
  KvLoss before;                                 ///< f16, every token
  KvLoss after;                                  ///< of `heads`; NaN where not `verified`
  double estimated_rise = 0;                     ///< of mean_nll, before anything was verified
  bool verified = false;              ///< `after` was measured; false only when `interrupted`
  bool interrupted = false;           ///< by `cancel`: better heads may exist
  std::int64_t evaluated_tokens = 0;  ///< in all passes
  /// Of each mix that was scored over the whole text, in order; `after` is that of the lowest
  /// fit_nll.
  std::vector<KvLoss> candidates{};
};

/// Types and policies for every KV head that raise the loss of a text least within a budget.
///
/// One pass over the text stores keys and values as f32 and takes sampled queries, from which the
/// error that each type and policy makes in each head's attention output follows. Short passes with
/// one head at int4 say what such an error costs, as the mean square change of the tokens'
/// log probabilities. The cheapest mix within the budget by these estimates is then scored over the
/// whole text, and so are mixes that trust the estimates for evicted tokens less and less; the one
/// with the lowest measured loss is the result. Every third run of 64 tokens is held out: it takes
/// no part in any choice.
///
/// Cost     at most 6 * context + heads * probe_tokens tokens are evaluated, heads being the KV
///          heads of all layers; memory for `context` tokens in f32.
/// Errors   kInvalidArgument, naming the option and both values: a budget below the least that the
///          types and policies reach, a text shorter than the context or 256 tokens. kUnsupported
///          as Session::Create. kIoError when `cancel` was set before anything was known.
Result<Calibration> CalibrateKv(const Model& model, std::span<const TokenId> ids,
                                const CalibrateOptions& options);

}  // namespace manyhead
