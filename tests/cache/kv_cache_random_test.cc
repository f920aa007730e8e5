#include <gtest/gtest.h>

#include <cstdlib>

#include "manyhead/kv_cache.h"
#include "tests/cache/kv_model.h"

/// Long random histories of all operations against the plainest possible cache. The environment
/// variable MANYHEAD_MODEL_STEPS sets their length: 100000 for the long form.

namespace manyhead::testing {
namespace {

int Steps() {
  const char* steps = std::getenv("MANYHEAD_MODEL_STEPS");
  return steps != nullptr ? std::atoi(steps) : 4000;
}

TEST(KvCacheRandom, BehavesLikeAMapOfLists) {
  for (const std::int64_t page_size : {16, 32, 64}) {
    Result<KvCache> cache = KvCache::Create(ModelParams(page_size));
    ASSERT_TRUE(cache.ok()) << cache.status().message();
    KvModel model(std::move(*cache), 1234, [](const auto& call) { call(); });
    for (int step = 0; step < Steps(); ++step) {
      SCOPED_TRACE(::testing::Message() << "page_size " << page_size << " step " << step);
      model.Step();
      if (step % 500 == 0) model.CheckContents();
      if (HasFatalFailure()) return;
    }
    model.FreeAll();
    EXPECT_GT(model.refusals(), Steps() / 100) << "the history must reach the cap";
    EXPECT_GT(model.successes(), Steps() / 4);
  }
}

}  // namespace
}  // namespace manyhead::testing
