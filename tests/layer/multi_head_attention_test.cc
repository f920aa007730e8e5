#include "manyhead/multi_head_attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "tests/layer/layer_testing.h"
#include "tests/linear/linear_testing.h"
#include "tests/support/isas.h"

namespace manyhead {
namespace {

using namespace layer_testing;  // NOLINT(google-build-using-namespace)

/// A configuration and how its q_len tokens are made.
struct Case {
  const char* name;
  std::int64_t d_model, num_heads, num_kv_heads, head_dim, head_dim_v;
  bool biases, causal;
  std::int64_t window;
  std::int64_t rotary_dim;  // -1: no rope
  bool interleaved;
};

constexpr Case kCases[] = {
    {"one_number", 1, 1, 1, 1, 0, true, true, 0, -1, false},
    {"mha", 48, 3, 0, 0, 0, false, true, 0, -1, false},
    {"mha_bidirectional_biases", 40, 4, 4, 10, 0, true, false, 0, -1, false},
    {"gqa_rope", 64, 6, 2, 16, 0, false, true, 0, 0, false},
    {"gqa_partial_interleaved_biases", 33, 10, 5, 12, 0, true, true, 0, 8, true},
    {"mqa_odd_heads", 70, 7, 1, 7, 0, true, true, 0, -1, false},
    {"gqa_window_rope", 96, 4, 2, 24, 0, false, true, 5, 24, false},
    {"other_value_dim", 30, 4, 2, 9, 21, true, true, 0, 4, true},
};

MultiHeadAttentionParams ParamsOf(const Case& c, Isa isa, std::int64_t max_len) {
  MultiHeadAttentionParams params;
  params.d_model = c.d_model;
  params.attention.num_heads = c.num_heads;
  params.attention.num_kv_heads = c.num_kv_heads;
  params.attention.head_dim = c.head_dim;
  params.attention.head_dim_v = c.head_dim_v;
  params.attention.causal = c.causal;
  params.attention.window = c.window;
  params.attention.max_q_len = max_len;
  params.attention.threads = 2;
  params.attention.isa = isa;
  if (c.rotary_dim >= 0) {
    params.rope.emplace();
    params.rope->rotary_dim = c.rotary_dim;
    params.rope->interleaved = c.interleaved;
  }
  return params;
}

/// Checks that two orders of the last sum differ by no more than the header states.
void ExpectWithinSumOrder(const std::vector<float>& a, const std::vector<double>& b,
                          const MultiHeadAttentionParams& params, const Expected& expected) {
  const AttentionParams& attention = params.attention;
  const double terms =
      static_cast<double>(attention.num_heads * attention.head_dim_v + attention.num_heads);
  for (std::size_t i = 0; i < a.size(); ++i)
    ASSERT_NEAR(a[i], b[i], terms * 0x1p-23 * (expected.sums[i] + 1)) << "element " << i;
}

class Layer : public ::testing::TestWithParam<std::tuple<Isa, Case>> {
 protected:
  Isa isa() const { return std::get<0>(GetParam()); }
  const Case& config() const { return std::get<1>(GetParam()); }
};

std::string CaseName(const ::testing::TestParamInfo<std::tuple<Isa, Case>>& info) {
  return std::string(std::get<1>(info.param).name)
      .append("_")
      .append(IsaName(std::get<0>(info.param)));
}

INSTANTIATE_TEST_SUITE_P(EveryIsa, Layer,
                         ::testing::Combine(::testing::ValuesIn(kEveryIsa),
                                            ::testing::ValuesIn(kCases)),
                         CaseName);

// Few rows use the matvec, many oneDNN: the limit is between 8 and 9.
TEST_P(Layer, MatchesTheDefinitionInDouble) {
  MANYHEAD_SKIP_UNLESS_CPU_RUNS(isa());
  for (const bool sequential : {false, true}) {
    MultiHeadAttentionParams params = ParamsOf(config(), isa(), 70);
    params.sequential = sequential;
    const Matrices matrices = RandomMatrices(params, config().biases, 1);
    MultiHeadAttention layer = Make(params, matrices);
    for (const std::int64_t q_len : {1, 2, 8, 9, 24, 70}) {
      const std::vector<float> x = RandomFloats(q_len * params.d_model, 99);
      const Expected expected = Reference(layer.params(), matrices, x);
      Outputs outputs(layer.params(), q_len);
      ASSERT_TRUE(layer.Forward(q_len, x.data(), outputs.out.data(), outputs.options()).ok());
      ExpectNear(outputs.out, expected.out, "out");
      ExpectNear(outputs.heads, expected.heads, "heads");
      ExpectNear(outputs.terms, expected.terms, "terms");
      std::vector<float> alone(outputs.out.size(), kNan);
      ASSERT_TRUE(layer.Forward(q_len, x.data(), alone.data()).ok());
      ExpectSameBits(alone, outputs.out, "out without head outputs");
    }
  }
}

TEST_P(Layer, TermsAndBiasAddUpAndSequentialAgrees) {
  MANYHEAD_SKIP_UNLESS_CPU_RUNS(isa());
  MultiHeadAttentionParams params = ParamsOf(config(), isa(), 30);
  const Matrices matrices = RandomMatrices(params, config().biases, 2);
  MultiHeadAttention parallel = Make(params, matrices);
  params.sequential = true;
  MultiHeadAttention sequential = Make(params, matrices);
  for (const std::int64_t q_len : {5, 30}) {
    const std::vector<float> x = RandomFloats(q_len * params.d_model, 98);
    const Expected expected = Reference(parallel.params(), matrices, x);
    for (MultiHeadAttention* layer : {&parallel, &sequential}) {
      Outputs outputs(layer->params(), q_len);
      ASSERT_TRUE(layer->Forward(q_len, x.data(), outputs.out.data(), outputs.options()).ok());
      std::vector<double> sum(outputs.out.size());
      for (std::size_t i = 0; i < sum.size(); ++i)
        sum[i] = matrices.output_b.empty()
                     ? 0
                     : matrices.output_b[i % static_cast<std::size_t>(params.d_model)];
      for (std::size_t i = 0; i < outputs.terms.size(); ++i)
        sum[i % sum.size()] += static_cast<double>(outputs.terms[i]);
      ExpectWithinSumOrder(outputs.out, sum, layer->params(), expected);
    }
    Outputs a(parallel.params(), q_len), b(parallel.params(), q_len);
    ASSERT_TRUE(parallel.Forward(q_len, x.data(), a.out.data()).ok());
    ASSERT_TRUE(sequential.Forward(q_len, x.data(), b.out.data()).ok());
    ExpectWithinSumOrder(a.out, {b.out.begin(), b.out.end()}, parallel.params(), expected);
  }
}

/// Runs x through the layer's own cache in pieces of these lengths.
std::vector<float> AppendPieces(MultiHeadAttention& layer, const std::vector<float>& x,
                                const std::vector<std::int64_t>& pieces,
                                std::optional<RowRole> role = {}) {
  const std::int64_t d = layer.params().d_model;
  std::vector<float> out(x.size(), kNan);
  std::int64_t at = 0;
  EXPECT_TRUE(layer.Truncate(0).ok());
  for (std::int64_t piece : pieces) {
    ForwardOptions options;
    options.role = role;
    const Status status = layer.Append(piece, x.data() + at * d, out.data() + at * d, options);
    EXPECT_TRUE(status.ok()) << status.message();
    at += piece;
    EXPECT_EQ(layer.length(), at);
  }
  return out;
}

TEST_P(Layer, PiecesThroughACacheEqualTheWhole) {
  MANYHEAD_SKIP_UNLESS_CPU_RUNS(isa());
  MultiHeadAttentionParams params = ParamsOf(config(), isa(), 60);
  params.attention.causal = true;  // else a token would see later pieces
  params.own_cache = true;
  const Matrices matrices = RandomMatrices(params, config().biases, 3);
  for (const bool sequential : {false, true}) {
    params.sequential = sequential;
    MultiHeadAttention layer = Make(params, matrices);
    for (const RowRole role : {RowRole::kPrefill, RowRole::kDecode}) {
      const std::vector<float> x = RandomFloats(60 * params.d_model, 97);
      std::vector<float> out(x.size(), kNan);
      ForwardOptions options;
      options.role = role;
      EXPECT_TRUE(layer.Forward(60, x.data(), out.data(), options).ok());
      const std::vector<std::int64_t> ones(60, 1);
      for (const std::vector<std::int64_t>& pieces : std::vector<std::vector<std::int64_t>>{
               {60}, {3, 1, 4, 52}, {9, 24, 27}, {40, 8, 0, 1, 1, 10}, ones})
        ExpectSameBits(AppendPieces(layer, x, pieces, role), out,
                       role == RowRole::kDecode ? "decode" : "prefill");
      // One token is a decode step by default, and several tokens are a prompt.
      const std::vector<double> wide(out.begin(), out.end());
      ExpectNear(AppendPieces(layer, x, {40, 8, 1, 1, 10}), wide, "both roles");
    }
  }
}

TEST_P(Layer, EveryThreadCountGivesTheSameBits) {
  MANYHEAD_SKIP_UNLESS_CPU_RUNS(isa());
  MultiHeadAttentionParams params = ParamsOf(config(), isa(), 40);
  const Matrices matrices = RandomMatrices(params, config().biases, 4);
  for (const bool sequential : {false, true})
    for (const std::int64_t q_len : {3, 40}) {
      const std::vector<float> x = RandomFloats(q_len * params.d_model, 96);
      std::optional<Outputs> first;
      for (const int threads : {1, 2, 3, 5}) {
        params.sequential = sequential;
        params.attention.threads = threads;
        MultiHeadAttention layer = Make(params, matrices);
        Outputs outputs(layer.params(), q_len);
        ASSERT_TRUE(layer.Forward(q_len, x.data(), outputs.out.data(), outputs.options()).ok());
        if (!first) first = outputs;
        ExpectSameBits(outputs.out, first->out, "out");
        ExpectSameBits(outputs.heads, first->heads, "heads");
        ExpectSameBits(outputs.terms, first->terms, "terms");
      }
    }
}

class LayerOn : public ::testing::TestWithParam<Isa> {};
INSTANTIATE_TEST_SUITE_P(EveryIsa, LayerOn, ::testing::ValuesIn(kEveryIsa), IsaTestName);

/// A weight of any type, and what it stands for.
struct StoredMatrices {
  linear_testing::Weight query, key, value, output;
  Matrices widened;

