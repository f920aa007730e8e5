#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "manyhead/prune.h"
#include "manyhead/session.h"
#include "runtime/formats/gguf.h"
#include "runtime/formats/gguf_output.h"
#include "tests/heads/ablation_testing.h"
#include "tests/support/model_files.h"
#include "tests/support/test_name.h"

namespace manyhead {
namespace {

using testing::Ablated;
using testing::Distance;
using ::testing::ElementsAre;
using testing::Exact;
using ::testing::HasSubstr;
using testing::LoadTiny;
using testing::LogitsAfter;
using testing::SomeIds;
using testing::TempDir;
using testing::TinyModel;

/// A model whose layers have 6 heads that share 3 KV heads.
TinyModel Tiny(const std::string& family = "llama") {
  TinyModel tiny;
  tiny.family = family;
  tiny.layers = 3;
  tiny.context = 400;
  tiny.num_heads = 6;
  tiny.num_kv_heads = 3;
  tiny.biases = family == "qwen2";
  tiny.MakeWeights(31);
  return tiny;
}

Ablation Without(const ModelConfig& config, const std::vector<KvHeadId>& removed) {
  Ablation ablation;
  for (const KvHeadId& id : removed) {
    const LayerConfig& layer = config.layers[static_cast<std::size_t>(id.layer)];
    const std::int64_t group = layer.num_heads / layer.num_kv_heads;
    for (std::int64_t h = id.kv_head * group; h < (id.kv_head + 1) * group; ++h)
      ablation.edits.push_back({{id.layer, h}});
  }
  return ablation;
}

class Prune : public ::testing::Test {
 protected:
  double Fit(const Model& model, const std::vector<KvHeadId>& removed) {
    SessionOptions options;
    options.context = std::ssize(ids_);
    Session session = Ablated(model, options, Without(model.config(), removed));
    std::vector<double> nll(ids_.size() - 1);
    EXPECT_TRUE(session.Score(ids_, nll).ok());
    double sum = 0, count = 0;
    for (std::size_t i = 0; i < nll.size(); ++i)
      if (i / 64 % 3 != 2) {
        sum += nll[i];
        ++count;
      }
    return sum / count;
  }

