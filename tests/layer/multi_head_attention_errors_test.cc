#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "manyhead/multi_head_attention.h"
#include "tests/layer/layer_testing.h"

namespace manyhead {
namespace {

using namespace layer_testing;  // NOLINT(google-build-using-namespace)

MultiHeadAttentionParams Params() {
  MultiHeadAttentionParams params;
  params.d_model = 12;
  params.attention.num_heads = 4;
  params.attention.num_kv_heads = 2;
  params.attention.max_q_len = 6;
  params.attention.max_kv_len = 10;
  params.attention.threads = 1;
  return params;
}

/// Returns the error of Create after `change` has made an argument invalid.
std::string CreateError(
    const std::function<void(MultiHeadAttentionParams&, MultiHeadAttentionWeights&)>& change) {
  MultiHeadAttentionParams params = Params();
  const Matrices matrices = RandomMatrices(params, true, 31);
  MultiHeadAttentionWeights weights = matrices.AsWeights();
  change(params, weights);
  const Result<MultiHeadAttention> layer = MultiHeadAttention::Create(params, weights);
  if (layer.ok()) return "no error";
  EXPECT_EQ(layer.status().code(), StatusCode::kInvalidArgument);
  return layer.status().message();
}

std::string ParamsError(const std::function<void(MultiHeadAttentionParams&)>& change) {
  return CreateError([&](auto& params, auto&) { change(params); });
}

TEST(LayerErrors, OfSizes) {
  EXPECT_EQ(ParamsError([](auto& p) { p.d_model = 0; }),
            "MultiHeadAttention::Create: d_model = 0; expected 1..16777216");
  EXPECT_EQ(ParamsError([](auto& p) { p.memory_dim = -1; }),
            "MultiHeadAttention::Create: memory_dim = -1; expected 0..16777216");
  EXPECT_EQ(ParamsError([](auto& p) { p.attention.num_heads = 0; }),
            "MultiHeadAttention::Create: num_heads = 0; expected at least 1");
  EXPECT_EQ(ParamsError([](auto& p) { p.attention.num_heads = 5; }),
            "MultiHeadAttention::Create: d_model = 12 is not a multiple of num_heads = 5");
  EXPECT_EQ(ParamsError([](auto& p) { p.attention.num_kv_heads = 3; }),
            "AttentionPlan::Create: num_heads = 4 is not a multiple of num_kv_heads = 3");
  EXPECT_EQ(ParamsError([](auto& p) { p.attention.max_q_len = 0; }),
            "AttentionPlan::Create: max_q_len = 0; expected 1..2147483648");
  EXPECT_EQ(ParamsError([](auto& p) { p.attention.head_dim = -3; }),
            "AttentionPlan::Create: head_dim = -3; expected 1..1024");
  EXPECT_NE(ParamsError([](auto& p) { p.attention.softmax_scale = NAN; }), "no error");
  EXPECT_NE(ParamsError([](auto& p) { p.attention.window = -1; }), "no error");
  EXPECT_EQ(ParamsError([](auto& p) { p.rope.emplace().rotary_dim = 4; }),
            "Rope::Create: rotary_dim = 4 exceeds head_dim = 3");
  EXPECT_EQ(ParamsError([](auto& p) { p.rope.emplace(); }),
            "Rope::Create: rotary_dim = 3; expected an even number from 2 to head_dim = 3");
}

TEST(LayerErrors, OfCrossAttention) {
  const auto cross_error = [](const std::function<void(MultiHeadAttentionParams&)>& change) {
    return ParamsError([&](auto& p) {
      p.memory_dim = 12;
      p.attention.causal = false;
      change(p);
    });
  };
  EXPECT_EQ(cross_error([](auto&) {}), "no error");
  const std::string rest = " with memory_dim = 12; expected none in cross attention";
  EXPECT_EQ(cross_error([](auto& p) { p.attention.causal = true; }),
            "MultiHeadAttention::Create: causal = true" + rest);
  EXPECT_EQ(cross_error([](auto& p) { p.attention.window = 3; }),
            "MultiHeadAttention::Create: a window" + rest);
  EXPECT_EQ(cross_error([](auto& p) { p.attention.window_right = 3; }),
            "MultiHeadAttention::Create: a window" + rest);
  EXPECT_EQ(cross_error([](auto& p) {
              p.attention.alibi_slopes = {1, 1, 1, 1};
            }),
            "MultiHeadAttention::Create: alibi_slopes" + rest);
  EXPECT_EQ(cross_error([](auto& p) { p.rope.emplace(); }),
            "MultiHeadAttention::Create: rope" + rest);
  EXPECT_EQ(cross_error([](auto& p) { p.own_cache = true; }),
            "MultiHeadAttention::Create: own_cache = true" + rest);
}

TEST(LayerErrors, OfWeights) {
  EXPECT_EQ(CreateError([](auto&, auto& w) { w.query.data = w.query.data.first(572); }),
            "MultiHeadAttention::Create: query has 572 bytes; expected 576 for [12, 12] of F32");
  EXPECT_EQ(CreateError([](auto&, auto& w) { w.key.data = w.query.data; }),
            "MultiHeadAttention::Create: key has 576 bytes; expected 288 for [6, 12] of F32");
  EXPECT_EQ(CreateError([](auto&, auto& w) { w.value.type = WeightType::kF16; }),
            "MultiHeadAttention::Create: value has 288 bytes; expected 144 for [6, 12] of F16");
  EXPECT_EQ(CreateError([](auto&, auto& w) { w.output.type = WeightType::kQ4_0; }),
            "MultiHeadAttention::Create: output [12, 12]: 12 is not a multiple of the block of Q4_0"
            " = 32");
  EXPECT_EQ(CreateError([](auto&, auto& w) { w.output.type = static_cast<WeightType>(5); }),
            "MultiHeadAttention::Create: output has type = 5; expected a WeightType");
  EXPECT_EQ(CreateError([](auto&, auto& w) { w.output.bias = w.output.bias.first(11); }),
            "MultiHeadAttention::Create: output has 11 biases; expected 12 or none");
  EXPECT_EQ(CreateError([](auto& p, auto&) {
              p.memory_dim = 7;
              p.attention.causal = false;
            }),
            "MultiHeadAttention::Create: key has 288 bytes; expected 168 for [6, 7] of F32");
}

/// Outputs that an error must leave alone.
class LayerCallErrors : public ::testing::Test {
 protected:
  std::string Message(const Status& status) {
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    for (float value : out_) EXPECT_EQ(value, 7);
    return status.message();
  }

