#pragma once

#include <cstdint>
#include <vector>

#include "manyhead/kv_cache.h"
#include "manyhead/model.h"

namespace manyhead {

/// The options that calibration chooses from for each KV head of one layer.
struct LayerOptions {
  std::vector<KvPolicy> policies;    ///< the first is full
  std::vector<KvHeadParams> params;  ///< every type of keys and of values with every policy
  std::vector<std::size_t> policy;   ///< [params] index of the policy in `policies`
  /// [params] bytes of one sequence, beyond those of a head that is off.
  std::vector<std::int64_t> bytes;
};

/// Returns the policies worth trying in a layer for a context of `tokens` tokens: full; a window as
/// long as the model's own, which changes nothing; with `evict` also windows with sinks and budgets
/// of 1/2 to 1/16 of the tokens, and off.
std::vector<KvPolicy> MakePolicies(const LayerConfig& layer, std::int64_t tokens, bool evict);

/// Lists every type with every policy, and the bytes of each combination.
/// Errors   those of KvCapacityBytes.
Result<LayerOptions> MakeLayerOptions(const LayerConfig& layer, const std::vector<KvType>& types,
                                      std::int64_t tokens, std::int64_t step, bool evict);

}  // namespace manyhead
