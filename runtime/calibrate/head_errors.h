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

/// Queries of every layer at some positions of a text: [position][H * D] each.
struct QuerySample {
  std::vector<std::int64_t> positions;  ///< ascending
  std::vector<std::vector<float>> layers;

  /// Chooses up to `count` of `tokens` positions, evenly spread, and allocates room for their
  /// queries.
  static QuerySample Make(const ModelConfig& config, std::int64_t tokens, std::int64_t count);
  /// Stores the queries at the chosen positions; called as a QueryTap.
  void Take(std::size_t layer, std::int64_t position, std::int64_t rows, const float* query);
};

/// The error that another storage of one KV head causes in the attention output of its queries: the
/// mean square of the change, over that of the output. It is infinite where a number is not finite.
struct HeadErrors {
  /// [KvType] error of keys of this type, with values in f32.
  std::array<double, kNumKvTypes> k_type{};
  std::array<double, kNumKvTypes> v_type{};
  std::vector<double> policy;  ///< errors of the policies that were measured
};

/// Measures the errors of each KV head of `layer` for the sampled queries; `stored` holds its keys
/// and values as f32. A budget is judged as if its scores came from these queries alone.
Result<std::vector<HeadErrors>> MeasureHeadErrors(const ModelConfig& config,
                                                  const SequenceCache& stored, std::size_t layer,
                                                  const QuerySample& sample,
                                                  const std::vector<KvPolicy>& policies,
                                                  const DecoderLimits& limits);

}  // namespace manyhead
