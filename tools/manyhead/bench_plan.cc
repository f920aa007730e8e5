#include "tools/manyhead/bench_plan.h"

#include <algorithm>

namespace manyhead::cli {

std::vector<BenchTest> PlanTests(const std::vector<std::int64_t>& prompts,
                                 const std::vector<std::int64_t>& gens,
                                 const std::vector<std::int64_t>& depths) {
  std::vector<BenchTest> tests;
  for (const std::int64_t depth : depths) {
    for (const std::int64_t prompt : prompts)
      if (prompt > 0) tests.push_back({prompt, 0, depth});
    for (const std::int64_t gen : gens)
      if (gen > 0) tests.push_back({0, gen, depth});
  }
  return tests;
}

std::string TestName(const BenchTest& test) {
  std::string name =
      test.n_prompt > 0 ? "pp" + std::to_string(test.n_prompt) : "tg" + std::to_string(test.n_gen);
  if (test.n_depth > 0) name += " @ d" + std::to_string(test.n_depth);
  return name;
}

std::int64_t KvReadBytesPerToken(const ModelConfig& config,
                                 const std::vector<std::int64_t>& head_bytes_per_token,
                                 const BenchTest& test) {
  if (test.n_gen == 0) return 0;
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < config.layers.size(); ++i) {
    const LayerConfig& layer = config.layers[i];
    std::int64_t tokens = 0;
    for (std::int64_t length = test.n_depth + 1; length <= test.n_depth + test.n_gen; ++length)
      tokens += layer.window > 0 ? std::min(length, layer.window) : length;
    bytes += tokens * layer.num_kv_heads * head_bytes_per_token[i];
  }
  return bytes / test.n_gen;
}

}  // namespace manyhead::cli