  std::vector<TokenId> ids_ = SomeIds(300);
};

TEST_F(Prune, StaysWithinTheLimit) {
  const Model model = LoadTiny(Tiny());
  const double before = Fit(model, {});
  std::size_t most = 0;
  for (const double max_rise : {0.0, 0.05, 0.2, 10.0}) {
    const Result<Pruning> pruning = PruneHeads(model, ids_, {.max_rise = max_rise});
    ASSERT_TRUE(pruning.ok()) << pruning.status().message();
    EXPECT_NEAR(pruning->before.fit, before, 1e-6);
    EXPECT_NEAR(pruning->after.fit, Fit(model, pruning->removed), 1e-6);
    EXPECT_LE(pruning->after.fit - pruning->before.fit, max_rise);
    EXPECT_EQ(pruning->tokens, 300);
    EXPECT_EQ(pruning->held_out_tokens, 64);
    const double share = 64.0 / 299;
    EXPECT_NEAR(pruning->after.mean,
                share * pruning->after.held_out + (1 - share) * pruning->after.fit, 1e-9);
    EXPECT_TRUE(std::is_sorted(pruning->removed.begin(), pruning->removed.end()));
    most = pruning->removed.size();
    for (std::int64_t layer = 0; layer < 3; ++layer)
      EXPECT_LE(std::count_if(pruning->removed.begin(), pruning->removed.end(),
                              [&](const KvHeadId& id) { return id.layer == layer; }),
                2);
  }
  EXPECT_EQ(most, 6) << "every layer keeps one of its 3 KV heads";
}

TEST_F(Prune, EffectsAreThoseOfOneHeadAlone) {
  const Model model = LoadTiny(Tiny());
  const Result<Pruning> pruning = PruneHeads(model, ids_, {.max_rise = 0});
  ASSERT_TRUE(pruning.ok());
  ASSERT_EQ(pruning->effects.size(), 9);
  for (std::size_t i = 0; i < 9; ++i) {
    const KvHeadEffect& effect = pruning->effects[i];
    EXPECT_NEAR(effect.fit_after, Fit(model, {effect.kv_head}), 1e-6);
    EXPECT_GE(effect.fit_after, pruning->effects[i == 0 ? 0 : i - 1].fit_after);
  }
}

TEST_F(Prune, AtMostSoManyHeads) {
  const Model model = LoadTiny(Tiny());
  const Result<Pruning> pruning = PruneHeads(model, ids_, {.max_rise = 10, .max_kv_heads = 2});
  ASSERT_TRUE(pruning.ok());
  std::vector<KvHeadId> best = {pruning->effects[0].kv_head, pruning->effects[1].kv_head};
  std::sort(best.begin(), best.end());
  EXPECT_EQ(pruning->removed, best);
}

TEST_F(Prune, AsManyFromEveryLayer) {
  const Model model = LoadTiny(Tiny());
  for (const std::int64_t most : {2, 3, 5, 6, 0}) {
    const Result<Pruning> pruning =
        PruneHeads(model, ids_, {.max_rise = 10, .max_kv_heads = most, .uniform = true});
    ASSERT_TRUE(pruning.ok());
    EXPECT_EQ(pruning->removed.size(), most == 0 ? 6 : most / 3 * 3);
    EXPECT_NEAR(pruning->after.fit, Fit(model, pruning->removed), 1e-6);
  }
}

TEST_F(Prune, RefusalsNameTheRange) {
  const Model model = LoadTiny(Tiny());
  const auto refusal = [&](const Model& of, const std::vector<TokenId>& ids,
                           const PruneOptions& options) {
    const Status status = PruneHeads(of, ids, options).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    return status.message();
  };
  EXPECT_THAT(refusal(model, SomeIds(255), {}),
              HasSubstr("PruneHeads: the text has 255 tokens; expected at least 256"));
  EXPECT_THAT(refusal(model, ids_, {.max_rise = -1}), HasSubstr("max_rise = -1; expected"));
  EXPECT_THAT(refusal(model, ids_, {.max_rise = NAN}), HasSubstr("max_rise = nan; expected"));
  EXPECT_THAT(refusal(model, ids_, {.max_kv_heads = -1}), HasSubstr("max_kv_heads = -1; expected"));
  TinyModel one = Tiny();
  one.num_kv_heads = 1;
  one.MakeWeights(1);
  EXPECT_THAT(refusal(LoadTiny(one), ids_, {}),
              HasSubstr("every layer has 1 KV head; expected at least 2, of which one stays"));
}

TEST_F(Prune, AnInterruptKeepsWhatIsKnown) {
  const Model model = LoadTiny(Tiny());
  std::atomic<bool> cancel = false;
  PruneOptions options;
  options.max_rise = 10;
  options.text.cancel = &cancel;
  options.text.on_progress = [&](std::int64_t done, std::int64_t) { cancel = done == 4; };
  const Result<Pruning> pruning = PruneHeads(model, ids_, options);
  ASSERT_TRUE(pruning.ok());
  EXPECT_TRUE(pruning->interrupted);
  EXPECT_TRUE(pruning->removed.empty());
  EXPECT_EQ(pruning->effects.size(), 4);
}

TEST(PruneFiles, ThePolicyIsWhatSessionsRead) {
  const Model model = LoadTiny(Tiny());
  const std::vector<KvHeadId> removed = {{0, 2}, {2, 0}, {2, 1}};
  SessionOptions options = Exact();
  options.kv_policy = FormatRemoved(removed);
  Session policy = *Session::Create(model, options);
  Session ablated = Ablated(model, Exact(), Without(model.config(), removed));
  EXPECT_EQ(LogitsAfter(policy, SomeIds(50)), LogitsAfter(ablated, SomeIds(50)));
  options.kv_policy = FormatRemoved({});
  Session whole = *Session::Create(model, options);
  Session plain = *Session::Create(model, Exact());
  EXPECT_EQ(LogitsAfter(whole, SomeIds(50)), LogitsAfter(plain, SomeIds(50)));
  const TempDir folder;
  ASSERT_TRUE(WriteRemoved(removed, folder.File("policy")).ok());
  std::ifstream file(folder.File("policy"));
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}), FormatRemoved(removed));
  EXPECT_EQ(WriteRemoved(removed, folder.File("none/policy")).code(), StatusCode::kIoError);
}

class PrunedModel : public ::testing::TestWithParam<const char*> {};

