#include "tools/manyhead/memory_sweep.h"

#include <algorithm>
#include <set>
#include <utility>

#include "manyhead/isa.h"

namespace manyhead::cli {
namespace {

constexpr std::size_t kMostCases = 100'000;
constexpr std::int64_t kDefaultContext = 8192;  // the default of SessionOptions

Status TooMany(std::size_t count) {
  return Status(StatusCode::kInvalidArgument, "the lists make " + std::to_string(count) +
                                                  " combinations; expected up to " +
                                                  std::to_string(kMostCases));
}

Json FlopsJson(const FlopCount& flops) {
  return {{"projections", flops.projections},
          {"scores", flops.scores},
          {"total", flops.total()},
          {"scores_seen", flops.scores_seen},
          {"feed_forward", flops.feed_forward},
          {"logits", flops.logits},
          {"total_seen", flops.total() - flops.scores + flops.scores_seen}};
}

Json HeadJson(const HeadPlan& head, std::int64_t index, std::int64_t group) {
  return {{"kv_head", index},
          {"heads", {index * group, index * group + group - 1}},
          {"kv_type", FormatKvTypes({head.params.k_type, head.params.v_type})},
          {"kv_policy", FormatKvPolicy(head.params.policy)},
          {"parameters", head.parameters},
          {"weight_bytes", head.weight_bytes},
          {"kv_bytes_per_token", head.kv_bytes_per_token},
          {"kv_bytes", head.kv_bytes},
          {"kv_tokens", head.kv_tokens},
          {"decode_kv_tokens", head.decode_kv_tokens},
          {"flops", FlopsJson(head.flops)}};
}

Json LayerJson(const LayerConfig& config, const LayerPlan& layer, std::int64_t index) {
  Json json = {{"layer", index},
               {"num_heads", config.num_heads},
               {"num_kv_heads", config.num_kv_heads},
               {"head_dim", config.head_dim},
               {"head_dim_v", config.head_dim_v},
               {"d_ff", config.ffn_dim},
               {"window", config.window},
               {"parameters", layer.parameters},
               {"projection_parameters", layer.projection_parameters},
               {"weight_bytes", layer.weight_bytes},
               {"kv_bytes_per_token", layer.kv_bytes_per_token},
               {"kv_bytes", layer.kv_bytes},
               {"score_matrix_bytes", layer.score_matrix_bytes},
               {"flops", FlopsJson(layer.flops)},
               {"per_head", Json::array()}};
  for (std::size_t h = 0; h < layer.heads.size(); ++h)
    json["per_head"].push_back(HeadJson(layer.heads[h], static_cast<std::int64_t>(h),
                                        config.num_heads / config.num_kv_heads));
  return json;
}

}  // namespace

namespace {

/// Returns numbers that two combinations have in common only if they are the same model.
std::vector<std::int64_t> SameModel(const ShapeParams& params) {
  const bool whole = params.head_dim == 0 && params.d_model % params.num_heads == 0;
  return {params.d_model,
          params.num_heads,
          params.num_kv_heads == 0 ? params.num_heads : params.num_kv_heads,
          whole ? params.d_model / params.num_heads : params.head_dim,
          params.layers,
          params.ffn_dim,
          params.vocab_size};
}

/// Sets the KV heads of `params` from a list's value. Returns which numbers do not divide, or
/// nothing.
std::string SetKvHeads(std::int64_t value, bool is_group, ShapeParams& params) {
  const std::string heads = std::to_string(params.num_heads) + " heads ";
  params.num_kv_heads = is_group ? params.num_heads / value : value;
  if (is_group && params.num_heads % value != 0)
    return heads + "in groups of " + std::to_string(value);
  if (!is_group && value > 0 && params.num_heads % value != 0)
    return heads + "with " + std::to_string(value) + " key/value heads";
  return {};
}

Result<ModelShape> MakeShape(const SweepFlags& flags, const ShapeParams& params) {
  Result<ModelShape> shape = MakeModelShape(params);
  if (!shape.ok() || flags.weight_mix.empty()) return shape;
  return MixWeightTypes(*std::move(shape), flags.weight_mix);
}

/// Returns `list` without values whose key another value before them has.
template <class T, class Key>
std::vector<T> EachOnce(const std::vector<T>& list, const Key& key) {
  std::set<decltype(key(list.front()))> seen;
  std::vector<T> once;
  for (const T& value : list)
    if (seen.insert(key(value)).second) once.push_back(value);
  return once;
}

}  // namespace

Result<std::vector<std::shared_ptr<const ModelShape>>> MakeShapes(
    const SweepFlags& flags, std::vector<std::string>* left_out) {
  const bool by_group = !flags.groups.empty();
  const std::vector<std::int64_t>& kv_heads = by_group ? flags.groups : flags.kv_heads;
  std::size_t count = 1;
  for (const auto* list : {&flags.d_models, &flags.heads, &kv_heads, &flags.head_dims,
                           &flags.layers, &flags.ffn_dims, &flags.vocabs})
    if ((count *= list->size()) > kMostCases) return TooMany(count);
  std::vector<std::shared_ptr<const ModelShape>> shapes;
  std::set<std::vector<std::int64_t>> seen;
  ShapeParams params = flags.shape;
  for (std::size_t i = 0; i < count; ++i) {
    std::size_t rest = i;
    const auto pick = [&rest](const std::vector<std::int64_t>& list) {
      const std::int64_t value = list[rest % list.size()];
      rest /= list.size();
      return value;
    };
    params.vocab_size = pick(flags.vocabs);
    params.ffn_dim = pick(flags.ffn_dims);
    params.layers = pick(flags.layers);
    params.head_dim = pick(flags.head_dims);
    const std::int64_t of_heads = pick(kv_heads);
    params.num_heads = pick(flags.heads);
    params.d_model = pick(flags.d_models);
    if (flags.ffn_widths > 0) params.ffn_dim = flags.ffn_widths * params.d_model;
    const std::string problem = SetKvHeads(of_heads, by_group, params);
    const bool last = i + 1 == count && shapes.empty();
    if (!problem.empty() && by_group && last)
      return Status(StatusCode::kInvalidArgument, problem + ": not a multiple");
    if (!problem.empty() && !last) {
      left_out->push_back(problem + " are left out: not a multiple");
      continue;
    }
    if (!seen.insert(SameModel(params)).second) continue;
    Result<ModelShape> shape = MakeShape(flags, params);
    if (!shape.ok()) return shape.status();
    shapes.push_back(std::make_shared<const ModelShape>(*std::move(shape)));
  }
  return shapes;
}

Result<std::vector<MemoryCase>> MakeCases(
    const std::vector<std::shared_ptr<const ModelShape>>& shapes, const SweepFlags& flags,
    const MemoryOptions& options) {
  std::size_t count = shapes.size();
  for (const std::size_t size :
       {flags.contexts.size(), flags.batches.size(), flags.kv_types.size(), flags.policies.size()})
    if ((count *= size) > kMostCases) return TooMany(count);
  const auto itself = [](const auto& value) { return value; };
  const auto batches = EachOnce(flags.batches, itself);
  const auto policies = EachOnce(flags.policies, itself);
  const auto types = EachOnce(flags.kv_types, [](KvTypes one) { return FormatKvTypes(one); });
  std::vector<MemoryCase> cases;
  for (const auto& shape : shapes) {
    const auto resolved = [&](std::int64_t context) {
      return context == 0 ? std::min(shape->config.context_length, kDefaultContext) : context;
    };
    for (const std::int64_t context : EachOnce(flags.contexts, resolved))
      for (const std::int64_t batch : batches)
        for (const KvTypes type : types)
          for (const std::string& policy : policies) {
            MemoryCase one{shape, options};
            one.options.session.context = context;
            one.options.session.k_type = type.k;
            one.options.session.v_type = type.v;
            one.options.session.kv_policy = policy;
            one.options.batch = batch;
            cases.push_back(std::move(one));
          }
  }
  return cases;
}

std::string PolicyName(const std::string& policy) {
  if (policy.empty()) return "full";
  return policy.starts_with('{') ? "by head" : policy;
}

namespace {

/// Adds what a decode step reads, and the speed that this allows.
void AddDecode(const MemoryPlan& plan, double bandwidth, Json& json) {
  const auto batch = static_cast<double>(plan.batch);
  const auto bytes = static_cast<double>(plan.decode_weight_bytes + plan.decode_kv_bytes);
  json["decode_weight_bytes"] = plan.decode_weight_bytes;
  json["decode_kv_bytes"] = plan.decode_kv_bytes;
  json["decode_bytes_per_token"] = bytes / batch;
  json["bandwidth_bytes_per_second"] = OrNull(bandwidth);
  json["predicted_tokens_per_second"] = bytes > 0 ? OrNull(batch * bandwidth / bytes) : Json();
}

}  // namespace

Json MemoryJson(const MemoryCase& one, const MemoryPlan& plan, bool per_head, double bandwidth) {
  const ModelConfig& config = one.shape->config;
  const LayerConfig& layer = config.layers.front();
  const SessionOptions& session = plan.session;
  Json json = {{"d_model", config.d_model},
               {"num_heads", layer.num_heads},
               {"num_kv_heads", layer.num_kv_heads},
               {"head_dim", layer.head_dim},
               {"layers", config.layers.size()},
               {"context", session.context},
               {"batch", plan.batch},
               {"kv_type", FormatKvTypes({session.k_type, session.v_type})},
               {"parameters", plan.parameters},
               {"weight_bytes", plan.weight_bytes},
               {"kv_bytes_per_token", plan.kv_bytes_per_token},
               {"kv_bytes", plan.kv_bytes},
               {"scratch_bytes", plan.scratch_bytes},
               {"total_bytes", plan.total_bytes},
               {"flops", FlopsJson(plan.flops)},
               {"decode_flops", FlopsJson(plan.decode_flops)},
               {"projection_parameters", plan.projection_parameters},
               {"score_matrix_bytes", plan.score_matrix_bytes},
               {"kv_table_bytes", plan.kv_table_bytes},
               {"kv_peak_bytes", plan.kv_peak_bytes},
               {"packed_bytes", plan.packed_bytes},
               {"mapped_bytes", plan.mapped_bytes},
               {"vector_bytes", plan.vector_bytes},
               {"tokenizer_bytes", plan.tokenizer_bytes},
               {"process_bytes", plan.process_bytes},
               {"head_dim_v", layer.head_dim_v},
               {"d_ff", layer.ffn_dim},
               {"vocab_size", config.vocab_size},
               {"tied_embeddings", config.tied_embeddings},
               {"architecture", config.architecture},
               {"name", config.name},
               {"chunk", session.chunk},
               {"threads", session.threads},
               {"isa", IsaName(*session.isa)},
               {"weights", one.options.weights == WeightStorage::kMapped ? "mapped" : "packed"},
               {"kv_policy", PolicyName(session.kv_policy)},
               {"warnings", plan.warnings}};
  AddDecode(plan, bandwidth, json);
  if (!per_head) return json;
  json["per_layer"] = Json::array();
  for (std::size_t i = 0; i < plan.layers.size(); ++i)
    json["per_layer"].push_back(
        LayerJson(config.layers[i], plan.layers[i], static_cast<std::int64_t>(i)));
  return json;
}

}  // namespace manyhead::cli
