#pragma once

#include <functional>
#include <span>
#include <vector>

#include "manyhead/session.h"
#include "runtime/model/decoder.h"
#include "runtime/platform/aligned_buffer.h"

namespace manyhead {

/// Called with the tokens of each chunk of a prompt when it is done; false ends the prompt there.
using ChunkObserver = std::function<bool(std::int64_t)>;

struct Session::Impl {
  Model model;  // keeps the weights alive
  SessionOptions options;
  KvCache cache;
  SequenceId sequence;
  Decoder decoder;
  AlignedBuffer<float> logits;        // [vocab] after the last token
  AlignedBuffer<float> score_logits;  // [rows, vocab], made by the first Score
  std::vector<TokenId> tokens;        // capacity for the whole context

  std::int64_t length() const noexcept { return static_cast<std::int64_t>(tokens.size()); }
  std::int64_t vocab() const noexcept { return logits.size(); }

  /// `held` tokens stand before `ids`.
  Status CheckIds(std::span<const TokenId> ids, std::int64_t held) const;
  Status AppendChunk(std::span<const TokenId> ids, float* out);
  Status AppendAll(std::span<const TokenId> ids, const ChunkObserver& after_chunk);
  Status Truncate(std::int64_t length);
  Result<bool> Prefill(std::span<const TokenId> prompt, const GenerateOptions& generate,
                       Timings& timings);
  Status Score(std::span<const TokenId> ids, std::span<double> nll);
};

}  // namespace manyhead
