#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "manyhead/manyhead.h"
#include "tests/support/model_files.h"
#include "tests/support/temp_dir.h"

/// The examples of tools/docs/heads.md, run. Regions between "// [name]" lines are what it shows.

namespace {

/// Numbers in [-1, 1).
std::vector<float> Random(std::int64_t count, unsigned seed) {
  std::mt19937 bits(seed);
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& x : values) x = static_cast<float>(bits() >> 8) * 0x1p-23F - 1;
  return values;
}

double Distance(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    most = std::max(most, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
  return most;
}

// [layer]
/// A layer of 4 heads that share 2 KV heads.
struct Layer {
  static constexpr std::int64_t d_model = 32, H = 4, K = 2, D = 8;
  std::vector<float> w_q = Random(H * D * d_model, 1);  // [H*D, d_model]
  std::vector<float> w_k = Random(K * D * d_model, 2);  // [K*D, d_model]
  std::vector<float> w_v = Random(K * D * d_model, 3);  // [K*D, d_model]
  std::vector<float> w_o = Random(d_model * H * D, 4);  // [d_model, H*D]

  /// Its output for x [T, d_model], and each head's term [H, T, d_model] of it.
  std::vector<float> Run(const std::vector<float>& x, std::vector<float>* terms = nullptr,
                         bool sequential = false) const {
    manyhead::MultiHeadAttentionParams params;
    params.d_model = d_model;
    params.attention.num_heads = H;
    params.attention.num_kv_heads = K;
    params.attention.head_dim = D;
    params.attention.max_q_len = static_cast<std::int64_t>(x.size()) / d_model;
    params.sequential = sequential;
    auto layer = manyhead::MultiHeadAttention::Create(
        params, {manyhead::F32Weights(w_q), manyhead::F32Weights(w_k), manyhead::F32Weights(w_v),
                 manyhead::F32Weights(w_o)});
    std::vector<float> out(x.size());
    manyhead::ForwardOptions options;
    if (terms != nullptr) {
      terms->resize(H * x.size());
      options.head_outputs.terms = terms->data();
    }
    const manyhead::Status status =
        layer->Forward(params.attention.max_q_len, x.data(), out.data(), options);
    return status.ok() ? out : std::vector<float>();
  }
};
// [layer]

// [remove]
/// The layer without the columns of W_O that a head has.
Layer WithoutOutput(Layer layer, std::int64_t head) {
  for (std::int64_t row = 0; row < Layer::d_model; ++row)
    std::fill_n(layer.w_o.begin() + (row * Layer::H + head) * Layer::D, Layer::D, 0.0F);
  return layer;
}

/// The layer's output without a head's term.
std::vector<float> WithoutTerm(const Layer& layer, const std::vector<float>& x, std::int64_t head) {
  std::vector<float> terms, out = layer.Run(x, &terms);
  for (std::size_t i = 0; i < out.size(); ++i)
    out[i] -= terms[static_cast<std::size_t>(head) * out.size() + i];
  return out;
}
// [remove]

TEST(HeadsPage, RemovingWoIsRemovingTheHead) {
  const Layer layer;
  const std::vector<float> x = Random(12 * Layer::d_model, 5);
  for (std::int64_t head = 0; head < Layer::H; ++head) {
    const std::vector<float> removed = WithoutOutput(layer, head).Run(x);
    EXPECT_LT(Distance(removed, WithoutTerm(layer, x, head)), 1e-4);
    EXPECT_GT(Distance(removed, layer.Run(x)), 0.1);
  }
}

// [swap]
/// The layer with two heads of one group, and their columns of W_O, in each other's place.
Layer Swapped(Layer layer, std::int64_t a, std::int64_t b) {
  constexpr std::int64_t rows = Layer::D * Layer::d_model;  // rows of a head in W_q
  std::swap_ranges(layer.w_q.begin() + a * rows, layer.w_q.begin() + (a + 1) * rows,
                   layer.w_q.begin() + b * rows);
  for (std::int64_t row = 0; row < Layer::d_model; ++row) {
    const auto columns = layer.w_o.begin() + row * Layer::H * Layer::D;
    std::swap_ranges(columns + a * Layer::D, columns + (a + 1) * Layer::D, columns + b * Layer::D);
  }
  return layer;
}
// [swap]

TEST(HeadsPage, SwappingHeadsWithTheirBlocksChangesNothing) {
  const Layer layer;
  const std::vector<float> x = Random(12 * Layer::d_model, 6);
  EXPECT_LT(Distance(Swapped(layer, 2, 3).Run(x), layer.Run(x)), 1e-4);
  // Without the blocks of W_O, or across groups, which read other keys, it does.
  Layer half = Swapped(layer, 2, 3);
  half.w_o = layer.w_o;
  EXPECT_GT(Distance(half.Run(x), layer.Run(x)), 0.1);
  EXPECT_GT(Distance(Swapped(layer, 1, 2).Run(x), layer.Run(x)), 0.1);
}

TEST(HeadsPage, HeadsOneAfterTheOtherAddUpToAllAtOnce) {
  const Layer layer;
  const std::vector<float> x = Random(12 * Layer::d_model, 7);
  EXPECT_LT(Distance(layer.Run(x, nullptr, /*sequential=*/true), layer.Run(x)), 1e-4);
}

// [ablate]
/// Logits after `ids` with KV head 1 of layer 2 off, and of a file that does not have it.
manyhead::Status Compare(const std::string& path, const std::string& smaller,
                         const std::vector<manyhead::TokenId>& ids, std::vector<float>* ablated,
                         std::vector<float>* removed) {
  manyhead::SessionOptions options;
  options.math = manyhead::MathMode::kExact;
  const auto model = manyhead::Model::Load(path);
  if (!model.ok()) return model.status();
  const auto ablation = manyhead::ParseAblation("2.k1", model->config());
  if (!ablation.ok()) return ablation.status();
  auto session = manyhead::Session::Create(*model, options);
  if (!session.ok()) return session.status();
  if (auto status = session->SetAblation(*ablation); !status.ok()) return status;
  const auto logits = session->Append(ids);
  if (!logits.ok()) return logits.status();
  ablated->assign(logits->begin(), logits->end());

  const manyhead::KvHeadId kv_head = {.layer = 2, .kv_head = 1};
  if (auto status = WritePrunedModel(*model, {&kv_head, 1}, smaller); !status.ok()) return status;
  const auto without = manyhead::Model::Load(smaller);
  if (!without.ok()) return without.status();
  auto other = manyhead::Session::Create(*without, options);
  if (!other.ok()) return other.status();
  const auto same = other->Append(ids);
  if (!same.ok()) return same.status();
  removed->assign(same->begin(), same->end());
  return manyhead::Status();
}
// [ablate]

TEST(HeadsPage, AnAblatedModelIsTheFileWithoutTheHead) {
  const manyhead::testing::TempDir folder;
  std::vector<float> ablated, removed;
  const manyhead::Status status = Compare(manyhead::FindModel("bundled"), folder.File("less.gguf"),
                                          {1, 100, 101, 102, 100, 101}, &ablated, &removed);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_LT(Distance(ablated, removed), 1e-4);
}

}  // namespace
