#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "manyhead/status.h"
#include "manyhead/types.h"
#include "runtime/model/decoder.h"
#include "runtime/platform/aligned_buffer.h"

namespace manyhead {

inline constexpr std::int64_t kScoreRows = 32;  ///< rows whose logits are held at once

/// Computes nll[i] = -log p(targets[i]) after row i of the decoder's last step, in nats. `logits`
/// must hold [kScoreRows, vocab].
void ScoreRows(Decoder& decoder, std::span<const TokenId> targets, int threads,
               AlignedBuffer<float>& logits, double* nll) noexcept;

/// Returns an error for losses that are NaN, whose logits are not numbers. `who` begins the
/// message.
Status CheckNll(std::string_view who, std::span<const double> nll);

}  // namespace manyhead
