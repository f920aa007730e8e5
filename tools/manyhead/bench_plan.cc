#include "tools/manyhead/bench_plan.h"

#include <algorithm>

namespace manyhead::cli {

std::vector<BenchTest> PlanTests(const std::vector<std::int64_t>& prompts,
                                 const std::vector<std::int64_t>& gens,
                                 const std::vector<std::int64_t>& depths,
                                 const std::vector<PromptAndGen>& both) {
  std::vector<BenchTest> tests;
  for (const std::int64_t depth : depths) {
    for (const std::int64_t prompt : prompts)
      if (prompt > 0) tests.push_back({prompt, 0, depth});
    for (const std::int64_t gen : gens)
      if (gen > 0) tests.push_back({0, gen, depth});
    for (const PromptAndGen& one : both) tests.push_back({one.prompt, one.gen, depth});
  }
  return tests;
}

std::string TestName(const BenchTest& test) {
  std::string name;
  if (test.n_prompt > 0) name = "pp" + std::to_string(test.n_prompt);
  if (test.n_gen > 0) name += (name.empty() ? "tg" : "+tg") + std::to_string(test.n_gen);
  if (test.n_depth > 0) name += " @ d" + std::to_string(test.n_depth);
  return name;
}

std::int64_t KvReadBytesPerToken(const ModelConfig& config,
                                 const std::vector<std::vector<KvHeadCost>>& heads,
                                 const BenchTest& test) {
  if (test.n_gen == 0) return 0;
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < config.layers.size(); ++i) {
    const std::int64_t window = config.layers[i].window > 0 ? config.layers[i].window : INT64_MAX;
    for (const KvHeadCost& head : heads[i])
      for (std::int64_t n = 1, length = test.n_depth + test.n_prompt + 1; n <= test.n_gen;
           ++n, ++length)
        bytes += std::min({length, window, head.most_tokens}) * head.bytes_per_token;
  }
  return bytes / test.n_gen;
}

}  // namespace manyhead::cli
