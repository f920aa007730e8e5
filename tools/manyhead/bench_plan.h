#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "manyhead/model.h"

namespace manyhead::cli {

/// One row of a benchmark, after `depth` tokens: the prompt's prefill, the decoding of tokens, or
/// both in turn, timed as one.
struct BenchTest {
  std::int64_t n_prompt = 0;  ///< 0 in a decode test
  std::int64_t n_gen = 0;     ///< 0 in a prefill test
  std::int64_t n_depth = 0;
};

/// A prompt's length, and how many tokens are decoded after it.
struct PromptAndGen {
  std::int64_t prompt = 0, gen = 0;
};

/// Every depth with every prompt length, then with every number of generated tokens, then with
/// those of `both`; zeros are skipped.
std::vector<BenchTest> PlanTests(const std::vector<std::int64_t>& prompts,
                                 const std::vector<std::int64_t>& gens,
                                 const std::vector<std::int64_t>& depths,
                                 const std::vector<PromptAndGen>& both = {});

/// "pp512", "tg64 @ d4096", "pp512+tg64".
std::string TestName(const BenchTest& test);

/// The cost of one KV head.
struct KvHeadCost {
  std::int64_t bytes_per_token = 0;
  std::int64_t most_tokens = INT64_MAX;  ///< tokens that a decode step reads at most, by the policy
};

/// Returns the cache bytes that decoding reads per token, the mean over `n_gen` tokens after
/// `n_depth`: a layer with a window reads no more than the window, a head no more than its policy
/// keeps.
std::int64_t KvReadBytesPerToken(const ModelConfig& config,
                                 const std::vector<std::vector<KvHeadCost>>& heads,
                                 const BenchTest& test);

}  // namespace manyhead::cli
