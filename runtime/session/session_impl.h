#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "manyhead/session.h"
#include "runtime/heads/ablate/ablation_impl.h"
#include "runtime/heads/observe/head_observer.h"
#include "runtime/model/decoder.h"
#include "runtime/platform/aligned_buffer.h"

namespace manyhead {

/// Called with the number of tokens of each prefill chunk when it is done; false ends the prompt
/// there.
using ChunkObserver = std::function<bool(std::int64_t)>;

/// Fills in the defaults of `options` and checks the other values.
Status CompleteSessionOptions(const ModelConfig& config, SessionOptions& options);
/// Returns the parameters of a session's cache, without its capacity.
Result<KvCacheParams> SessionCacheParams(const ModelConfig& config, const SessionOptions& options);

struct Session::Impl {
  Model model;  // keeps the weights alive
  SessionOptions options;
  KvCache cache;
  SequenceId sequence;
  Decoder decoder;
  AlignedBuffer<float> logits;        // [vocab] after the last token
  AlignedBuffer<float> score_logits;  // [rows, vocab], allocated by the first Score
  std::vector<TokenId> tokens;        // capacity for the whole context
  // Length at which `logits` were computed; -1: not for these tokens.
  std::int64_t logits_length = -1;
  std::vector<RowRole> roles{};  // role of each token; has the same capacity
  std::int64_t as_prompt = 0;  // number of first tokens with the bits of a prompt; see AppendChunk
  std::uint64_t next_seed = 0;
  HeadObserver observer{};         // observes every step while it is not idle
  std::vector<HeadEdits> edits{};  // [layer] edits of every step, or none
  KvCacheParams cache_params{};    // parameters of a cache for the whole model
  Ablation ablation{};
  std::string ablation_key{};  // AblationKey
  bool mixed = false;          // tokens were evaluated under another ablation

  std::int64_t length() const noexcept { return static_cast<std::int64_t>(tokens.size()); }
  std::int64_t vocab() const noexcept { return logits.size(); }

  bool HasLogits() const noexcept { return logits_length == length() && length() > 0; }

  /// Checks `ids`, which `held` tokens precede.
  Status CheckIds(std::span<const TokenId> ids, std::int64_t held) const;
  Status AppendChunk(std::span<const TokenId> ids, RowRole role, float* out);
  Status AppendAll(std::span<const TokenId> ids, RowRole role, const ChunkObserver& after_chunk);
  /// Appends tokens that were held before, each in the role it had.
  Status AppendAgain(std::span<const TokenId> ids, std::span<const RowRole> ids_roles);
  Status Truncate(std::int64_t length);
  Status Cut(std::int64_t length);
  Result<std::int64_t> Reusable(std::span<const TokenId> prompt) const;
  Status TakePrefix(std::span<const TokenId> prompt);
  void KeepPrefix();
  Result<bool> Prefill(std::span<const TokenId> prompt, const GenerateOptions& generate,
                       Timings& timings);
  Status Score(std::span<const TokenId> ids, std::span<double> nll);
  Status AppendLogits(std::span<const TokenId> ids, RowRole role, std::span<float> rows);
  Status SetAblation(const Ablation& wanted, HeldTokens held);
  void SetEdits(std::vector<HeadEdits> wanted);
  Status Keep(const Ablation& wanted, const KvHeads& heads);
  Status CheckKept(const KvHeads& heads) const;
  Status StartAnew(const Ablation& wanted, const KvHeads& heads, bool evaluate);
  /// Returns the fingerprint of the model and its ablation.
  std::string Fingerprint() const;
  Status Save(const std::string& path) const;
  Status Restore(const std::string& path, const SessionRestoreOptions& restore);
};

}  // namespace manyhead
