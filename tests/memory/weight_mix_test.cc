#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "manyhead/memory.h"
#include "tests/support/model_files.h"

namespace manyhead {
namespace {

using ::testing::HasSubstr;

std::map<std::string, WeightType> Types(const ModelShape& shape) {
  std::map<std::string, WeightType> types;
  for (const TensorInfo& tensor : shape.tensors) types[tensor.name] = tensor.type;
  return types;
}

ModelShape Llama(std::int64_t layers, std::int64_t d_model = 1024, std::int64_t kv_heads = 2) {
  ShapeParams params;
  params.d_model = d_model;
  params.num_heads = 8;
  params.num_kv_heads = kv_heads;
  params.layers = layers;
  params.ffn_dim = 2048;
  params.vocab_size = 512;
  return *MakeModelShape(params);
}

std::string Row(const ModelShape& shape, const std::string& tensor) {
  const auto types = Types(shape);
  std::string row;
  for (std::size_t i = 0; i < shape.config.layers.size(); ++i)
    row += std::string(" ") +
           WeightTypeName(types.at("blk." + std::to_string(i) + "." + tensor + ".weight"));
  return row;
}

// The middle layers of 16 are 2 to 13; of these every third has more bits: 4, 7, 10, 13.
TEST(MixWeightTypes, MoreBitsGoToTheFirstLastAndEveryThirdLayer) {
  const ModelShape shape = *MixWeightTypes(Llama(16), "Q4_K_M");
  const std::string row =
      " Q6_K Q6_K Q4_K Q4_K Q6_K Q4_K Q4_K Q6_K Q4_K Q4_K Q6_K Q4_K Q4_K Q6_K Q6_K Q6_K";
  EXPECT_EQ(Row(shape, "attn_v"), row);
  EXPECT_EQ(Row(shape, "ffn_down"), row);
  for (const char* plain : {"attn_q", "attn_k", "attn_output", "ffn_gate", "ffn_up"})
    EXPECT_EQ(Row(shape, plain).find("Q6_K"), std::string::npos) << plain;
  const auto types = Types(shape);
  EXPECT_EQ(types.at("output.weight"), WeightType::kQ6_K);
  EXPECT_EQ(types.at("token_embd.weight"), WeightType::kQ4_K);
  EXPECT_EQ(types.at("blk.0.attn_norm.weight"), WeightType::kF32);
}

TEST(MixWeightTypes, EveryMixHasItsRules) {
  const struct {
    const char* mix;
    const char* values;  // types in eight layers whose groups have four query heads
    const char* down;
    const char* output;
  } cases[] = {
      {"q2_k", " Q4_K Q4_K Q4_K Q4_K Q4_K Q4_K Q4_K Q4_K",
       " Q3_K Q3_K Q3_K Q3_K Q3_K Q3_K Q3_K Q3_K", " Q3_K"},
      {"q2_k_s", " Q4_K Q4_K Q4_K Q4_K Q4_K Q4_K Q4_K Q4_K",
       " Q4_K Q2_K Q2_K Q2_K Q2_K Q2_K Q2_K Q2_K", " Q2_K"},
      {"q3_k_s", " Q3_K Q3_K Q3_K Q3_K Q3_K Q3_K Q3_K Q3_K",
       " Q3_K Q3_K Q3_K Q3_K Q3_K Q3_K Q3_K Q3_K", " Q3_K"},
      {"q3_k_m", " Q5_K Q5_K Q4_K Q4_K Q4_K Q4_K Q4_K Q4_K",
       " Q4_K Q4_K Q4_K Q4_K Q4_K Q4_K Q4_K Q4_K", " Q4_K"},
      {"q3_k_l", " Q5_K Q5_K Q5_K Q5_K Q5_K Q5_K Q5_K Q5_K",
       " Q5_K Q5_K Q5_K Q5_K Q5_K Q5_K Q5_K Q5_K", " Q5_K"},
      {"q4_k_s", " Q5_K Q5_K Q5_K Q5_K Q4_K Q4_K Q4_K Q4_K",
       " Q5_K Q4_K Q4_K Q4_K Q4_K Q4_K Q4_K Q4_K", " Q4_K"},
      {"q5_k_m", " Q6_K Q5_K Q5_K Q6_K Q5_K Q5_K Q6_K Q6_K",
       " Q6_K Q5_K Q5_K Q6_K Q5_K Q5_K Q6_K Q6_K", " Q5_K"},
      {"q5_k_s", " Q5_K Q5_K Q5_K Q5_K Q5_K Q5_K Q5_K Q5_K",
       " Q5_K Q5_K Q5_K Q5_K Q5_K Q5_K Q5_K Q5_K", " Q5_K"},
  };
  for (const auto& c : cases) {
    const ModelShape shape = *MixWeightTypes(Llama(8), c.mix);
    EXPECT_EQ(Row(shape, "attn_v"), c.values) << c.mix;
    EXPECT_EQ(Row(shape, "ffn_down"), c.down) << c.mix;
    EXPECT_EQ(Row(shape, "attn_output").substr(0, 5), c.output) << c.mix;
  }
}

// Rows of 992 numbers are 31 blocks of 32, but no whole blocks of 256; rows of 1000 neither.
TEST(MixWeightTypes, RowsThatAreNoWholeBlocksGetAnotherType) {
  auto types = Types(*MixWeightTypes(Llama(2, 992), "q4_k_m"));
  EXPECT_EQ(types.at("blk.0.attn_q.weight"), WeightType::kQ5_0);
  EXPECT_EQ(types.at("blk.1.attn_v.weight"), WeightType::kQ8_0) << "for Q6_K";
  EXPECT_EQ(types.at("blk.1.ffn_down.weight"), WeightType::kQ6_K) << "rows of 2048";
  EXPECT_EQ(types.at("output.weight"), WeightType::kQ8_0);
  types = Types(*MixWeightTypes(Llama(2, 1000), "q4_k_m"));
  EXPECT_EQ(types.at("blk.0.attn_q.weight"), WeightType::kF16);
}

ModelShape Config(const std::string& more) {
  return *ParseModelShape(R"({"model_type": "llama", "hidden_size": 8192, "num_attention_heads": 64,
      "num_key_value_heads": 8, "intermediate_size": 28672, "vocab_size": 128256, )" +
                          more + "}");
}

// The file of Llama-3.1-70B-Instruct that llama.cpp made as Q4_K_M has 42,520,393,152 bytes with
// its metadata of about 8 MB.
TEST(MixWeightTypes, TheValuesOf70BModelsHaveMoreBits) {
  const ModelShape shape = *MixWeightTypes(Config(R"("num_hidden_layers": 80)"), "q4_k_m");
  EXPECT_EQ(Row(shape, "attn_v").find("Q4_K"), std::string::npos);
  std::int64_t bytes = 0;
  for (const TensorInfo& tensor : shape.tensors) bytes += tensor.size_bytes;
  EXPECT_NEAR(static_cast<double>(bytes), 42.512e9, 1e7);
}

TEST(MixWeightTypes, MixtralsExpertsShareTheirAttention) {
  const ModelShape shape = *MixWeightTypes(
      *ParseModelShape(R"({"model_type": "mixtral", "hidden_size": 1024, "num_hidden_layers": 4,
          "num_attention_heads": 8, "num_key_value_heads": 2, "intermediate_size": 2048,
          "vocab_size": 512, "num_local_experts": 8, "num_experts_per_tok": 2})"),
      "q4_k_m");
  const auto types = Types(shape);
  EXPECT_EQ(types.at("blk.1.attn_v.weight"), WeightType::kQ8_0);
  EXPECT_EQ(types.at("blk.1.attn_k.weight"), WeightType::kQ8_0);
  EXPECT_EQ(types.at("blk.1.attn_output.weight"), WeightType::kQ5_K);
  EXPECT_EQ(types.at("blk.1.attn_q.weight"), WeightType::kQ4_K);
  EXPECT_EQ(types.at("blk.1.ffn_gate_inp.weight"), WeightType::kF16) << "the router stays";
  EXPECT_EQ(types.at("blk.3.ffn_down_exps.weight"), WeightType::kQ6_K);
}

