#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "manyhead/ablation.h"
#include "tests/support/fuzz.h"

using manyhead::Ablation;
using manyhead::ModelConfig;
using manyhead::Result;

namespace {

ModelConfig Config() {
  ModelConfig config;
  for (const auto& [heads, kv_heads] : {std::pair{4, 2}, {3, 1}, {2, 2}, {12, 4}}) {
    config.layers.emplace_back();
    config.layers.back().num_heads = heads;
    config.layers.back().num_kv_heads = kv_heads;
    config.layers.back().head_dim = config.layers.back().head_dim_v = 2;
  }
  return config;
}

}  // namespace

// Any bytes as an ablation: a reason in one line, or changes that the model can take, and that
// written out are read back as the same.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const ModelConfig config = Config();
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  Result<Ablation> ablation = manyhead::ParseAblation(text, config);
  if (!ablation.ok()) {
    FuzzCheckMessage(ablation.status().message());
    return 0;
  }
  const Result<Ablation> again =
      manyhead::ParseAblation(manyhead::FormatAblation(*ablation), config);
  FuzzCheck(again.ok() && again->edits == ablation->edits);
  if (manyhead::NeedsMeans(*ablation))
    for (const manyhead::LayerConfig& layer : config.layers)
      ablation->means.emplace_back(layer.num_heads * layer.head_dim_v);
  FuzzCheck(manyhead::CheckAblation(config, *ablation).ok());
  FuzzCheck(manyhead::UnreadKvHeads(config, *ablation).size() == config.layers.size());
  return 0;
}

std::vector<std::string> FuzzSeeds() {
  return {
      "3.1",
      "3.1,1.*=0.5",
      "0-2.0-1=mean",
      "0.k1,2.k0=keep",
      "1.2=keep,3.1-4=-1e-3,0.0=zero",
      R"js([{"layers": [3, "0-1"], "heads": [1], "edit": 0.5}, {"layers": [2], "kv_heads": [0]}])js",
      R"js([{"heads": [0], "edit": "keep"}, {"layers": ["3"], "heads": ["1-2"], "edit": "mean"}])js",
      R"js([{"layers": [[[7]]], "edit": {"a": [1.5e300, null, "é"]}}])js"};
}
