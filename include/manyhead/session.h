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

/// Limits and options of a Session.
struct SessionOptions {
  /// Most tokens held; 0 selects the smaller of the model's context and 8192.
  std::int64_t context = 0;
  KvType k_type = KvType::kF16;  ///< type of keys in all heads
  KvType v_type = KvType::kF16;  ///< type of values in all heads
  /// Types and policies of heads, as ParseKvHeads reads them; empty: k_type, v_type and every token
  /// for every head.
  std::string kv_policy{};
  /// Hard cap on the bytes of the cache's pages and tables and of attention's scratch together; 0:
  /// the bytes that `context` tokens need. Once it is reached, calls fail with kOutOfPages.
  std::int64_t kv_budget_bytes = 0;
  /// Additional bytes, under the same cap, for cached prefixes, which later prompts with the same
  /// beginning reuse; 0: only the tokens that the session holds are reused. See
  /// KvCache::StorePrefix.
  std::int64_t prefix_bytes = 0;
  MathMode math = MathMode::kFast;  ///< arithmetic of products with low-bit weights
  int threads = 0;                  ///< 0 selects the CPUs this process may use
  std::optional<Isa> isa{};         ///< default SelectIsa()
  std::int64_t chunk = 512;         ///< most tokens of one prefill chunk, at least 1
};

/// Why a generation ended.
enum class StopReason : std::uint8_t {
  kMaxTokens,  ///< max_tokens were generated
  kEndToken,   ///< the model ended the text; its end token is not part of the result
  kStopText,   ///< a stop string appeared; the text ends before it
  kContext,    ///< the context is full
  kCancelled,  ///< `cancel` was set
};

/// Returns "length", "eos", "stop", "context" or "cancelled".
const char* StopReasonName(StopReason reason) noexcept;

/// Says how long a generation continues, and which functions it calls.
struct GenerateOptions {
  std::int64_t max_tokens = 128;  ///< most tokens generated, at least 0
  SamplingParams sampling;        ///< selection of tokens
  std::vector<std::string> stop;  ///< non-empty strings that end the generation
  std::int64_t top_logits = 0;    ///< number of best logits of the last prompt position to report
  /// Called with each piece of text once it is final (whole characters); may be empty.
  std::function<void(std::string_view)> on_text;
  /// Called after each prefill chunk with (tokens done, tokens in total); may be empty.
  std::function<void(std::int64_t, std::int64_t)> on_prefill;
  /// When it is set (by a signal handler, another thread), generation ends after the current step.
  const std::atomic<bool>* cancel = nullptr;
};

/// Token counts and times of a generation.
struct Timings {
  std::int64_t prefill_tokens = 0;  ///< tokens evaluated, without those reused from the cache
  double prefill_seconds = 0;       ///< time for the prompt
  std::int64_t decode_tokens = 0;   ///< decode steps after the prompt
  double decode_seconds = 0;        ///< time for these steps and for sampling, without on_text
  double time_to_first_token_seconds = 0;  ///< time since the call

  /// Tokens per second; 0 when nothing was timed.
  double prefill_rate() const noexcept { return Rate(prefill_tokens, prefill_seconds); }
  /// Tokens per second; 0 when nothing was timed.
  double decode_rate() const noexcept { return Rate(decode_tokens, decode_seconds); }

 private:
  static double Rate(std::int64_t tokens, double seconds) noexcept {
    return seconds > 0 ? static_cast<double>(tokens) / seconds : 0;
  }
};

/// The result of a generation.
struct GenerateResult {
  std::vector<TokenId> ids;                           ///< generated ids, without the end token
  std::string text;                                   ///< text of `ids`, up to a stop string
  StopReason stop_reason = StopReason::kMaxTokens;    ///< reason why the generation ended
  Timings timings;                                    ///< token counts and times
  std::vector<std::pair<TokenId, float>> top_logits;  ///< best first; equal logits by id
};

/// Says which snapshots Session::Restore accepts.
struct SessionRestoreOptions {
  /// Whether keys and values may have other types in the snapshot than in this session; see
  /// KvRestoreOptions.
  bool convert_types = false;
};