TEST(MixWeightTypes, NamesAMixThatDoesNotExist) {
  const Result<ModelShape> shape = MixWeightTypes(Llama(1), "q4_k_x");
  ASSERT_FALSE(shape.ok());
  EXPECT_THAT(shape.status().message(), HasSubstr("mix = q4_k_x; expected one of q2_k, q2_k_s"));
  EXPECT_EQ(WeightMixNames().size(), 9U);
}

/// "ffn_down" of "blk.3.ffn_down.weight"; other names stay.
std::string RoleOf(const std::string& name) {
  if (!name.starts_with("blk.")) return name;
  const std::size_t begin = name.find('.', 4) + 1;
  return name.substr(begin, name.find('.', begin) - begin);
}

// Files that llama.cpp made. The version that made them counted the layers of a role in the file's
// order (0, 1, 10, 11, ..., 2, 20, ...), as the original model's file had it.
TEST(MixWeightTypes, EqualsTheTypesOfRealFiles) {
  int seen = 0;
  for (const char* name : {"qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b"}) {
    const Result<ModelShape> file = ReadModelShape(FindModel(name));
    if (!file.ok()) continue;
    ++seen;
    const ModelShape mixed = *MixWeightTypes(*file, "q4_k_m");
    const auto types = Types(mixed);
    std::map<std::string, int> counted;
    std::int64_t file_bytes = 0, bytes = 0;
    for (std::size_t i = 0; i < mixed.tensors.size(); ++i) {
      const TensorInfo& tensor = file->tensors[i];
      file_bytes += tensor.size_bytes;
      bytes += mixed.tensors[i].size_bytes;
      if (!tensor.name.ends_with(".weight")) continue;
      const std::string role = RoleOf(tensor.name);
      const std::string ruled =
          role == tensor.name ? role
                              : "blk." + std::to_string(counted[role]++) + "." + role + ".weight";
      EXPECT_STREQ(WeightTypeName(types.at(ruled)), WeightTypeName(tensor.type))
          << name << " " << tensor.name;
    }
    EXPECT_EQ(bytes, file_bytes) << name;
  }
  if (seen == 0) GTEST_SKIP() << "no model has been fetched";
}

}  // namespace
}  // namespace manyhead
