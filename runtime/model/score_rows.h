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

/// nll[i] = -log p(targets[i]) after row i of the decoder's last step, in nats. `logits` has room
/// for [kScoreRows, vocab].
void ScoreRows(Decoder& decoder, std::span<const TokenId> targets, int threads,
               AlignedBuffer<float>& logits, double* nll) noexcept;

/// Refuses losses that are NaN: the logits behind them are no numbers. `who` begins the message.
Status CheckNll(std::string_view who, std::span<const double> nll);

}  // namespace manyhead