/// Says what happens to the tokens that a session holds when its ablation changes.
enum class HeldTokens : std::uint8_t {
  kReevaluate,  ///< evaluated again: the session is as if it had had the ablation from the start
  kKeep,        ///< kept as they were evaluated; the change begins with the next token
  kDrop,        ///< dropped: the session is then empty
};

class Generation;

/// One sequence of a model: its tokens, their keys and values, and the buffers that extend it.
///
/// Threads  one call at a time; a call runs on `threads` threads. Results are bitwise equal for
///          every thread count.
/// Memory   nothing is allocated for a token once the first one has been decoded.
class Session {
 public:
  /// Creates an empty session.
  /// Errors   kInvalidArgument or kUnsupported naming the option and both values. Throws bad_alloc
  ///          when the buffers for `chunk` tokens or `context` cannot be allocated.
  static Result<Session> Create(const Model& model, const SessionOptions& options);
  Session(Session&&) noexcept;
  Session& operator=(Session&&) noexcept;
  ~Session();

  /// Appends `ids` (at least one) and returns the logits [vocab_size] after the last of them, which
  /// stay valid until the next call. `role` says how they are evaluated; by default one token is a
  /// decode step, and more are a prompt. Several tokens with the role decode get the same bits as
  /// in decode steps of their own, so drafts are verified in this role; a prompt gives the same
  /// bits however it is divided.
  ///
  /// Errors   kInvalidArgument for an id outside the vocabulary, kOutOfPages when the context does
  ///          not suffice; the session is then unchanged.
  Result<std::span<const float>> Append(std::span<const TokenId> ids,
                                        std::optional<RowRole> role = {});

  /// Appends `ids` and writes the logits after each of them, [ids, vocab_size]; the rows are those
  /// that Append would give one after the other.
  ///
  /// Errors   as Append, and kInvalidArgument for another size of `logits`; the session is then
  ///          unchanged.
  Status AppendLogits(std::span<const TokenId> ids, std::span<float> logits,
                      std::optional<RowRole> role = {});

  /// Appends `ids` as a prompt and writes nll[i] = -log p(ids[i + 1] | all before), i in [0,
  /// ids.size() - 1), in nats.
  /// Errors   as Append, and kInvalidArgument when a logit is NaN; the session is then unchanged.
  Status Score(std::span<const TokenId> ids, std::span<double> nll);

  /// Keeps the first `length` tokens. Where policies have evicted tokens that these would still
  /// hold, the session goes back further and evaluates the tokens between again, each in the role
  /// it had.
  Status Truncate(std::int64_t length);

  /// Continues `prompt`, which is the whole sequence: tokens at its beginning that the session
  /// already holds as a prompt, or as a cached prefix (prefix_bytes), are reused, all others are
  /// dropped. At least the last prompt token is evaluated again, unless the session holds exactly
  /// the prompt and its logits: generation then continues from there.
  ///
  /// Tokens that were decoded are evaluated again as part of the prompt, unless both roles use the
  /// same products (packed low-bit weights, except on AMX), or policies have evicted what the token
  /// before them needs: they are then kept.
  ///
  /// Accuracy the bits are those of a session that has held nothing before, for every `chunk`,
  ///          unless decoded tokens were kept, or a head has a budget.
  /// Errors   as Append; kInvalidArgument for an option out of range, or for logits that hold NaN,
  ///          after which the session holds the prompt and the tokens generated before.
  Result<GenerateResult> Generate(std::span<const TokenId> prompt, const GenerateOptions& options);

  /// Begins a generation that proceeds step by step, for callers that do something else between two
  /// tokens. The session must outlive the result, and accepts no other call until the generation
  /// has ended or is destroyed.
  Result<Generation> Begin(std::span<const TokenId> prompt, const GenerateOptions& options);

  /// Writes the session to a file: tokens, keys and values, the state of policies, the logits after
  /// the last token if they are known, and next_seed(). KvCache::Save says how files are written.
  ///
  /// The file holds neither options, other than types and policies of heads, nor a Generation in
  /// progress, whose last token, drawn but not evaluated yet, can be appended before.
  Status Save(const std::string& path) const;

