#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "manyhead/kv_cache.h"
#include "manyhead/model.h"
#include "runtime/cache/sequence_cache.h"
#include "runtime/model/decoder.h"

namespace manyhead {

inline constexpr std::size_t kNumKvTypes = 5;

/// Queries at some positions of a text, of every layer: [position][H * D] each.
struct QuerySample {
  std::vector<std::int64_t> positions;  ///< ascending
  std::vector<std::vector<float>> layers;

  /// Up to `count` of `tokens` positions, evenly spread, and room for their queries.
  static QuerySample Make(const ModelConfig& config, std::int64_t tokens, std::int64_t count);
  /// What a QueryTap calls.
  void Take(std::size_t layer, std::int64_t position, std::int64_t rows, const float* query);
};

/// What storing one KV head in another way does to the attention output of its queries: the mean
/// square of the change, over that of the output. Infinite where a number is not finite.
struct HeadErrors {
  std::array<double, kNumKvTypes> k_type{};  ///< of keys as this type, values f32; by KvType
  std::array<double, kNumKvTypes> v_type{};
  std::vector<double> policy;  ///< of the policies it was measured for
};

/// The errors of each KV head of `layer`, whose keys and values `stored` holds as f32, for the
/// sampled queries. A budget is judged as if its scores came from these queries alone.
Result<std::vector<HeadErrors>> MeasureHeadErrors(const ModelConfig& config,
                                                  const SequenceCache& stored, std::size_t layer,
                                                  const QuerySample& sample,
                                                  const std::vector<KvPolicy>& policies,
                                                  const DecoderLimits& limits);

}  // namespace manyhead