TEST_P(PrunedModel, HasTheLogitsOfTheAblation) {
  const Model model = LoadTiny(Tiny(GetParam()));
  const TempDir folder;
  const std::vector<std::vector<KvHeadId>> cases = {
      {{0, 0}}, {{1, 1}, {2, 2}}, {{0, 1}, {0, 2}, {2, 0}}, {{0, 0}, {1, 1}, {2, 2}}, {}};
  for (const std::vector<KvHeadId>& removed : cases) {
    const std::string path = folder.File("pruned.gguf");
    const Status status = WritePrunedModel(model, removed, path);
    ASSERT_TRUE(status.ok()) << status.message();
    const Result<Model> pruned = Model::Load(path);
    ASSERT_TRUE(pruned.ok()) << pruned.status().message();
    std::vector<std::int64_t> kept(3, 3);
    for (const KvHeadId& id : removed) --kept[static_cast<std::size_t>(id.layer)];
    for (std::size_t l = 0; l < 3; ++l) {
      EXPECT_EQ(pruned->config().layers[l].num_kv_heads, kept[l]);
      EXPECT_EQ(pruned->config().layers[l].num_heads, 2 * kept[l]);
      EXPECT_EQ(pruned->config().layers[l].head_dim, 6);
    }
    Session of_file = *Session::Create(*pruned, Exact());
    Session ablated = Ablated(model, Exact(), Without(model.config(), removed));
    EXPECT_LT(Distance(LogitsAfter(of_file, SomeIds(50)), LogitsAfter(ablated, SomeIds(50))), 1e-4);
    EXPECT_LT(Distance(LogitsAfter(of_file, SomeIds(1)), LogitsAfter(ablated, SomeIds(1))), 1e-4);
    EXPECT_EQ(of_file.cache().usage().used_bytes, ablated.cache().usage().used_bytes);
    EXPECT_EQ(pruned->weight_bytes() == model.weight_bytes(), removed.empty());
  }
}

INSTANTIATE_TEST_SUITE_P(Families, PrunedModel,
                         ::testing::Values("llama", "qwen2", "qwen3", "gemma3"),
                         [](const auto& test) { return std::string(test.param); });

TEST(PruneFiles, OneCountWhereLayersAreAlike) {
  const Model model = LoadTiny(Tiny());
  const TempDir folder;
  const std::string path = folder.File("pruned.gguf");
  const std::vector<KvHeadId> alike = {{0, 0}, {1, 2}, {2, 1}}, unlike = {{1, 0}};
  ASSERT_TRUE(WritePrunedModel(model, alike, path).ok());
  {
    const Result<GgufFile> file = GgufFile::Open(path);
    ASSERT_TRUE(file.ok()) << file.status().message();
    EXPECT_EQ(file->Count("llama.attention.head_count"), 1);
    EXPECT_EQ(**file->GetInt("llama.attention.head_count"), 4);
    EXPECT_EQ(**file->GetInt("llama.attention.head_count_kv"), 2);
    EXPECT_EQ(**file->GetInt("llama.attention.key_length"), 6);
    EXPECT_EQ(**file->GetInt("llama.attention.value_length"), 6);
    EXPECT_EQ(**file->GetString("general.name"), "tiny");
  }
  ASSERT_TRUE(WritePrunedModel(model, unlike, path).ok());
  const Result<GgufFile> file = GgufFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_THAT(**file->GetInts("llama.attention.head_count"), ElementsAre(6, 4, 6));
  EXPECT_THAT(**file->GetInts("llama.attention.head_count_kv"), ElementsAre(3, 2, 3));
}

