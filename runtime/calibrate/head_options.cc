#include "runtime/calibrate/head_options.h"

#include "runtime/platform/math.h"

namespace manyhead {
namespace {

constexpr std::int64_t kSinks = 4;        // the number that arXiv:2309.17453 found sufficient
constexpr std::int64_t kWindowUnit = 64;  // windows end where pages usually end
constexpr std::int64_t kParts[] = {2, 4, 8, 16};

Result<std::int64_t> BytesOf(const KvLayerShape& shape, const KvHeadParams& head,
                             std::int64_t tokens, std::int64_t step) {
  KvCacheParams params;
  params.layers = {shape};
  params.heads = {{head}};
  return KvCapacityBytes(params, 1, tokens, step);
}

}  // namespace

std::vector<KvPolicy> MakePolicies(const LayerConfig& layer, std::int64_t tokens, bool evict) {
  std::vector<KvPolicy> policies = {KvPolicy::Full()};
  const bool windowed = layer.window > 0 && layer.window < tokens;
  if (windowed) policies.push_back(KvPolicy::Window(layer.window));
  if (!evict) return policies;
  const std::int64_t seen = windowed ? layer.window : tokens;
  std::int64_t before = seen;
  for (const std::int64_t part : kParts) {
    const std::int64_t recent = RoundUp(tokens / part, kWindowUnit);
    if (recent >= before) continue;
    before = recent;
    // Sinks that the model's own window hides would only cost memory.
    policies.push_back(windowed ? KvPolicy::Window(recent) : KvPolicy::SinkRecent(kSinks, recent));
    policies.push_back(KvPolicy::Budget(recent, recent / 2));
  }
  policies.push_back(KvPolicy::Off());
  return policies;
}

Result<LayerOptions> MakeLayerOptions(const LayerConfig& layer, const std::vector<KvType>& types,
                                      std::int64_t tokens, std::int64_t step, bool evict) {
  LayerOptions options;
  options.policies = MakePolicies(layer, tokens, evict);
  const KvLayerShape shape = {1, layer.head_dim, layer.head_dim_v};
  const Result<std::int64_t> off =
      BytesOf(shape, {KvType::kF16, KvType::kF16, KvPolicy::Off()}, tokens, step);
  if (!off.ok()) return off.status();
  const auto add = [&](const KvHeadParams& head, std::size_t policy) {
    const Result<std::int64_t> bytes = BytesOf(shape, head, tokens, step);
    if (!bytes.ok()) return bytes.status();
    options.params.push_back(head);
    options.policy.push_back(policy);
    options.bytes.push_back(*bytes - *off);
    return Status();
  };
  for (std::size_t p = 0; p < options.policies.size(); ++p) {
    const KvPolicy& policy = options.policies[p];
    if (policy.kind == KvPolicyKind::kOff) {  // a head that is off has no types
      if (Status status = add({types.front(), types.front(), policy}, p); !status.ok())
        return status;
      continue;
    }
    for (const KvType k_type : types)
      for (const KvType v_type : types)
        if (Status status = add({k_type, v_type, policy}, p); !status.ok()) return status;
  }
  return options;
}

}  // namespace manyhead
