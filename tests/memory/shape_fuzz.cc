#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "manyhead/memory.h"
#include "tests/support/fuzz.h"

using manyhead::MemoryPlan;
using manyhead::ModelShape;
using manyhead::Result;

// Any bytes as a config.json: a reason in one line, or a model whose memory can be planned, or is
// refused as too large.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const Result<ModelShape> shape =
      manyhead::ParseModelShape({reinterpret_cast<const char*>(data), size});
  if (!shape.ok()) {
    FuzzCheckMessage(shape.status().message());
    return 0;
  }
  manyhead::MemoryOptions options;
  options.session.threads = 1;
  const Result<MemoryPlan> plan = manyhead::PlanMemory(*shape, options);
  if (!plan.ok()) {
    FuzzCheckMessage(plan.status().message());
    return 0;
  }
  FuzzCheck(plan->parameters > 0 && plan->weight_bytes > 0 && plan->total_bytes > 0);
  FuzzCheck(plan->layers.size() == shape->config.layers.size());
  std::int64_t kv_bytes = 0;
  for (const manyhead::LayerPlan& layer : plan->layers) kv_bytes += layer.kv_bytes;
  FuzzCheck(kv_bytes == plan->kv_bytes);
  return 0;
}

std::vector<std::string> FuzzSeeds() {
  return {
      R"js({"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4,
           "num_key_value_heads": 2, "num_hidden_layers": 2, "intermediate_size": 96,
           "vocab_size": 100, "max_position_embeddings": 128, "torch_dtype": "bfloat16"})js",
      R"js({"model_type": "gemma3_text", "hidden_size": 64, "num_attention_heads": 4, "head_dim": 32,
           "num_key_value_heads": 1, "num_hidden_layers": 7, "intermediate_size": 96,
           "vocab_size": 100, "sliding_window": 16, "sliding_window_pattern": 6})js",
      R"js({"model_type": "mixtral", "hidden_size": 64, "num_attention_heads": 4,
           "num_key_value_heads": 4, "num_hidden_layers": 1, "intermediate_size": 96,
           "vocab_size": 100, "num_local_experts": 4, "num_experts_per_tok": 2})js",
      R"js({"model_type": "gemma3", "text_config": {"model_type": "gemma3_text", "hidden_size": 32,
           "num_attention_heads": 2, "num_key_value_heads": 1, "num_hidden_layers": 1,
           "intermediate_size": 32, "vocab_size": 64}})js"};
}