TEST(PruneFiles, RefusalsLeaveNoFile) {
  const Model model = LoadTiny(Tiny());
  const TempDir folder;
  const std::string path = folder.File("pruned.gguf");
  const auto refusal = [&](const std::vector<KvHeadId>& removed) {
    const Status status = WritePrunedModel(model, removed, path);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
    return status.message();
  };
  EXPECT_THAT(refusal({{3, 0}}), HasSubstr("WritePrunedModel: layer = 3; expected 0..2"));
  EXPECT_THAT(refusal({{1, 3}}), HasSubstr("kv_head = 3 of layer 1; expected 0..2"));
  EXPECT_THAT(refusal({{1, 0}, {1, 0}}), HasSubstr("KV head 0 of layer 1 is removed twice"));
  EXPECT_THAT(refusal({{1, 0}, {1, 1}, {1, 2}}),
              HasSubstr("layer 1 would have 0 of its 3 KV heads left; expected at least 1"));
  const std::vector<KvHeadId> removed = {{0, 0}};
  EXPECT_EQ(WritePrunedModel(model, removed, folder.File("none/pruned.gguf")).code(),
            StatusCode::kIoError);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

/// A model with W_O in Q8_0, whose blocks of 32 span heads of 24 numbers.
std::string WriteBlockModel(const TempDir& folder) {
  TinyModel tiny;
  tiny.layers = 1;
  tiny.num_heads = tiny.num_kv_heads = 4;
  tiny.head_dim = 24;
  tiny.MakeWeights(8);
  std::vector<float> w = tiny.tensors.at("blk.0.attn_output.weight");
  tiny.tensors.erase("blk.0.attn_output.weight");
  std::string blocks;
  for (std::size_t i = 0; i < w.size(); i += 32) {
    const std::uint16_t scale = 0x2000;  // f16 2^-7
    blocks.append(reinterpret_cast<const char*>(&scale), 2);
    for (std::size_t j = i; j < i + 32; ++j)
      blocks.push_back(static_cast<char>(std::lround(std::clamp(w[j] * 128, -127.0F, 127.0F))));
  }
  testing::GgufWriter file = tiny.ToGguf();
  file.AddTensor("blk.0.attn_output.weight", WeightType::kQ8_0, {96, tiny.d_model}, blocks);
  file.Write(folder.File("blocks.gguf"));
  return folder.File("blocks.gguf");
}

TEST(PruneFiles, BlocksAreCutOnlyWhenWidened) {
  const TempDir folder;
  const Result<Model> model = Model::Load(WriteBlockModel(folder));
  ASSERT_TRUE(model.ok()) << model.status().message();
  const std::string path = folder.File("pruned.gguf");
  const std::vector<KvHeadId> removed = {{0, 1}};
  const Status status = WritePrunedModel(*model, removed, path);
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_THAT(status.message(), HasSubstr("tensor blk.0.attn_output.weight would be cut at column "
                                          "24, inside a block of 32 of Q8_0"));
  EXPECT_FALSE(std::filesystem::exists(path));
  ASSERT_TRUE(WritePrunedModel(*model, removed, path, {.widen = true}).ok());
  const Result<Model> pruned = Model::Load(path);
  ASSERT_TRUE(pruned.ok()) << pruned.status().message();
  Session of_file = *Session::Create(*pruned, Exact());
  Session ablated = Ablated(*model, Exact(), Without(model->config(), removed));
  EXPECT_LT(Distance(LogitsAfter(of_file, SomeIds(50)), LogitsAfter(ablated, SomeIds(50))), 1e-4);
}

// Queries, keys and values of GPT-2 are rows of one matrix, of which each part is cut.
TEST(PruneFiles, FusedProjectionsAreCutInEachPart) {
  const Result<Model> model = Model::Load(MANYHEAD_SOURCE_DIR "/tests/model/data/gpt2.gguf");
  ASSERT_TRUE(model.ok()) << model.status().message();
  const std::vector<KvHeadId> removed = {{0, 1}, {0, 3}, {1, 0}};
  const TempDir folder;
  const Status status = WritePrunedModel(*model, removed, folder.File("pruned.gguf"));
  ASSERT_TRUE(status.ok()) << status.message();
  const Result<Model> pruned = Model::Load(folder.File("pruned.gguf"));
  ASSERT_TRUE(pruned.ok()) << pruned.status().message();
  EXPECT_EQ(pruned->config().layers[0].num_heads, 2);
  EXPECT_EQ(pruned->config().layers[1].num_heads, 3);
  SessionOptions options = Exact();
  options.context = model->config().num_positions;
  Session of_file = *Session::Create(*pruned, options);
  Session ablated = Ablated(*model, options, Without(model->config(), removed));
  Session whole = *Session::Create(*model, options);
  std::vector<TokenId> ids = SomeIds(20);
  for (TokenId& id : ids) id %= 256;  // its vocabulary has one token less
  const std::vector<float> logits = LogitsAfter(of_file, ids);
  EXPECT_LT(Distance(logits, LogitsAfter(ablated, ids)), 1e-4);
  EXPECT_GT(Distance(logits, LogitsAfter(whole, ids)), 1e-2);
}

/// Models with low-bit weights; one that is absent is a visible skip.
class PrunedRealModel : public ::testing::TestWithParam<const char*> {};

TEST_P(PrunedRealModel, HasTheLogitsOfTheAblation) {
  const std::string path = FindModel(GetParam());
  if (path.empty()) GTEST_SKIP() << "model not fetched: tools/fetch_model.py " << GetParam();
  const Result<Model> model = Model::Load(path);
  ASSERT_TRUE(model.ok());
  if (model->config().layers[0].num_kv_heads == 1) GTEST_SKIP() << "has 1 KV head";
  const auto layers = static_cast<std::int64_t>(model->config().layers.size());
  const std::vector<KvHeadId> removed = {{0, 1}, {layers / 2, 0}, {layers - 1, 1}};
  const TempDir folder;
  const Status status = WritePrunedModel(*model, removed, folder.File("pruned.gguf"));
  ASSERT_TRUE(status.ok()) << status.message();
  const Result<Model> pruned = Model::Load(folder.File("pruned.gguf"));
  ASSERT_TRUE(pruned.ok()) << pruned.status().message();
  EXPECT_LT(pruned->weight_bytes(), model->weight_bytes());
  Session of_file = *Session::Create(*pruned, Exact());
  Session ablated = Ablated(*model, Exact(), Without(model->config(), removed));
  Session whole = *Session::Create(*model, Exact());
  const std::vector<TokenId> ids =
      *model->tokenizer().Encode("The cat sat on the mat. The cat sat");
  const std::vector<float> logits = LogitsAfter(of_file, ids);
  EXPECT_LT(Distance(logits, LogitsAfter(ablated, ids)), 1e-4);
  EXPECT_GT(Distance(logits, LogitsAfter(whole, ids)), 1e-2);
  for (std::size_t i = 0; i < 3; ++i) {
    const auto next = std::span(ids).subspan(i + 1, 1);
    EXPECT_LT(Distance(LogitsAfter(of_file, next), LogitsAfter(ablated, next)), 1e-4);
  }
}

/// `model` with zeros in the blocks of W_O that one head has.
std::string WriteZeroed(const Model& model, const HeadId& id, const std::string& path) {
  Result<GgufFile> file = GgufFile::Open(model.path());
  EXPECT_TRUE(file.ok());
  const LayerConfig& layer = model.config().layers[static_cast<std::size_t>(id.layer)];
  const std::string name = "blk." + std::to_string(id.layer) + ".attn_output.weight";
  GgufOutput output;
  for (const GgufFile::KeyBytes& key : file->key_bytes()) output.AddKey(key.bytes);
  for (const StoredTensor& tensor : file->tensors()) {
    std::vector<std::byte> bytes(tensor.data, tensor.data + tensor.size_bytes);
    if (tensor.name == name) {
      const WeightBlock block = WeightBlockOf(tensor.type);
      EXPECT_EQ(layer.head_dim_v % block.elements, 0);
      const std::int64_t row_bytes = tensor.size_bytes / tensor.rows();
      const std::int64_t head_bytes = layer.head_dim_v / block.elements * block.bytes;
      for (std::int64_t row = 0; row < tensor.rows(); ++row)
        std::fill_n(bytes.begin() + row * row_bytes + id.head * head_bytes, head_bytes,
                    std::byte{0});
    }
    output.AddTensor(
        {std::string(tensor.name),
         tensor.type,
         {tensor.shape, tensor.shape + tensor.num_dims},
         [bytes = std::move(bytes)](const GgufOutput::Sink& sink) { return sink(bytes); }});
  }
  const Status status = output.Write(path, file->alignment());
  EXPECT_TRUE(status.ok()) << status.message();
  return path;
}

// The numbers of a block of zeros are zeros in every type.
TEST_P(PrunedRealModel, AHeadOffIsItsBlocksOfWoZeroed) {
  const std::string path = FindModel(GetParam());
  if (path.empty()) GTEST_SKIP() << "model not fetched: tools/fetch_model.py " << GetParam();
  const Result<Model> model = Model::Load(path);
  ASSERT_TRUE(model.ok());
  const TempDir folder;
  const HeadId id = {1, 2};
  const Result<Model> zeroed = Model::Load(WriteZeroed(*model, id, folder.File("zeroed.gguf")));
  ASSERT_TRUE(zeroed.ok()) << zeroed.status().message();
  for (const MathMode math : {MathMode::kExact, MathMode::kFast}) {
    SessionOptions options = Exact();
    options.math = math;
    Session of_file = *Session::Create(*zeroed, options);
    Session ablated = Ablated(*model, options, {{HeadEdit{id}}});
    Session whole = *Session::Create(*model, options);
    const std::vector<TokenId> ids = SomeIds(24);
    const std::vector<float> logits = LogitsAfter(ablated, ids);
    EXPECT_LT(Distance(logits, LogitsAfter(of_file, ids)), 1e-4);
    EXPECT_GT(Distance(logits, LogitsAfter(whole, ids)), 1e-2);
    for (int i = 0; i < 3; ++i) {
      const std::vector<float> next = LogitsAfter(ablated, SomeIds(1));
      EXPECT_LT(Distance(next, LogitsAfter(of_file, SomeIds(1))), 1e-4);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, PrunedRealModel,
                         ::testing::Values("bundled", "gemma3-270m", "qwen2.5-coder-0.5b"),
                         [](const auto& test) { return testing::TestName(test.param); });

}  // namespace
}  // namespace manyhead