  /// Restores a saved session: later steps give the same bits as if it had never stopped, given the
  /// same math, instruction set and chunk. context and kv_budget_bytes may differ, if the saved
  /// tokens fit. Cached prefixes (prefix_bytes) are dropped.
  ///
  /// Memory   during the call the previous sequence is held as well; each is within the cap.
  /// Errors   as KvCache::Restore, kInvalidArgument for another model too; the session is then
  ///          unchanged.
  Status Restore(const std::string& path, const SessionRestoreOptions& options = {});

  /// Changes the outputs of heads in every step from now on, in place of the previous ablation; an
  /// empty one restores the model. KV heads that no query reads release their memory at once, and
  /// are neither computed nor stored.
  ///
  /// With kKeep such a head cannot be switched on again while tokens are held whose keys it lacks.
  /// Cached prefixes (prefix_bytes) are not reused under another ablation. Save writes a
  /// fingerprint of the ablation: Restore refuses the file under another one.
  ///
  /// Memory   with kReevaluate, the cache of the previous sequence is held as well until the call
  ///          ends.
  /// Errors   as CheckAblation; kInvalidArgument naming the KV head that cannot be switched on
  ///          again; kOutOfPages where the cap on the cache has no room for it. The session is then
  ///          unchanged.
  Status SetAblation(const Ablation& ablation, HeldTokens held = HeldTokens::kReevaluate);
  /// The current ablation.
  const Ablation& ablation() const noexcept;

  /// Adds the time of each part of a step to `*profile` from now on; null, the default, measures
  /// nothing and costs nothing. `*profile` must outlive the session or the next SetProfile.
  void SetProfile(StepProfile* profile);

  /// Returns the products that a step uses, in the order of the phases. The tokens that
  /// MathMode::kFast names use two int8 numbers for each activation, or f32, in place of int8.
  std::vector<ProductPath> ProductPaths() const;

  /// Passes the attention weights of chosen heads and rows to options->on_row from now on, of
  /// prompts and decoded tokens alike, once for each time a token is evaluated; null, the default,
  /// costs nothing. The weights are recomputed besides the usual kernels, so results keep their
  /// bits.
  /// Errors   kInvalidArgument naming the head, position or option and what is expected; the
  ///          previous setting stays. Throws bad_alloc: memory for at least a position's rows is
  ///          allocated.
  Status SetCapture(const CaptureOptions* options);

  /// Collects measurements of every head in `*profile`, which is emptied, from now on; null, the
  /// default, costs nothing. `*profile` must outlive the session or the next SetHeadProfile.
  /// See HeadProfile.
  /// Cost     4 H Dv^2 bytes and 2 d H Dv^2 flops for each layer, once; then some per cent of a
  ///          step.
  /// Errors   kInvalidArgument naming the option; the previous setting stays. Throws bad_alloc.
  Status SetHeadProfile(HeadProfile* profile, const HeadProfileOptions& options = {});

  /// Number of tokens held.
  std::int64_t length() const noexcept;
  /// The ids of these tokens, valid until the next call.
  std::span<const TokenId> tokens() const noexcept;
  /// The logits [vocab_size] after the last token, valid until the next call; empty where not
  /// known.
  std::span<const float> logits() const noexcept;
  /// The SamplingParams::seed with which a generation continues the random numbers of the last one.
  std::uint64_t next_seed() const noexcept;
  /// The largest number of tokens that the session can hold.
  std::int64_t context() const noexcept;
  /// The number of threads that a call runs on.
  int threads() const noexcept;
  /// The instruction set of its kernels.
  Isa isa() const noexcept;
  /// The options, with the defaults filled in.
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

/// A generation in progress; see Session::Begin.
class Generation {
 public:
  Generation(Generation&&) noexcept;
  Generation& operator=(Generation&&) noexcept;
  ~Generation();

  /// Draws one more token; the first step evaluates the prompt before. Returns false once the
  /// generation has ended.
  /// Errors   as Session::Generate; the generation has then ended.
  Result<bool> Step();
  /// The result so far; it is complete once Step has returned false.
  const GenerateResult& result() const noexcept;

 private:
  friend class Session;
  struct Impl;
  explicit Generation(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

}  // namespace manyhead
