#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "manyhead/session.h"
#include "runtime/architecture/architectures.h"
#include "runtime/architecture/gguf_keys.h"
#include "runtime/architecture/hf_keys.h"
#include "runtime/architecture/tensor_table.h"
#include "tests/model/load_tiny.h"
#include "tests/model/tiny_model.h"
#include "tests/support/temp_dir.h"

// Metadata keys that change results: each is used, harmless or refused, and a key that is absent or
// states that its feature is off means what other programs take it to mean.

namespace manyhead {
namespace {

using ::manyhead::testing::GgufWriter;
using ::manyhead::testing::LoadTiny;
using ::manyhead::testing::TempDir;
using ::manyhead::testing::TinyModel;
using ::testing::HasSubstr;
using ::testing::Not;

Result<Model> LoadFile(const GgufWriter& file) {
  const TempDir folder;
  const std::string path = folder.File("model.gguf");
  file.Write(path);
  return Model::Load(path);
}

std::string MessageOf(const GgufWriter& file) {
  const Result<Model> model = LoadFile(file);
  return model.ok() ? "no error" : model.status().message();
}

TinyModel Made(const std::string& family = "llama") {
  TinyModel tiny;
  tiny.family = family;
  tiny.MakeWeights(3);
  return tiny;
}

/// Logits after the last of `ids` against the formulas.
void ExpectFormulas(const Model& model, const TinyModel& tiny) {
  const std::vector<TokenId> ids = testing::SomeIds(21);
  SessionOptions options;
  options.k_type = options.v_type = KvType::kF32;
  options.math = MathMode::kExact;
  Result<Session> session = Session::Create(model, options);
  ASSERT_TRUE(session.ok()) << session.status().message();
  const auto logits = session->Append(ids);
  ASSERT_TRUE(logits.ok()) << logits.status().message();
  const auto expected = tiny.Logits(std::vector<int>(ids.begin(), ids.end())).back();
  for (std::size_t i = 0; i < expected.size(); ++i)
    EXPECT_NEAR(static_cast<double>((*logits)[i]), expected[i], 1e-3) << "token " << i;
}

// A public report (ggml-org/llama.cpp PR#17811): local layers rotate by base 10000 only if there
// are any.
TEST(MetadataKeys, Gemma3WithoutAWindowHasOneRotaryBase) {
  TinyModel tiny;
  tiny.family = "gemma3";
  tiny.layers = 7;
  tiny.d_model = 64;
  tiny.rope_base = 1e6;
  tiny.MakeWeights(3);
  const Model model = LoadTiny(tiny);
  for (const LayerConfig& layer : model.config().layers) {
    EXPECT_EQ(layer.window, 0);
    EXPECT_EQ(layer.rope, 0);
  }
  ExpectFormulas(model, tiny);
}

// A public report (ggml-org/llama.cpp PR#20746).
TEST(MetadataKeys, AttentionInBothDirectionsIsRefused) {
  EXPECT_THAT(MessageOf(Made().ToGguf().Add("llama.attention.causal", false)),
              HasSubstr("llama.attention.causal = false; expected true"));
  EXPECT_EQ(MessageOf(Made().ToGguf().Add("llama.attention.causal", true)), "no error");
  EXPECT_THAT(MessageOf(Made().ToGguf().Add("llama.attention.causal", 0U)),
              HasSubstr("'llama.attention.causal' is of type uint32; expected a bool"));
}

// A public report (aprender PR#1606): no epsilon is safe to assume.
TEST(MetadataKeys, AMissingEpsilonIsRefused) {
  for (const char* family : {"llama", "qwen2", "qwen3", "gemma3"}) {
    TinyModel tiny = Made(family);
    tiny.epsilon_key = false;
    EXPECT_THAT(MessageOf(tiny.ToGguf()),
                HasSubstr(std::string(family) + ".attention.layer_norm_rms_epsilon is missing"));
  }
}

TEST(MetadataKeys, AListOfBoolsIsOneOfIntegers) {
  TinyModel tiny;
  tiny.family = "gemma3";
  tiny.layers = 4;
  tiny.window = 3;
  tiny.MakeWeights(3);
  const std::string key = "gemma3.attention.sliding_window_pattern";
  for (const bool bools : {true, false}) {
    GgufWriter file = tiny.ToGguf();
    if (bools)
      file.Add(key, std::vector<bool>{true, false, false, true});
    else
      file.Add(key, std::vector<std::uint32_t>{1, 0, 0, 1});
    const Result<Model> model = LoadFile(file);
    ASSERT_TRUE(model.ok()) << model.status().message();
    std::vector<std::int64_t> windows;
    for (const LayerConfig& layer : model->config().layers) windows.push_back(layer.window);
    EXPECT_EQ(windows, (std::vector<std::int64_t>{3, 0, 0, 3}));
  }
}

// A public report (ggml-org/llama.cpp PR#21390).
TEST(MetadataKeys, ZeroTurnsAFeatureOff) {
  TinyModel tiny = Made();
  GgufWriter file = tiny.ToGguf();
  file.Add("llama.final_logit_softcapping", 0.0F).Add("llama.attn_logit_softcapping", 0.0F);
  file.Add("llama.rope.scaling.factor", 0.0F).Add("llama.rope.scale_linear", 0.0F);
  file.Add("llama.attention.scale", 0.0F).Add("llama.attention.sliding_window", 0U);
  const Result<Model> model = LoadFile(file);
  ASSERT_TRUE(model.ok()) << model.status().message();
  EXPECT_EQ(model->config().logit_softcap, 0);
  EXPECT_EQ(model->config().attention_softcap, 0);
  EXPECT_EQ(model->config().softmax_scale, 0);
  EXPECT_EQ(model->config().ropes[0].scaling, RopeScaling::kNone);
  ExpectFormulas(*model, tiny);
  EXPECT_THAT(
      MessageOf(Made().ToGguf().Add("llama.final_logit_softcapping", -1.0F)),
      HasSubstr("llama.final_logit_softcapping = -1; expected a finite number of at least"));
}

TEST(MetadataKeys, AnOriginalContextOfZeroIsTheTrainedOne) {
  TinyModel tiny;
  tiny.rope_scaling = "yarn";
  tiny.rope_factor = 8;
  tiny.head_dim = 16;
  tiny.MakeWeights(3);
  GgufWriter file = tiny.ToGguf();
  file.Add("llama.rope.scaling.original_context_length", 0U);
  const Result<Model> model = LoadFile(file);
  ASSERT_TRUE(model.ok()) << model.status().message();
  EXPECT_EQ(model->config().ropes[0].original_context, tiny.context);
}

// A public report (vllm-metal PR#720).
TEST(MetadataKeys, APartOfASplitModelIsNamed) {
  const auto part = [](std::uint16_t number) {
    return Made().ToGguf().Add("split.no", number).Add("split.count", std::uint16_t{2});
  };
  EXPECT_THAT(MessageOf(part(0)), HasSubstr("the file is part 1 of 2 of a split model"));
  EXPECT_THAT(MessageOf(part(1)), HasSubstr("the file is part 2 of 2 of a split model"));
  GgufWriter later;  // later parts have no other keys
  later.Add("split.no", std::uint16_t{1}).Add("split.count", std::uint16_t{2});
  EXPECT_THAT(MessageOf(later), HasSubstr("part 2 of 2"));
  EXPECT_EQ(MessageOf(Made().ToGguf().Add("split.count", std::uint16_t{1})), "no error");
}

TEST(MetadataKeys, AMessageHasThePathOnce) {
  const TempDir folder;
  const std::string path = folder.File("model.gguf");
  GgufWriter().Add("general.architecture", 7U).Write(path);
  const std::string message = Model::Load(path).status().message();
  EXPECT_THAT(message, ::testing::StartsWith(path + ": key 'general.architecture' is of type"));
  EXPECT_EQ(message.find(path, 1), std::string::npos) << message;
}

TEST(MetadataKeys, WhatIsNotComputedIsRefusedUnlessItIsOff) {
  for (const gguf_keys::Refused& refused : gguf_keys::RefusedKeys()) {
    const std::string key = "llama." + std::string(refused.key);
    EXPECT_THAT(MessageOf(Made().ToGguf().Add(key, 0.5F)), HasSubstr(key + " is set"));
    EXPECT_THAT(MessageOf(Made().ToGguf().Add(key, std::vector<std::int32_t>{0, 3})),
                HasSubstr(key + " is set"));
    EXPECT_THAT(MessageOf(Made().ToGguf().Add(key, "on")), HasSubstr(key + " is set"));
    EXPECT_EQ(MessageOf(Made().ToGguf().Add(key, static_cast<float>(refused.off))), "no error");
    EXPECT_EQ(MessageOf(Made().ToGguf().Add(key, false)), "no error");
    EXPECT_EQ(MessageOf(Made().ToGguf().Add(key, std::vector<std::int32_t>{0, 0})), "no error");
  }
}

TEST(MetadataKeys, WhatIsHarmlessChangesNothing) {
  for (const gguf_keys::Harmless& harmless : gguf_keys::HarmlessKeys()) {
    EXPECT_FALSE(harmless.why.empty()) << harmless.key;
    EXPECT_EQ(MessageOf(Made().ToGguf().Add("llama." + std::string(harmless.key), 3U)), "no error");
  }
}

template <class Keys>
void ExpectDisjoint(const Keys& used, const std::vector<std::string_view>& harmless,
                    const std::vector<std::string_view>& refused) {
  std::multiset<std::string_view> all(used.begin(), used.end());
  all.insert(harmless.begin(), harmless.end());
  all.insert(refused.begin(), refused.end());
  for (const std::string_view key : all) EXPECT_EQ(all.count(key), 1U) << key;
}

TEST(MetadataKeys, EveryKeyStandsInOneList) {
  std::vector<std::string_view> harmless, refused;
  for (const auto& one : gguf_keys::HarmlessKeys()) harmless.push_back(one.key);
  for (const auto& one : gguf_keys::RefusedKeys()) refused.push_back(one.key);
  ExpectDisjoint(gguf_keys::Used(), harmless, refused);
  harmless.clear();
  for (const auto& one : hf_keys::HarmlessKeys()) {
    EXPECT_FALSE(one.why.empty()) << one.key;
    harmless.push_back(one.key);
  }
  const auto off = hf_keys::RefusedKeys();
  ExpectDisjoint(hf_keys::Used(), harmless, {off.begin(), off.end()});
}

TEST(Architectures, AreFoundByTheNamesOfBothFormats) {
  std::set<std::string_view> gguf, hf;
  for (const Architecture& one : Architectures()) {
    if (!one.gguf.empty()) {
      EXPECT_TRUE(gguf.insert(one.gguf).second) << one.gguf;
      EXPECT_EQ(FindGgufArchitecture(one.gguf), &one);
    }
    EXPECT_TRUE(hf.insert(one.hf).second) << one.hf;
    EXPECT_EQ(FindHfArchitecture(one.hf), &one);
  }
  EXPECT_EQ(FindHfArchitecture("gemma3"), FindGgufArchitecture("gemma3"));
  EXPECT_EQ(FindGgufArchitecture(""), nullptr);
  EXPECT_EQ(FindHfArchitecture("bert"), nullptr);
}

TEST(TensorTable, FindsWhatItNames) {
  std::set<std::string> names;
  for (const TensorRow& row : TensorRows()) {
    const std::string name = GgufName(row, 17);
    EXPECT_TRUE(names.insert(name).second) << name;
    const auto place = FindGgufTensor(name);
    ASSERT_TRUE(place.has_value()) << name;
    EXPECT_EQ(place->row, &row);
    EXPECT_EQ(place->layer, row.per_layer() ? 17 : -1);
  }
  for (const char* name : {"", "blk.", "blk..attn_q.weight", "blk.x.attn_q.weight",
                           "blk.-1.attn_q.weight", "blk.1x.attn_q.weight", "blk.1.attn_q.weight.",
                           "blk.99999999999999999999.attn_q.weight", "token_embd.weight2"})
    EXPECT_FALSE(FindGgufTensor(name).has_value()) << name;
}

// Where a family may have biases, those that a file leaves out are zeros.
TEST(TensorTable, AnAbsentBiasBesideOthersIsZero) {
  TinyModel tiny;
  tiny.family = "qwen2";
  tiny.biases = true;
  tiny.MakeWeights(3);
  tiny.tensors.erase("blk.1.attn_k.bias");
  const Model model = LoadTiny(tiny);
  EXPECT_TRUE(model.config().qkv_bias);
  ExpectFormulas(model, tiny);
}

}  // namespace
}  // namespace manyhead
