#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "manyhead/ablation.h"
#include "manyhead/export.h"
#include "manyhead/heads.h"
#include "manyhead/isa.h"
#include "manyhead/kinds.h"
#include "manyhead/kv_cache.h"
#include "manyhead/model.h"
#include "manyhead/sampling.h"
#include "manyhead/status.h"
#include "manyhead/step_profile.h"
#include "manyhead/types.h"

namespace MANYHEAD_API manyhead {

/// What a Session is made for.
struct SessionOptions {
  std::int64_t context = 0;  ///< most tokens held; 0 selects the smaller of the model's and 8192
  KvType k_type = KvType::kF16;  ///< of keys, in all heads
  KvType v_type = KvType::kF16;  ///< of values, in all heads
  /// Types and policies of heads, as ParseKvHeads reads them; empty: k_type, v_type and every token
  /// for every head.
  std::string kv_policy{};
  /// Hard cap on the bytes of the cache's pages and tables and of attention's scratch together; 0:
  /// what `context` tokens take. Once reached, calls fail with kOutOfPages.
  std::int64_t kv_budget_bytes = 0;
  /// Bytes beside, under the same cap, in which the beginnings of prompts stay to be reused by
  /// later ones, whatever came between; 0: only the last text's is. See KvCache::StorePrefix.
  std::int64_t prefix_bytes = 0;
  MathMode math = MathMode::kFast;  ///< of products with low-bit weights
  int threads = 0;                  ///< 0 selects the CPUs this process may use
  std::optional<Isa> isa{};         ///< default SelectIsa()
  std::int64_t chunk = 512;         ///< most tokens of one prefill step, at least 1
};

/// Why a generation ended.
enum class StopReason : std::uint8_t {
  kMaxTokens,  ///< max_tokens were generated
  kEndToken,   ///< the model ended the text; its end token is not part of the result
  kStopText,   ///< a stop string appeared; the text ends before it
  kContext,    ///< the context is full
  kCancelled,  ///< `cancel` was set
};

/// "length", "eos", "stop", "context", "cancelled".
const char* StopReasonName(StopReason reason) noexcept;

/// How long a generation goes on, and who hears of it.
struct GenerateOptions {
  std::int64_t max_tokens = 128;  ///< most tokens generated, at least 0
  SamplingParams sampling;        ///< how tokens are drawn
  std::vector<std::string> stop;  ///< non-empty strings
  std::int64_t top_logits = 0;    ///< how many best logits of the last prompt position to report
  /// Called with each piece of text as it is decided (whole characters); may be empty.
  std::function<void(std::string_view)> on_text;
  /// Called after each step of the prompt with (tokens done, tokens in all); may be empty.
  std::function<void(std::int64_t, std::int64_t)> on_prefill;
  /// When set by anyone (a signal handler, another thread), generation ends after the step it is
  /// in.
  const std::atomic<bool>* cancel = nullptr;
};

/// What a generation took.
struct Timings {
  std::int64_t prefill_tokens = 0;         ///< evaluated, without those reused from the cache
  double prefill_seconds = 0;              ///< for the prompt
  std::int64_t decode_tokens = 0;          ///< steps after the prompt
  double decode_seconds = 0;               ///< for these steps and their draws, without on_text
  double time_to_first_token_seconds = 0;  ///< from the call on

  /// Tokens a second; 0 when nothing was timed.
  double prefill_rate() const noexcept { return Rate(prefill_tokens, prefill_seconds); }
  /// Tokens a second; 0 when nothing was timed.
  double decode_rate() const noexcept { return Rate(decode_tokens, decode_seconds); }