  Matrices matrices_ = RandomMatrices(Params(), true, 32);
  std::vector<float> x_ = RandomFloats(7 * 12, 81);
  std::vector<float> out_ = std::vector<float>(7 * 12, 7);
};

TEST_F(LayerCallErrors, OfSelfAttention) {
  MultiHeadAttention layer = Make(Params(), matrices_);
  EXPECT_EQ(Message(layer.Forward(7, x_.data(), out_.data())),
            "MultiHeadAttention::Forward: q_len = 7; expected 0..6");
  EXPECT_EQ(Message(layer.Forward(-1, x_.data(), out_.data())),
            "MultiHeadAttention::Forward: q_len = -1; expected 0..6");
  EXPECT_EQ(Message(layer.Forward(2, nullptr, out_.data())),
            "MultiHeadAttention::Forward: x is null with q_len = 2");
  EXPECT_EQ(Message(layer.Forward(2, x_.data(), nullptr)),
            "MultiHeadAttention::Forward: out is null with q_len = 2");
  EXPECT_EQ(
      Message(layer.Forward(2, x_.data(), 2, x_.data(), out_.data())),
      "MultiHeadAttention::Forward: memory_dim = 0; expected more than 0 for cross attention");
  EXPECT_EQ(Message(layer.ForwardAgain(2, x_.data(), out_.data())),
            "MultiHeadAttention::ForwardAgain: memory_dim = 0; expected more than 0 for cross"
            " attention");
  EXPECT_EQ(Message(layer.Append(2, x_.data(), out_.data())),
            "MultiHeadAttention::Append: own_cache = false; expected true");
  EXPECT_EQ(Message(layer.Truncate(0)),
            "MultiHeadAttention::Truncate: own_cache = false; expected true");
  EXPECT_TRUE(layer.Forward(0, nullptr, nullptr).ok());
  EXPECT_EQ(layer.length(), 0);
}

TEST_F(LayerCallErrors, OfCrossAttention) {
  MultiHeadAttentionParams params = Params();
  params.memory_dim = 12;
  params.attention.causal = false;
  MultiHeadAttention layer = Make(params, matrices_);
  EXPECT_EQ(Message(layer.ForwardAgain(2, x_.data(), out_.data())),
            "MultiHeadAttention::ForwardAgain: no call has given a memory");
  EXPECT_EQ(Message(layer.Forward(2, x_.data(), out_.data())),
            "MultiHeadAttention::Forward: memory_dim = 12; expected 0 for self attention");
  EXPECT_EQ(Message(layer.Forward(2, x_.data(), 3, nullptr, out_.data())),
            "MultiHeadAttention::Forward: memory is null with kv_len = 3");
  EXPECT_EQ(Message(layer.Forward(2, x_.data(), 11, x_.data(), out_.data())),
            "MultiHeadAttention::Forward: kv_len = 11; expected 0..10");
  // A refused call does not replace the memory of the one before.
  std::vector<float> first(24), second(24);
  ASSERT_TRUE(layer.Forward(2, x_.data(), 5, x_.data() + 12, first.data()).ok());
  EXPECT_EQ(Message(layer.Forward(2, nullptr, 3, x_.data(), out_.data())),
            "MultiHeadAttention::Forward: x is null with q_len = 2");
  ASSERT_TRUE(layer.ForwardAgain(2, x_.data(), second.data()).ok());
  EXPECT_EQ(second, first);
}

TEST_F(LayerCallErrors, OfACache) {
  MultiHeadAttention layer = Make(Params(), matrices_);
  KvCacheParams cache_params;
  cache_params.layers = {layer.cache_shape(), {2, 4, 0}};
  cache_params.k_type = cache_params.v_type = KvType::kF32;
  cache_params.max_tokens = 64;
  cache_params.capacity_bytes = std::int64_t{1} << 20;
  KvCache cache = *KvCache::Create(cache_params);
  const SequenceId sequence = *cache.CreateSequence();
  ASSERT_TRUE(cache.Reserve(sequence, 3).ok());
  const auto error = [&](std::int64_t index, SequenceId id, std::int64_t q_len) {
    return Message(layer.Forward(cache, index, id, q_len, x_.data(), out_.data()));
  };
  EXPECT_EQ(error(2, sequence, 1), "MultiHeadAttention::Forward: layer = 2; expected 0..1");
  EXPECT_EQ(error(1, sequence, 1),
            "MultiHeadAttention::Forward: head_dim = 3 differs from head_dim = 4 of layer 1 in the"
            " cache");
  EXPECT_EQ(error(0, SequenceId{77}, 1),
            "MultiHeadAttention::Forward: sequence = 77 is not in the cache");
  EXPECT_EQ(error(0, sequence, 4),
            "MultiHeadAttention::Forward: q_len = 4 exceeds the 3 tokens that the cache holds room"
            " for");
  EXPECT_EQ(error(0, sequence, -1), "MultiHeadAttention::Forward: q_len = -1; expected 0..6");
  ASSERT_TRUE(cache.Reserve(sequence, 8).ok());
  EXPECT_EQ(error(0, sequence, 4), "MultiHeadAttention::Forward: kv_len = 11; expected 0..10");
}

TEST_F(LayerCallErrors, ARefusedAppendKeepsTheCache) {
  MultiHeadAttentionParams params = Params();
  params.own_cache = true;
  MultiHeadAttention layer = Make(params, matrices_), other = Make(params, matrices_);
  std::vector<float> first(72), a(48), b(48);
  for (MultiHeadAttention* each : {&layer, &other})
    ASSERT_TRUE(each->Append(6, x_.data(), first.data()).ok());
  EXPECT_EQ(Message(layer.Append(7, x_.data(), out_.data())),
            "MultiHeadAttention::Append: q_len = 7; expected 0..6");
  EXPECT_EQ(Message(layer.Append(2, nullptr, out_.data())),
            "MultiHeadAttention::Append: x is null with q_len = 2");
  const Status full = layer.Append(5, x_.data(), out_.data());
  EXPECT_EQ(full.code(), StatusCode::kOutOfPages);
  EXPECT_EQ(full.message(), "KvCache::Reserve: 6 + 5 tokens; max_tokens = 10");
  const std::vector<float> bias(12, 0);
  ForwardOptions narrow;
  narrow.bias.bias = {bias.data(), 7, 0, 0, 0};  // for 8 keys
  EXPECT_NE(Message(layer.Append(2, x_.data(), out_.data(), narrow)), "");
  EXPECT_EQ(layer.length(), 6);
  ASSERT_TRUE(layer.Append(4, x_.data() + 12, a.data()).ok());
  ASSERT_TRUE(other.Append(4, x_.data() + 12, b.data()).ok());
  EXPECT_EQ(a, b);
}

}  // namespace
}  // namespace manyhead
