#include "tools/manyhead/memory_sweep.h"

#include <utility>

#include "manyhead/isa.h"

namespace manyhead::cli {
namespace {

constexpr std::size_t kMostCases = 100'000;

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
          {"logits", flops.logits}};
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

Result<std::vector<std::shared_ptr<const ModelShape>>> MakeShapes(
    const SweepFlags& flags, std::vector<std::string>* left_out) {
  std::size_t count = 1;
  for (const auto* list : {&flags.d_models, &flags.heads, &flags.kv_heads, &flags.head_dims,
                           &flags.layers, &flags.ffn_dims, &flags.vocabs})
    if ((count *= list->size()) > kMostCases) return TooMany(count);
  std::vector<std::shared_ptr<const ModelShape>> shapes;
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
    params.num_kv_heads = pick(flags.kv_heads);
    params.num_heads = pick(flags.heads);
    params.d_model = pick(flags.d_models);
    if (flags.ffn_widths > 0) params.ffn_dim = flags.ffn_widths * params.d_model;
    const bool last = i + 1 == count && shapes.empty();
    if (params.num_kv_heads > 0 && params.num_heads % params.num_kv_heads != 0 && !last) {
      left_out->push_back(std::to_string(params.num_heads) + " heads with " +
                          std::to_string(params.num_kv_heads) +
                          " key/value heads are left out: not a multiple");
      continue;
    }
    Result<ModelShape> shape = MakeModelShape(params);
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
       {flags.contexts.size(), flags.batches.size(), flags.kv_types.size()})
    if ((count *= size) > kMostCases) return TooMany(count);
  std::vector<MemoryCase> cases;
  for (const auto& shape : shapes)
    for (const std::int64_t context : flags.contexts)
      for (const std::int64_t batch : flags.batches)
        for (const KvTypes types : flags.kv_types) {
          MemoryCase one{shape, options};
          one.options.session.context = context;
          one.options.session.k_type = types.k;
          one.options.session.v_type = types.v;
          one.options.batch = batch;
          cases.push_back(std::move(one));
        }
  return cases;
}

Json MemoryJson(const MemoryCase& one, const MemoryPlan& plan, bool per_head) {
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
               {"warnings", plan.warnings}};
  if (!per_head) return json;
  json["per_layer"] = Json::array();
  for (std::size_t i = 0; i < plan.layers.size(); ++i)
    json["per_layer"].push_back(
        LayerJson(config.layers[i], plan.layers[i], static_cast<std::int64_t>(i)));
  return json;
}

}  // namespace manyhead::cli
