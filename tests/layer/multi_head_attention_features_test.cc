#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "manyhead/multi_head_attention.h"
#include "tests/layer/layer_testing.h"
#include "tests/support/allocation_meter.h"
#include "tests/support/isas.h"

namespace manyhead {
namespace {

using namespace layer_testing;  // NOLINT(google-build-using-namespace)

class LayerFeatures : public ::testing::TestWithParam<Isa> {};
INSTANTIATE_TEST_SUITE_P(EveryIsa, LayerFeatures, ::testing::ValuesIn(kEveryIsa), IsaTestName);

MultiHeadAttentionParams Params(Isa isa) {
  MultiHeadAttentionParams params;
  params.d_model = 36;
  params.attention.num_heads = 6;
  params.attention.num_kv_heads = 3;
  params.attention.head_dim = 10;
  params.attention.max_q_len = 33;
  params.attention.threads = 2;
  params.attention.isa = isa;
  params.own_cache = true;
  return params;
}

// Values that differ between heads must reach the right head, also when each is computed alone.
TEST_P(LayerFeatures, SlopesSinksAndSoftCapOfEachHead) {
  MANYHEAD_SKIP_UNLESS_CPU_RUNS(GetParam());
  MultiHeadAttentionParams params = Params(GetParam());
  params.attention.alibi_slopes = {0, 0.1F, 0.2F, 0.4F, 0.8F, 1.6F};
  params.attention.sink_logits = {-1, 2, 0, 3, -std::numeric_limits<float>::infinity(), 1};
  params.attention.logit_softcap = 1.5F;
  params.attention.softmax_scale = 0.4F;
  const Matrices matrices = RandomMatrices(params, true, 21);
  for (const bool sequential : {false, true}) {
    params.sequential = sequential;
    MultiHeadAttention layer = Make(params, matrices);
    for (const std::int64_t q_len : {4, 33}) {
      const std::vector<float> x = RandomFloats(q_len * params.d_model, 86);
      const Expected expected = Reference(layer.params(), matrices, x);
      Outputs whole(layer.params(), q_len), cached(layer.params(), q_len);
      ASSERT_TRUE(layer.Forward(q_len, x.data(), whole.out.data(), whole.options()).ok());
      ExpectNear(whole.out, expected.out, "out");
      ExpectNear(whole.heads, expected.heads, "heads");
      ASSERT_TRUE(layer.Truncate(0).ok());
      ASSERT_TRUE(layer.Append(q_len, x.data(), cached.out.data(), cached.options()).ok());
      ExpectSameBits(cached.out, whole.out, "out");
      ExpectSameBits(cached.heads, whole.heads, "heads");
    }
  }
}

TEST_P(LayerFeatures, BiasAndMaskOfEachHead) {
  MANYHEAD_SKIP_UNLESS_CPU_RUNS(GetParam());
  constexpr std::int64_t kTokens = 21, kWidth = 25;  // rows of the bias are longer than needed
  MultiHeadAttentionParams params = Params(GetParam());
  const Matrices matrices = RandomMatrices(params, true, 22);
  const std::int64_t H = params.attention.num_heads;
  const std::vector<float> bias = RandomFloats(H * kTokens * kWidth, 85, 2);
  std::vector<std::uint8_t> mask(bias.size());
  std::vector<float> expected_bias;
  for (std::int64_t h = 0; h < H; ++h)
    for (std::int64_t t = 0; t < kTokens; ++t)
      for (std::int64_t s = 0; s < kWidth; ++s) {
        const std::int64_t at = (h * kTokens + t) * kWidth + s;
        mask[at] = (h + t * 3 + s * 5) % 4 != 0 || s == t;
        if (s < kTokens)
          expected_bias.push_back(mask[at] != 0 ? bias[at]
                                                : -std::numeric_limits<float>::infinity());
      }
  ForwardOptions options;
  options.bias.bias = {bias.data(), kWidth, 0, kTokens * kWidth, kWidth};
  options.bias.mask = {mask.data(), kWidth, 0, kTokens * kWidth, kWidth};
  const std::vector<float> x = RandomFloats(kTokens * params.d_model, 84);
  for (const bool sequential : {false, true}) {
    params.sequential = sequential;
    MultiHeadAttention layer = Make(params, matrices);
    const Expected expected = Reference(layer.params(), matrices, x, nullptr, &expected_bias);
    std::vector<float> whole(x.size(), kNan), cached(x.size(), kNan);
    ASSERT_TRUE(layer.Forward(kTokens, x.data(), whole.data(), options).ok());
    ExpectNear(whole, expected.out, "out");
    ASSERT_TRUE(layer.Append(kTokens, x.data(), cached.data(), options).ok());
    ExpectSameBits(cached, whole, "out");
  }
}

// Values are stored in a byte or less each; what that costs is a property of the cache.
TEST_P(LayerFeatures, LowBitCachesServeBothWays) {
  MANYHEAD_SKIP_UNLESS_CPU_RUNS(GetParam());
  MultiHeadAttentionParams params = Params(GetParam());
  params.k_type = KvType::kInt8;
  params.v_type = KvType::kInt4;
  const Matrices matrices = RandomMatrices(params, true, 23);
  const std::vector<float> x = RandomFloats(30 * params.d_model, 83);
  std::vector<float> outs[2];
  for (const bool sequential : {false, true}) {
    params.sequential = sequential;
    MultiHeadAttention layer = Make(params, matrices);
    std::vector<float>& out = outs[sequential ? 1 : 0];
    out.assign(x.size(), kNan);
    ASSERT_TRUE(layer.Append(30, x.data(), out.data()).ok());
    ExpectNear(out, Reference(layer.params(), matrices, x).out, "out", 0.15);
  }
  ExpectNear(outs[1], {outs[0].begin(), outs[0].end()}, "sequential");
}

// Two hosts' threads, each with inputs of its own: no result may hold the other's numbers.
TEST_P(LayerFeatures, CallsOfSeveralThreadsTakeTurns) {
  MANYHEAD_SKIP_UNLESS_CPU_RUNS(GetParam());
  const MultiHeadAttentionParams params = Params(GetParam());
  const Matrices matrices = RandomMatrices(params, true, 25);
  MultiHeadAttention layer = Make(params, matrices);
  std::vector<std::thread> threads;
  for (const std::int64_t q_len : {7, 30, 33})
    threads.emplace_back([&layer, &params, q_len] {
      const std::vector<float> x =
          RandomFloats(q_len * params.d_model, static_cast<std::uint32_t>(q_len));
      std::vector<float> first(x.size()), out(x.size());
      EXPECT_TRUE(layer.Forward(q_len, x.data(), first.data()).ok());
      for (int i = 0; i < 20; ++i) {
        EXPECT_TRUE(layer.Forward(q_len, x.data(), out.data()).ok());
        EXPECT_EQ(out, first);
      }
    });
  for (std::thread& thread : threads) thread.join();
}

// oneDNN, which serves more rows than these, has memory of its own.
TEST_P(LayerFeatures, FewRowsAllocateNothing) {
  MANYHEAD_SKIP_UNLESS_CPU_RUNS(GetParam());
  for (const bool sequential : {false, true}) {
    MultiHeadAttentionParams params = Params(GetParam());
    params.attention.max_kv_len = 2000;
    params.sequential = sequential;
    params.rope.emplace();
    const Matrices matrices = RandomMatrices(params, true, 24);
    MultiHeadAttention layer = Make(params, matrices);
    const std::vector<float> x = RandomFloats(8 * params.d_model, 82);
    Outputs outputs(layer.params(), 8);
    const ForwardOptions options = outputs.options();
    ASSERT_TRUE(layer.Forward(8, x.data(), outputs.out.data(), options).ok());  // starts threads
    testing::ResetAllocationMeter();
    bool ok = layer.Forward(8, x.data(), outputs.out.data(), options).ok();
    for (int i = 0; i < 250; ++i)
      ok = ok && layer.Append(8, x.data(), outputs.out.data(), options).ok();
    const std::size_t allocations = testing::NumAllocations();
    EXPECT_TRUE(ok);
    EXPECT_EQ(allocations, 0U);
    EXPECT_EQ(layer.length(), 2000);
  }
}

}  // namespace
}  // namespace manyhead
