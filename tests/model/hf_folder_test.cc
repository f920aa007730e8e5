#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "manyhead/session.h"
#include "tests/model/reference_logits.h"
#include "tests/support/isas.h"
#include "tests/support/read_bytes.h"
#include "tests/support/temp_dir.h"

// Tiny models of every family as folders, against logits of Hugging Face transformers in float32:
// make_hf_folders.py made data/hf/NAME.

namespace manyhead {
namespace {

using ::manyhead::testing::NextTokens;
using ::manyhead::testing::ReadBytes;
using ::manyhead::testing::TempDir;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

constexpr double kTolerance = 2e-4;
constexpr std::size_t kPrefill = 21, kSteps = 40;

std::string FolderOf(const std::string& name) {
  return std::string(MANYHEAD_SOURCE_DIR) + "/tests/model/data/hf/" + name;
}

/// The text that the script computes logits of.
std::vector<TokenId> Prompt() {
  std::vector<TokenId> ids;
  for (std::size_t i = 0; i < kPrefill + kSteps; ++i)
    ids.push_back(static_cast<TokenId>((7 * i * i + 3 * i + 1) % 70));
  return ids;
}

class HfFolders : public ::testing::TestWithParam<const char*> {};

/// The largest difference of any logit from the reference's, when the prompt is appended in chunks
/// of `chunk` tokens, then 40 tokens one by one.
double WorstDifference(const std::string& folder, const std::string& reference, std::size_t chunk,
                       Isa isa) {
  const std::vector<TokenId> ids = Prompt();
  const std::string bytes = ReadBytes(reference + "/logits.f32");
  const std::size_t row = bytes.size() / ids.size();
  EXPECT_EQ(bytes.size(), row * ids.size());
  const auto next = [&](std::size_t begin) {
    return begin < kPrefill ? NextTokens{std::min(chunk, kPrefill - begin), RowRole::kPrefill}
                            : NextTokens{1, RowRole::kDecode};
  };
  const auto expected = [&](std::size_t token) {
    std::vector<float> logits(row / sizeof(float));
    std::memcpy(logits.data(), bytes.data() + token * row, row);
    return std::vector<double>(logits.begin(), logits.end());
  };
  return testing::WorstDifference(folder, ids, isa, next, expected);
}

TEST_P(HfFolders, PrefillChunksAndDecodeStepsGiveTheReferencesLogits) {
  const std::string folder = FolderOf(GetParam());
  for (const Isa isa : SupportedIsas())
    for (const std::size_t chunk : {std::size_t{5}, kPrefill}) {
      SCOPED_TRACE(std::string(IsaName(isa)) + ", chunks of " + std::to_string(chunk));
      EXPECT_LE(WorstDifference(folder, folder, chunk, isa), kTolerance);
    }
}

INSTANTIATE_TEST_SUITE_P(, HfFolders,
                         ::testing::Values("llama", "llama-sharded", "llama-linear", "llama-llama3",
                                           "llama-yarn", "mistral", "qwen2", "qwen3", "gemma",
                                           "gemma2", "gemma3", "phi3", "phi3-short", "phi3-long",
                                           "gpt2", "gpt-neox", "gpt-neox-serial", "olmo2"),
                         [](const auto& test) {
                           std::string name = test.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

/// A copy of a folder whose config.json has `to` in the place of `from`.
void CopyEdited(const std::string& name, const TempDir& to_folder, const std::string& from,
                const std::string& to) {
  for (const auto& file : fs::directory_iterator(FolderOf(name)))
    fs::copy(file.path(), to_folder.path(), fs::copy_options::overwrite_existing);
  std::string config = ReadBytes(FolderOf(name) + "/config.json");
  const std::size_t at = config.find(from);
  ASSERT_NE(at, std::string::npos) << from;
  config.replace(at, from.size(), to);
  to_folder.Write("config.json", config);
}

/// A key that changes what is computed.
struct Edit {
  const char* name;
  const char* folder;
  const char* from;
  const char* to;
};
class HfEdits : public ::testing::TestWithParam<Edit> {};

// Each part of the computation shows in the logits: the comparison above could not pass without it.
TEST_P(HfEdits, AnyOtherValueGivesOtherLogits) {
  const TempDir folder;
  CopyEdited(GetParam().folder, folder, GetParam().from, GetParam().to);
  EXPECT_GT(WorstDifference(folder.path(), FolderOf(GetParam().folder), kPrefill, Isa::kScalar),
            10 * kTolerance);
}

constexpr Edit kEdits[] = {
    {"Epsilon", "llama", "\"rms_norm_eps\": 1e-06", "\"rms_norm_eps\": 1e-01"},
    {"RopeBase", "llama", "\"rope_theta\": 10000.0", "\"rope_theta\": 1000.0"},
    {"Activation", "llama", "\"hidden_act\": \"silu\"", "\"hidden_act\": \"gelu\""},
    {"LinearFactor", "llama-linear", "\"factor\": 2.5", "\"factor\": 2.0"},
    {"Llama3Factor", "llama-llama3", "\"factor\": 8.0", "\"factor\": 4.0"},
    {"YarnFactor", "llama-yarn", "\"factor\": 4.0", "\"factor\": 2.0"},
    {"Window", "mistral", "\"sliding_window\": 5", "\"sliding_window\": 6"},
    {"NoWindow", "mistral", "\"sliding_window\": 5", "\"sliding_window\": null"},
    {"Scale", "gemma2", "\"query_pre_attn_scalar\": 20", "\"query_pre_attn_scalar\": 12"},
    {"AttentionCap", "gemma2", "\"attn_logit_softcapping\": 3.0",
     "\"attn_logit_softcapping\": null"},
    {"LogitCap", "gemma2", "\"final_logit_softcapping\": 5.0", "\"final_logit_softcapping\": null"},
    {"LongFactors", "phi3-long", "\"original_max_position_embeddings\": 32,\n    \"partial",
     "\"original_max_position_embeddings\": 64,\n    \"partial"},
    {"Parallel", "gpt-neox", "\"use_parallel_residual\": true", "\"use_parallel_residual\": false"},
    {"RotaryPart", "gpt-neox", "\"partial_rotary_factor\": 0.25", "\"partial_rotary_factor\": 0.5"},
};
INSTANTIATE_TEST_SUITE_P(, HfEdits, ::testing::ValuesIn(kEdits),
                         [](const auto& test) { return std::string(test.param.name); });

/// A key that cannot be.
class HfRefused : public ::testing::TestWithParam<std::pair<Edit, const char*>> {};

TEST_P(HfRefused, NamesTheKeyAndTheValue) {
  const auto& [edit, message] = GetParam();
  const TempDir folder;
  CopyEdited(edit.folder, folder, edit.from, edit.to);
  const Result<Model> model = Model::Load(folder.path());
  ASSERT_FALSE(model.ok());
  EXPECT_THAT(model.status().message(), HasSubstr(message));
  EXPECT_THAT(model.status().message(), HasSubstr(folder.path() + ": "));
}

constexpr std::pair<Edit, const char*> kRefused[] = {
    {{"Family", "llama", "\"model_type\": \"llama\"", "\"model_type\": \"rwkv\""},
     "model_type = rwkv; expected one of llama, "},
    {{"NoFamily", "llama", "\"model_type\"", "\"x\""}, "config.json: model_type is missing"},
    {{"Activation", "llama", "\"silu\"", "\"relu\""}, "hidden_act = relu; expected silu, gelu"},
    {{"Scaling", "llama-linear", "\"linear\"", "\"dynamic\""}, "= dynamic; expected default"},
    {{"Quantised", "llama", "\"use_cache\": true", "\"quantization_config\": {\"bits\": 4}"},
     "quantization_config = {\"bits\":4}; expected"},
    {{"Experts", "llama", "\"use_cache\": true", "\"num_local_experts\": 8"},
     "num_local_experts = 8; expected a model without experts"},
    {{"Layers", "llama", "\"num_hidden_layers\": 1", "\"num_hidden_layers\": 2"},
     "tensor model.layers.1.input_layernorm.weight is missing"},
    {{"FewerLayers", "mistral", "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 1"},
     "has no place in architecture mistral"},
    {{"Width", "llama", "\"hidden_size\": 28", "\"hidden_size\": 30"},
     "metadata ask for [any, 30]"},
    {{"Vocabulary", "llama", "\"vocab_size\": 72", "\"vocab_size\": 71"},
     "has 72 rows; config.json has vocab_size = 71"},
    {{"Negative", "llama", "\"head_dim\": 80", "\"head_dim\": -80"}, "head_dim = -80; expected 1"},
    {{"Text", "llama", "\"head_dim\": 80", "\"head_dim\": \"80\""},
     "head_dim = \"80\"; expected a whole number"},
    {{"Groups", "llama", "\"num_key_value_heads\": 1", "\"num_key_value_heads\": 2"},
     "num_attention_heads = 7 is not a multiple of num_key_value_heads = 2"},
    {{"OddRotary", "gpt-neox", "\"partial_rotary_factor\": 0.25", "\"partial_rotary_factor\": 0.4"},
     "turns 3 elements; expected an even number"},
    {{"LongFactorsTooFew", "phi3-long", "5.0\n", "5.0,6.0\n"}, "has 5 numbers; expected 4"},
};
INSTANTIATE_TEST_SUITE_P(, HfRefused, ::testing::ValuesIn(kRefused),
                         [](const auto& test) { return std::string(test.param.first.name); });

TEST(HfFolder, TellsItsTokenizersEnds) {
  const Result<Model> model = Model::Load(FolderOf("llama"));
  ASSERT_TRUE(model.ok()) << model.status().message();
  EXPECT_EQ(model->tokenizer().bos(), 1);
  EXPECT_EQ(model->tokenizer().eos(), 2);
  EXPECT_THAT(model->tokenizer().end_tokens(), ::testing::ElementsAre(2));
  EXPECT_EQ(model->config().name, "llama");
  EXPECT_EQ(model->tensors()[0].name.substr(0, 4), "outp");
}

TEST(HfFolder, QuantisesWhileLoading) {
  ModelOptions options;
  options.weight_type = WeightType::kQ8_0;
  const Result<Model> model = Model::Load(FolderOf("llama-yarn"), options);
  ASSERT_TRUE(model.ok()) << model.status().message();
  const Result<Model> plain = Model::Load(FolderOf("llama-yarn"));
  ASSERT_TRUE(plain.ok());
  std::size_t low = 0;
  for (const TensorInfo& tensor : model->tensors()) {
    // Rows of 40 are not whole blocks of 32.
    const bool fits = tensor.shape.size() == 2 && tensor.shape.back() % 32 == 0;
    EXPECT_EQ(tensor.type == WeightType::kQ8_0, fits) << tensor.name;
    low += fits ? 1 : 0;
  }
  EXPECT_EQ(low, 2U + 2 * 6);
  EXPECT_EQ(model->num_parameters(), plain->num_parameters());
  EXPECT_LT(model->weight_bytes(), plain->weight_bytes());
  options.weight_type = WeightType::kQ4_K;
  EXPECT_EQ(Model::Load(FolderOf("llama-yarn"), options).status().message(),
            "ModelOptions: weight_type = Q4_K; expected F32, F16, BF16, Q8_0 or Q4_0");
}

}  // namespace
}  // namespace manyhead