  StoredMatrices(WeightType type, std::int64_t d, std::int64_t query_rows, std::int64_t kv_rows)
      : query(type, query_rows, d, 11),
        key(type, kv_rows, d, 12),
        value(type, kv_rows, d, 13),
        output(type, d, query_rows, 14) {
    widened = {query.Widened(),    key.Widened(), value.Widened(), output.Widened(), {}, {}, {},
               RandomFloats(d, 15)};
  }
  MultiHeadAttentionWeights AsWeights(WeightType type) {
    return {{type, query.bytes(), {}},
            {type, key.bytes(), {}},
            {type, value.bytes(), {}},
            {type, output.bytes(), widened.output_b}};
  }
};

// Heads of 64 and 96 elements are whole blocks of some types and parts of the 256 of others.
TEST_P(LayerOn, TakesEveryWeightType) {
  MANYHEAD_SKIP_UNLESS_CPU_RUNS(GetParam());
  for (const WeightType type : linear_testing::kAllTypes)
    for (const auto& [num_heads, num_kv_heads, head_dim] :
         {std::tuple(4, 2, 64), std::tuple(8, 1, 96)}) {
      StoredMatrices stored(type, 256, num_heads * head_dim, num_kv_heads * head_dim);
      for (const bool sequential : {false, true}) {
        MultiHeadAttentionParams params;
        params.d_model = 256;
        params.sequential = sequential;
        params.attention.num_heads = num_heads;
        params.attention.num_kv_heads = num_kv_heads;
        params.attention.head_dim = head_dim;
        params.attention.max_q_len = 13;
        params.attention.isa = GetParam();
        Result<MultiHeadAttention> layer =
            MultiHeadAttention::Create(params, stored.AsWeights(type));
        ASSERT_TRUE(layer.ok()) << layer.status().message();
        for (const std::int64_t q_len : {2, 13}) {
          SCOPED_TRACE(std::string(WeightTypeName(type)) + " heads of " + std::to_string(head_dim) +
                       " q_len " + std::to_string(q_len));
          const std::vector<float> x = RandomFloats(q_len * 256, 95, 0.1F);
          const Expected expected = Reference(layer->params(), stored.widened, x);
          Outputs outputs(layer->params(), q_len);
          ASSERT_TRUE(layer->Forward(q_len, x.data(), outputs.out.data(), outputs.options()).ok());
          ExpectNear(outputs.out, expected.out, "out", 2e-5);
          ExpectNear(outputs.heads, expected.heads, "heads", 2e-5);
          ExpectNear(outputs.terms, expected.terms, "terms", 2e-5);
        }
      }
    }
}

MultiHeadAttentionParams CrossParams(Isa isa) {
  MultiHeadAttentionParams params;
  params.d_model = 24;
  params.memory_dim = 17;
  params.attention.num_heads = 6;
  params.attention.num_kv_heads = 3;
  params.attention.causal = false;
  params.attention.max_q_len = 20;
  params.attention.max_kv_len = 50;
  params.attention.isa = isa;
  return params;
}

TEST_P(LayerOn, AttendsToAMemoryOfItsOwnWidth) {
  MANYHEAD_SKIP_UNLESS_CPU_RUNS(GetParam());
  for (const bool sequential : {false, true}) {
    MultiHeadAttentionParams params = CrossParams(GetParam());
    params.sequential = sequential;
    const Matrices matrices = RandomMatrices(params, true, 5);
    MultiHeadAttention layer = Make(params, matrices);
    for (const auto& [q_len, kv_len] :
         {std::pair(1, 50), std::pair(20, 3), std::pair(7, 1), std::pair(12, 33)}) {
      const std::vector<float> x = RandomFloats(q_len * params.d_model, 94);
      const std::vector<float> memory = RandomFloats(kv_len * params.memory_dim, 93);
      const Expected expected = Reference(layer.params(), matrices, x, &memory);
      Outputs outputs(layer.params(), q_len);
      ASSERT_TRUE(layer
                      .Forward(q_len, x.data(), kv_len, memory.data(), outputs.out.data(),
                               outputs.options())
                      .ok());
      ExpectNear(outputs.out, expected.out, "out");
      ExpectNear(outputs.heads, expected.heads, "heads");
      std::vector<float> again(outputs.out.size(), kNan);
      ASSERT_TRUE(layer.ForwardAgain(q_len, x.data(), again.data()).ok());
      ExpectSameBits(again, outputs.out, "again");
    }
    // Nothing to attend to: zeros, so that only the bias is left.
    const std::vector<float> x = RandomFloats(2 * params.d_model, 92);
    std::vector<float> out(x.size(), kNan);
    ASSERT_TRUE(layer.Forward(2, x.data(), 0, nullptr, out.data()).ok());
    for (std::size_t i = 0; i < out.size(); ++i)
      EXPECT_EQ(out[i], matrices.output_b[i % static_cast<std::size_t>(params.d_model)]);
  }
}

TEST_P(LayerOn, FillsTheLayerOfACacheThatIsNamed) {
  MANYHEAD_SKIP_UNLESS_CPU_RUNS(GetParam());
  MultiHeadAttentionParams params = ParamsOf(kCases[3], GetParam(), 30);
  params.own_cache = true;
  const Matrices matrices = RandomMatrices(params, false, 6);
  MultiHeadAttention layer = Make(params, matrices);
  KvCacheParams cache_params;
  cache_params.layers = {{1, 8, 0}, layer.cache_shape()};
  cache_params.k_type = cache_params.v_type = KvType::kF32;
  cache_params.max_tokens = 100;
  cache_params.capacity_bytes = std::int64_t{8} << 20;
  cache_params.isa = GetParam();
  KvCache cache = *KvCache::Create(cache_params);
  const SequenceId other = *cache.CreateSequence(), sequence = *cache.CreateSequence();
  ASSERT_TRUE(cache.Reserve(other, 5).ok());
  const std::vector<float> x = RandomFloats(30 * params.d_model, 91);
  const std::vector<float> expected = AppendPieces(layer, x, {13, 2, 12, 3});
  std::vector<float> out(x.size(), kNan);
  std::int64_t at = 0;
  for (const std::int64_t piece : {13, 2, 12, 3}) {
    ASSERT_TRUE(cache.Reserve(sequence, piece).ok());
    ASSERT_TRUE(layer
                    .Forward(cache, 1, sequence, piece, x.data() + at * params.d_model,
                             out.data() + at * params.d_model)
                    .ok());
    at += piece;
  }
  ExpectSameBits(out, expected, "out");
}

TEST_P(LayerOn, ForgetsWhatTruncateDrops) {
  MANYHEAD_SKIP_UNLESS_CPU_RUNS(GetParam());
  MultiHeadAttentionParams params = ParamsOf(kCases[4], GetParam(), 8);
  params.attention.max_kv_len = 40;
  params.own_cache = true;
  const Matrices matrices = RandomMatrices(params, true, 7);
  MultiHeadAttention layer = Make(params, matrices);
  const std::vector<float> x = RandomFloats(24 * params.d_model, 90);
  const std::vector<float> expected = AppendPieces(layer, x, {8, 8, 8});
  ASSERT_TRUE(layer.Truncate(5).ok());
  EXPECT_EQ(layer.length(), 5);
  std::vector<float> out(19 * static_cast<std::size_t>(params.d_model), kNan);
  std::int64_t at = 5;
  for (const std::int64_t piece : {8, 8, 3}) {
    ASSERT_TRUE(
        layer.Append(piece, x.data() + at * params.d_model, out.data() + (at - 5) * params.d_model)
            .ok());
    at += piece;
  }
  ExpectSameBits(out, {expected.begin() + 5 * params.d_model, expected.end()}, "after position 5");
}

TEST_P(LayerOn, NarrowCacheTypesRoundKeysAndValuesOnly) {
  MANYHEAD_SKIP_UNLESS_CPU_RUNS(GetParam());
  const std::pair<KvType, double> types[] = {{KvType::kF16, 2e-3}, {KvType::kBf16, 2e-2}};
  for (const auto& [type, tolerance] : types)
    for (const bool sequential : {false, true}) {
      MultiHeadAttentionParams params = ParamsOf(kCases[3], GetParam(), 25);
      params.own_cache = true;
      params.sequential = sequential;
      params.k_type = params.v_type = type;
      const Matrices matrices = RandomMatrices(params, false, 8);
      MultiHeadAttention layer = Make(params, matrices);
      const std::vector<float> x = RandomFloats(25 * params.d_model, 89);
      const Expected expected = Reference(layer.params(), matrices, x);
      ExpectNear(AppendPieces(layer, x, {20, 5}), expected.out, KvTypeName(type), tolerance);
    }
}

// int8 activations move a product by at most half their scale, and a sequence begins exactly.
TEST_P(LayerOn, FastMathStaysCloseAndBeginsExactly) {
  MANYHEAD_SKIP_UNLESS_CPU_RUNS(GetParam());
  StoredMatrices stored(WeightType::kQ8_0, 256, 256, 128);
  MultiHeadAttentionParams params;
  params.d_model = 256;
  params.attention.num_heads = 4;
  params.attention.num_kv_heads = 2;
  params.attention.max_q_len = 8;
  params.attention.max_kv_len = 24;
  params.attention.isa = GetParam();
  params.own_cache = true;
  MultiHeadAttention exact =
      *MultiHeadAttention::Create(params, stored.AsWeights(WeightType::kQ8_0));
  params.math = MathMode::kFast;
  MultiHeadAttention fast =
      *MultiHeadAttention::Create(params, stored.AsWeights(WeightType::kQ8_0));
  const std::vector<float> x = RandomFloats(24 * 256, 88, 0.1F);
  const std::vector<float> a = AppendPieces(exact, x, {8, 8, 8}, RowRole::kDecode);
  const std::vector<float> b = AppendPieces(fast, x, {8, 8, 8}, RowRole::kDecode);
  constexpr std::int64_t kFirst = 256;
  ExpectSameBits({b.begin(), b.begin() + kFirst}, {a.begin(), a.begin() + kFirst}, "first token");
  ExpectNear(b, {a.begin(), a.end()}, "fast", 3e-2);
  EXPECT_NE(b, a);
}

// Where the CPU has tiles of bf16, these serve many rows of low-bit weights, slices among them.
TEST_P(LayerOn, FastMathOfManyRowsStaysClose) {
  MANYHEAD_SKIP_UNLESS_CPU_RUNS(GetParam());
  for (const WeightType type : {WeightType::kQ8_0, WeightType::kQ4_K}) {
    StoredMatrices stored(type, 512, 512, 128);
    for (const bool sequential : {false, true}) {
      MultiHeadAttentionParams params;
      params.d_model = 512;
      params.sequential = sequential;
      params.math = MathMode::kFast;
      params.attention.num_heads = 8;
      params.attention.num_kv_heads = 2;
      params.attention.max_q_len = 35;
      params.attention.isa = GetParam();
      Result<MultiHeadAttention> layer = MultiHeadAttention::Create(params, stored.AsWeights(type));
      ASSERT_TRUE(layer.ok()) << layer.status().message();
      const std::vector<float> x = RandomFloats(35 * 512, 80, 0.1F);
      const Expected expected = Reference(layer->params(), stored.widened, x);
      Outputs outputs(layer->params(), 35);
      ASSERT_TRUE(layer->Forward(35, x.data(), outputs.out.data(), outputs.options()).ok());
      ExpectNear(outputs.out, expected.out, "out", 3e-2);
      ExpectNear(outputs.terms, expected.terms, "terms", 3e-2);
    }
  }
}

TEST(Layer, CopiesWeightsWhenAskedTo) {
  MultiHeadAttentionParams params = ParamsOf(kCases[3], Isa::kScalar, 12);
  params.copy_weights = true;
  Matrices matrices = RandomMatrices(params, true, 9);
  const Matrices kept = matrices;
  MultiHeadAttention layer = Make(params, matrices);
  for (std::vector<float>* values : {&matrices.query, &matrices.key, &matrices.value,
                                     &matrices.output, &matrices.query_b, &matrices.output_b})
    std::fill(values->begin(), values->end(), kNan);
  const std::vector<float> x = RandomFloats(12 * params.d_model, 87);
  std::vector<float> out(x.size(), kNan);
  ASSERT_TRUE(layer.Forward(12, x.data(), out.data()).ok());
  ExpectNear(out, Reference(layer.params(), kept, x).out, "out");
}

}  // namespace
}  // namespace manyhead
