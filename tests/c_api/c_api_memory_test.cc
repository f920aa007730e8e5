#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <string>
#include <vector>

#include "manyhead/c_api.h"

/// A separate program: operator new fails on request, at each allocation of one thread in turn.

namespace {
thread_local std::int64_t t_allocations_left = -1;  // negative: never fails

void* Allocate(std::size_t bytes, std::size_t alignment) {
  if (t_allocations_left == 0) throw std::bad_alloc();
  if (t_allocations_left > 0) --t_allocations_left;
  void* memory = nullptr;
  if (posix_memalign(&memory, alignment, bytes == 0 ? 1 : bytes) == 0) return memory;
  throw std::bad_alloc();
}
}  // namespace

// Inlined, GCC would see free() meet a pointer from new and warn.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  return Allocate(bytes, alignof(std::max_align_t));
}
[[gnu::noinline]] void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return Allocate(bytes, static_cast<std::size_t>(alignment));
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}
// The default ones call those above, but not where a sanitizer brings its own.
[[gnu::noinline]] void* operator new[](std::size_t bytes) { return operator new(bytes); }
[[gnu::noinline]] void operator delete[](void* memory) noexcept { operator delete(memory); }
[[gnu::noinline]] void operator delete[](void* memory, std::size_t) noexcept {
  operator delete(memory);
}

namespace {

const std::string kModel = std::string(MANYHEAD_SOURCE_DIR) + "/tools/models/bundled.gguf";

/// Runs call() with its n-th allocation failing, for the first 256 and some of those that follow,
/// until it needs fewer. Whatever fails must say MH_OUT_OF_MEMORY. Returns how often it did.
template <class Call>
int FailEachAllocation(Call&& call) {
  int failed = 0;
  for (std::int64_t n = 0;; n += 1 + std::max<std::int64_t>(0, n - 256) / 16) {
    t_allocations_left = n;
    const mh_status status = call();
    t_allocations_left = -1;
    if (status == MH_OK) return failed;
    EXPECT_EQ(status, MH_OUT_OF_MEMORY) << "allocation " << n;
    if (status != MH_OUT_OF_MEMORY) return failed;
    ++failed;
  }
}

TEST(CApiMemory, CreatorsReportThatThereIsNoneAndLeaveNull) {
  mh_model* model = nullptr;
  mh_message message{};
  EXPECT_GT(FailEachAllocation([&] {
              const mh_status status = mh_model_load(kModel.c_str(), nullptr, &model, &message);
              EXPECT_EQ(model == nullptr, status != MH_OK);
              EXPECT_STREQ(message.text, status == MH_OK ? "" : "out of memory");
              return status;
            }),
            10);

  mh_session* session = nullptr;
  mh_session_options options;
  mh_session_options_init(&options);
  options.context = 64;
  options.kv_policy = R"json({"heads": [{"layers": [0], "policy": "sink(4)+recent(16)"}]})json";
  EXPECT_GT(
      FailEachAllocation([&] { return mh_session_create(model, &options, &session, &message); }),
      5);
  mh_session_free(&session);
  mh_model_free(&model);

  mh_plan_params params;
  mh_plan_params_init(&params);
  params.num_heads = params.num_kv_heads = params.max_q_len = params.max_kv_len = 2;
  params.head_dim = 8;
  mh_plan* plan = nullptr;
  EXPECT_GT(FailEachAllocation([&] { return mh_plan_create(&params, &plan, &message); }), 0);
  mh_plan_free(&plan);
}

TEST(CApiMemory, ASessionGoesOnAfterwards) {
  mh_model* model = nullptr;
  mh_session* session = nullptr;
  ASSERT_EQ(mh_model_load(kModel.c_str(), nullptr, &model, nullptr), MH_OK);
  ASSERT_EQ(mh_session_create(model, nullptr, &session, nullptr), MH_OK);
  std::vector<std::int32_t> ids(64);
  std::size_t count = 0;
  const std::string prompt = "x7k2qz x7k2qz x7k";
  EXPECT_GT(FailEachAllocation([&] {
              return mh_model_encode(model, prompt.data(), prompt.size(), 1, 0, ids.data(),
                                     ids.size(), &count);
            }),
            0);
  mh_generate_options options;
  mh_generate_options_init(&options);
  options.max_tokens = 10;
  mh_generate_result result{};
  const char* stop[] = {"a text that never comes and is too long for a small string"};
  options.stop = stop;
  options.num_stop = 1;
  EXPECT_GT(FailEachAllocation(
                [&] { return mh_session_generate(session, ids.data(), count, &options, &result); }),
            3);
  EXPECT_STREQ(result.text, "2qz x7k2qz");
  mh_session_free(&session);
  mh_model_free(&model);
}

TEST(CApiMemory, HeadsAreWatchedAndChangedOrNot) {
  mh_model* model = nullptr;
  mh_session* session = nullptr;
  ASSERT_EQ(mh_model_load(kModel.c_str(), nullptr, &model, nullptr), MH_OK);
  ASSERT_EQ(mh_session_create(model, nullptr, &session, nullptr), MH_OK);
  const std::int32_t ids[] = {65, 66, 67, 68};
  EXPECT_GT(FailEachAllocation([&] { return mh_session_profile_heads(session, 1); }), 3);
  mh_capture_options options;
  mh_capture_options_init(&options);
  std::int64_t rows = 0;
  options.on_row = [](void* user, const mh_captured_row*) { ++*static_cast<std::int64_t*>(user); };
  options.user = &rows;
  EXPECT_GT(FailEachAllocation([&] { return mh_session_capture(session, &options); }), 0);
  ASSERT_EQ(mh_session_append(session, ids, 4, nullptr), MH_OK);
  EXPECT_EQ(rows, 4 * 16);
  EXPECT_GT(FailEachAllocation([&] { return mh_session_ablate(session, "1.0,2.*=0.5"); }), 3);
  mh_head_stats stats{};
  ASSERT_EQ(mh_session_get_head_stats(session, 0, 0, &stats), MH_OK);
  EXPECT_GE(stats.rows, 4);
  mh_session_free(&session);
  mh_model_free(&model);
}

TEST(CApiMemory, ASizeThatNoMemoryHolds) {
  const mh_layer_shape layer = {1, 8, 0};
  mh_cache_params params;
  mh_cache_params_init(&params);
  params.layers = &layer;
  params.num_layers = 1;
  params.max_tokens = std::int64_t{1} << 62;
  params.capacity_bytes = std::int64_t{1} << 62;
  mh_cache* cache = nullptr;
  mh_message message{};
  EXPECT_NE(mh_cache_create(&params, &cache, &message), MH_OK);
  EXPECT_STRNE(message.text, "");
  EXPECT_EQ(cache, nullptr);
}

}  // namespace