 private:
  static double Rate(std::int64_t tokens, double seconds) noexcept {
    return seconds > 0 ? static_cast<double>(tokens) / seconds : 0;
  }
};

/// What was generated.
struct GenerateResult {
  std::vector<TokenId> ids;                           ///< without the end token
  std::string text;                                   ///< of `ids`, up to a stop string
  StopReason stop_reason = StopReason::kMaxTokens;    ///< why there is no more
  Timings timings;                                    ///< what it took
  std::vector<std::pair<TokenId, float>> top_logits;  ///< best first; equal logits by id
};

/// What Session::Restore accepts.
struct SessionRestoreOptions {
  /// Keys and values may have been saved in other types than this session's; see KvRestoreOptions.
  bool convert_types = false;
};

/// What becomes of the tokens that a session holds when its ablation changes.
enum class HeldTokens : std::uint8_t {
  kReevaluate,  ///< evaluated anew: the session is as if it had had the ablation from the start
  kKeep,        ///< they stay as they were evaluated, and the change begins with the next token
  kDrop,        ///< the session is empty then
};

class Generation;

/// One sequence of a model: its tokens, their keys and values, and the buffers to extend it.
///
/// Threads  one call at a time; a call runs on `threads` threads. Nothing is allocated for a token
/// once the
///          first has been decoded. Results are bitwise equal for every thread count.
class Session {
 public:
  /// Errors   kInvalidArgument or kUnsupported naming the option and both values.
  ///          Throws bad_alloc when the buffers for `chunk` tokens or `context` cannot be had.
  static Result<Session> Create(const Model& model, const SessionOptions& options);
  Session(Session&&) noexcept;
  Session& operator=(Session&&) noexcept;
  ~Session();

  /// Appends `ids` (at least one) and returns the logits [vocab_size] after the last of them, which
  /// stay valid until the next call. `role` is what they are evaluated as; by default one token
  /// decodes, and more are a prompt. Several tokens that decode give each the bits of a step of its
  /// own, so drafts are verified in this role; a prompt gives the same bits however it is cut.
  ///
  /// Errors   kInvalidArgument for an id outside the vocabulary, kOutOfPages when the context does
  ///          not suffice; the session is then unchanged.
  Result<std::span<const float>> Append(std::span<const TokenId> ids,
                                        std::optional<RowRole> role = {});

  /// Appends `ids` as a prompt and gives nll[i] = -log p(ids[i + 1] | all before), i in [0,
  /// ids.size() - 1), in nats. Errors   as Append, and kInvalidArgument when a logit is NaN; the
  /// session is then unchanged.
  Status Score(std::span<const TokenId> ids, std::span<double> nll);

  /// Keeps the first `length` tokens. Where policies have evicted what these would still hold, the
  /// session goes back further and evaluates the tokens between anew, each in the role it had.
  Status Truncate(std::int64_t length);

  /// Continues `prompt`, which stands for the whole sequence: what the session already holds of its
  /// beginning as a prompt, or has kept of other prompts (prefix_bytes), is reused, the rest
  /// dropped. At least the last prompt token is evaluated anew, unless the session holds just the
  /// prompt and its logits: it then goes on from there.
  ///
  /// Tokens that were decoded are evaluated anew as part of the prompt, unless both roles take the
  /// same products (packed low-bit weights, but on AMX), or policies have evicted what the token
  /// before them needs: they then stay as they are.
  ///
  /// Accuracy the bits are those of a session that has held nothing before, for every `chunk`,
  ///          unless decoded tokens stayed as they are, or a head has a budget.
  /// Errors   as Append; kInvalidArgument for an option out of range, or for logits that hold NaN,
  ///          when the session then holds the prompt and what was generated before.
  Result<GenerateResult> Generate(std::span<const TokenId> prompt, const GenerateOptions& options);

  /// Generate in steps, for callers that do something else between two tokens. The session outlives
  /// the result, and serves nothing else until that has ended or is dropped.
  Result<Generation> Begin(std::span<const TokenId> prompt, const GenerateOptions& options);

  /// Writes the session to a file: tokens, keys and values, what policies remember, the logits
  /// after the last token if they are known, and next_seed(). See KvCache::Save for how.
  ///
  /// Not in it: the options, other than what heads keep and how; a Generation under way, whose last
  /// token, drawn but not evaluated yet, can be appended before.
  Status Save(const std::string& path) const;

