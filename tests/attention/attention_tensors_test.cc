// Plain tensors: strides, layouts and types, batches with lengths of their own, and queries that
// begin anywhere.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "tests/attention/attention_config.h"
#include "tests/attention/attention_fixture.h"

namespace manyhead::testing {
namespace {

class AttentionOverTensors : public EveryIsa {
 protected:
  AttentionConfig Config() {
    AttentionConfig config;
    config.isa = GetParam();
    return config;
  }
};
INSTANTIATE_TEST_SUITE_P(Isa, AttentionOverTensors, ::testing::ValuesIn(kAllIsas), IsaTestName);

constexpr Layout kLayouts[] = {Layout::kNHD, Layout::kHND, Layout::kPadded, Layout::kReversed};
constexpr KvType kTensorTypes[] = {KvType::kF32, KvType::kF16, KvType::kBf16};

TEST_P(AttentionOverTensors, EveryLayoutTypeAndPhase) {
  std::uint32_t seed = 0;
  for (const Layout layout : kLayouts) {
    for (const KvType k_type : kTensorTypes) {
      for (const KvType v_type : kTensorTypes) {
        for (const std::int64_t T : {1, 4, 40}) {
          for (const std::int64_t D : {16, 19}) {
            AttentionConfig config = Config();
            config.layout = layout;
            config.k_type = k_type;
            config.v_type = v_type;
            config.head_dim = D;
            config.head_dim_v = D == 16 ? 32 : 16;
            config.q_lens = {T, T};
            config.kv_lens = {77, 77};
            config.seed = ++seed;
            CheckConfig(config);
          }
        }
      }
    }
  }
}

// Requests of different lengths; padding holds NaN, and the tensors end with the memory.
TEST_P(AttentionOverTensors, LengthsOfTheirOwn) {
  for (const Layout layout : kLayouts) {
    for (const std::int64_t padding : {0, 1, 30}) {
      for (const bool causal : {true, false}) {
        AttentionConfig config = Config();
        config.layout = layout;
        config.kv_padding = padding;
        config.causal = causal;
        config.q_lens = {4, 4, 4, 4};
        config.kv_lens = {60, 17, 4, 130};
        config.k_type = KvType::kF16;
        CheckConfig(config);
        config.threads = 3;
        config.k_type = KvType::kF32;
        config.mask = Spread::kRequests;
        config.alibi = true;
        CheckConfig(config);
      }
    }
  }
}

TEST_P(AttentionOverTensors, ARequestWithoutValidTokens) {
  for (const bool sinks : {false, true}) {
    AttentionConfig config = Config();
    config.causal = false;
    config.sinks = sinks;
    config.q_lens = {2, 2, 2};
    config.kv_lens = {0, 20, 0};
    CheckConfig(config);
    config.causal = true;
    config.query_starts = {0, 18, 0};
    CheckConfig(config);
    config.bias = config.mask = Spread::kFull;
    CheckConfig(config);
  }
}

// Query positions at the start, before it, beyond the keys, and anywhere between.
TEST_P(AttentionOverTensors, QueriesThatBeginAnywhere) {
  const std::vector<std::int64_t> starts[] = {{0, 0, 0},       {-3, 5, 40},  {-100, 70, 69},
                                              {71, 100, 3000}, {-2, -5, -6}, {64, 63, 65}};
  std::uint32_t seed = 0;
  for (const std::vector<std::int64_t>& query_starts : starts) {
    for (int variant = 0; variant < 6; ++variant) {
      AttentionConfig config = Config();
      config.q_lens = {6, 6, 6};
      config.kv_lens = {70, 70, 33};
      config.query_starts = query_starts;
      config.causal = variant != 2 && variant != 4;
      if (variant == 1) config.window = 20;
      if (variant == 2) config.window = 20, config.window_right = 30;
      if (variant == 3) config.window = 10, config.num_sink_tokens = 5, config.sinks = true;
      if (variant == 4) config.alibi = true;
      if (variant == 5) config.alibi = true, config.softcap = 1, config.gain = 4;
      config.seed = ++seed;
      CheckConfig(config);
      config.layout = Layout::kHND;
      config.v_type = KvType::kBf16;
      CheckConfig(config);
    }
  }
}

// More queries than keys under the upper-left causal mask of other libraries.
TEST_P(AttentionOverTensors, UpperLeftCausalMask) {
  for (const std::int64_t S : {1, 5, 16, 65}) {
    AttentionConfig config = Config();
    config.q_lens = {40};
    config.kv_lens = {S};
    config.query_starts = {0};
    CheckConfig(config);
    config.window = 3;
    CheckConfig(config);
  }
}

TEST_P(AttentionOverTensors, CrossAttention) {
  for (const std::int64_t T : {1, 30, 100}) {
    for (const std::int64_t S : {1, 7, 64, 90}) {
      AttentionConfig config = Config();
      config.causal = false;
      config.q_lens = {T, T};
      config.kv_lens = {S, S / 2 + 1};
      config.head_dim_v = 33;
      CheckConfig(config);
      config.mask = Spread::kRequests;
      config.k_type = config.v_type = KvType::kF16;
      CheckConfig(config);
    }
  }
}

TEST_P(AttentionOverTensors, Encoder) {
  for (const std::int64_t T : {1, 16, 61, 200}) {
    AttentionConfig config = Config();
    config.num_heads = config.num_kv_heads = 3;
    config.causal = false;
    config.q_lens = {T};
    config.kv_lens = {T};
    CheckConfig(config);
    config.window = 8;
    config.window_right = 8;
    CheckConfig(config);
    config.bias = Spread::kHeads;  // relative positions
    CheckConfig(config);
  }
}

// A bound to the right without one to the left, and causality that caps it.
TEST_P(AttentionOverTensors, BoundsToTheRight) {
  for (const std::int64_t right : {0, 1, 15, 16, 100}) {
    for (const bool causal : {false, true}) {
      AttentionConfig config = Config();
      config.causal = causal;
      config.window_right = right;
      config.q_lens = {50};
      config.kv_lens = {64};
      CheckConfig(config);
      config.window = 5;
      CheckConfig(config);
      config.window = 0;
      config.num_sink_tokens = 7;  // hidden by nothing
      CheckConfig(config);
    }
  }
}

TEST_P(AttentionOverTensors, DensePointersEqualDenseTensors) {
  AttentionConfig config = Config();
  config.q_lens = {9};
  config.kv_lens = {80};
  config.alibi = config.sinks = true;
  config.softcap = 3;
  config.window = 30;
  config.route = Route::kDense;
  CheckConfig(config);
  ConfigInputs inputs = MakeInputs(config);
  const Rows dense = RunConfig(config, inputs);
  config.route = Route::kTensors;
  for (const Layout layout : kLayouts) {
    config.layout = layout;
    const Rows tensors = RunConfig(config, inputs);
    EXPECT_EQ(tensors.out_THD, dense.out_THD);
    EXPECT_EQ(tensors.lse_TH, dense.lse_TH);
  }
}

// Strides of bias and mask may be negative too: queries and heads in reverse.
TEST_P(AttentionOverTensors, LogitsOfNegativeStrides) {
  AttentionConfig config = Config();
  config.bias = config.mask = Spread::kHeads;
  config.q_lens = {5};
  config.kv_lens = {50};
  ConfigInputs inputs = MakeInputs(config);
  const Rows expected = RunConfig(config, inputs);
  const AttentionCase& shape = inputs.requests[0].shape;
  std::vector<float> bias(shape.bias_HTS.size());
  std::vector<std::uint8_t> mask(shape.mask_HTS.size());
  const auto rows = static_cast<std::int64_t>(bias.size()) / 50;
  for (std::int64_t row = 0; row < rows; ++row) {
    std::copy_n(&shape.bias_HTS[row * 50], 50, &bias[(rows - 1 - row) * 50]);
    std::copy_n(&shape.mask_HTS[row * 50], 50, &mask[(rows - 1 - row) * 50]);
  }
  inputs.logits.view.bias = {&bias[(rows - 1) * 50], 50, 0, -5 * 50, -50};
  inputs.logits.view.mask = {&mask[(rows - 1) * 50], 50, 0, -5 * 50, -50};
  const Rows reversed = RunConfig(config, inputs);
  EXPECT_EQ(reversed.out_THD, expected.out_THD);
  EXPECT_EQ(reversed.lse_TH, expected.lse_TH);
}

// Requests may share one tensor: a batch stride of 0.
TEST_P(AttentionOverTensors, KeysSharedByRequests) {
  constexpr std::int64_t T = 2, S = 30, H = 4, D = 8;
  const std::vector<float> q = RandomTensor(3 * T * H * D, 1), k = RandomTensor(S * 2 * D, 2),
                           v = RandomTensor(S * 2 * D, 3);
  AttentionParams params = ParamsFor(AttentionCase{H, 2, D, D, 3 * T, S, 0.3}, GetParam());
  AttentionPlan plan = MakePlan(params);
  GuardedOutput out(3 * T * H * D);
  AttentionTensors tensors;
  tensors.batch = 3;
  tensors.q_len = T;
  tensors.kv_len = S;
  tensors.q = {q.data(), T * H * D, H * D, D};
  tensors.k = {k.data(), 0, 2 * D, D};
  tensors.v = {v.data(), 0, 2 * D, D};
  tensors.out = {out.data(), T * H * D, H * D, D};
  const Status status = plan.Run(tensors);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_TRUE(out.guards_intact());
  for (std::int64_t b = 0; b < 3; ++b) {
    std::vector<float> alone(T * H * D);
    ASSERT_TRUE(plan.Run(T, S, &q[b * T * H * D], k.data(), v.data(), alone.data()).ok());
    EXPECT_TRUE(std::equal(alone.begin(), alone.end(), out.data() + b * T * H * D));
  }
}

}  // namespace
}  // namespace manyhead::testing