  /// Makes the session what it was when it was saved: what follows gives the same bits as if it had
  /// never stopped, given the same math, instruction set and chunk. context and kv_budget_bytes may
  /// be others, if what was saved fits. What was kept of other prompts (prefix_bytes) goes.
  /// Memory   while it is read, that of the text held before as well; each within the cap.
  /// Errors   as KvCache::Restore, kInvalidArgument for another model too; the session is then
  ///          unchanged.
  Status Restore(const std::string& path, const SessionRestoreOptions& options = {});

  /// Changes what heads give in every step from now on, in place of the ablation before; an empty
  /// one restores the model. KV heads that nobody reads give their memory back at once, and are
  /// neither computed nor stored.
  ///
  /// With kKeep no such head can come back while tokens are held, whose keys it lacks. What was
  /// kept of other prompts (prefix_bytes) is not reused under another ablation. Save writes a
  /// session with its ablation's mark: Restore refuses it under another.
  ///
  /// Memory   with kReevaluate, the cache of the text held before as well, until it is done.
  /// Errors   as CheckAblation; kInvalidArgument naming the KV head that cannot come back;
  ///          kOutOfPages where the cap on the cache has no room for it. The session is then
  ///          unchanged.
  Status SetAblation(const Ablation& ablation, HeldTokens held = HeldTokens::kReevaluate);
  /// Of the present edits.
  const Ablation& ablation() const noexcept;

  /// Adds where the time of each step goes to `*profile` from now on; null, as at first, measures
  /// nothing and costs nothing. `*profile` outlives the session or the next call.
  void SetProfile(StepProfile* profile);

  /// Which products a step takes, in the order of the phases. A sequence's first token takes f32
  /// activations in place of int8.
  std::vector<ProductPath> ProductPaths() const;

  /// Hands the attention weights of chosen heads and rows to options->on_row from now on, of
  /// prompts and decoded tokens alike, once for each time a token is evaluated; null, as at first,
  /// costs nothing. They are recomputed beside the usual kernels, so results keep their bits.
  /// Errors   kInvalidArgument naming the head, position or option and what is expected; what was
  ///          set before stays. Throws bad_alloc: memory for at least a position's rows is taken.
  Status SetCapture(const CaptureOptions* options);

  /// Collects in `*profile`, which is emptied, what every head does from now on; null, as at first,
  /// costs nothing. `*profile` outlives the session or the next call. See HeadProfile.
  /// Cost     4 H Dv^2 bytes and 2 d H Dv^2 flops for each layer, once; then some per cent of a
  /// step. Errors   kInvalidArgument naming the option; what was set before stays. Throws
  /// bad_alloc.
  Status SetHeadProfile(HeadProfile* profile, const HeadProfileOptions& options = {});

  /// Tokens held.
  std::int64_t length() const noexcept;
  /// Their ids, valid until the next call.
  std::span<const TokenId> tokens() const noexcept;
  /// [vocab_size] after the last token, valid until the next call; empty where they are not known.
  std::span<const float> logits() const noexcept;
  /// SamplingParams::seed with which a generation goes on with the random numbers of the last one.
  std::uint64_t next_seed() const noexcept;
  /// Most tokens it can hold.
  std::int64_t context() const noexcept;
  /// That a call runs on.
  int threads() const noexcept;
  /// Of its kernels.
  Isa isa() const noexcept;
  /// With the defaults filled in.
  const SessionOptions& options() const noexcept;
  /// Its keys and values, for reports.
  const KvCache& cache() const noexcept;
  /// Bytes of activations and scratch, without weights and cache.
  std::int64_t scratch_bytes() const noexcept;

 private:
  friend class Generation;
  struct Impl;
  explicit Session(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

/// A text in the making; see Session::Begin.
class Generation {
 public:
  Generation(Generation&&) noexcept;
  Generation& operator=(Generation&&) noexcept;
  ~Generation();

  /// Draws one token more; the first step evaluates the prompt before. False once the text has
  /// ended. Errors   as Session::Generate; the generation has then ended.
  Result<bool> Step();
  /// What there is so far; all of it once Step has returned false.
  const GenerateResult& result() const noexcept;

 private:
  friend class Session;
  struct Impl;
  explicit Generation(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

}  // namespace manyhead
