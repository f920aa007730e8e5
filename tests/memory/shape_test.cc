#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "manyhead/memory.h"
#include "runtime/architecture/hf_keys.h"
#include "tests/model/tiny_model.h"
#include "tests/support/temp_dir.h"

namespace manyhead {
namespace {

using ::manyhead::testing::TempDir;
using ::manyhead::testing::TinyModel;
using ::testing::HasSubstr;

std::int64_t Parameters(const ModelShape& shape) {
  std::int64_t sum = 0;
  for (const TensorInfo& tensor : shape.tensors) {
    std::int64_t elements = 1;
    for (const std::int64_t size : tensor.shape) elements *= size;
    sum += elements;
  }
  return sum;
}

// The totals that the models' publishers state.
TEST(ParseModelShape, CountsTheParametersOfPublishedModels) {
  const struct {
    const char* name;
    std::int64_t parameters;
    const char* json;
  } cases[] = {
      {"Llama 3 8B", 8030261248,
       R"("model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32,
          "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
          "vocab_size": 128256)"},
      {"Llama 2 7B", 6738415616,
       R"("model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32,
          "num_attention_heads": 32, "intermediate_size": 11008, "vocab_size": 32000)"},
      {"Mistral Nemo, heads of 128 where 5120 / 32 = 160", 12247782400,
       R"("model_type": "mistral", "hidden_size": 5120, "num_hidden_layers": 40,
          "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
          "intermediate_size": 14336, "vocab_size": 131072, "sliding_window": null)"},
      {"Qwen2.5 0.5B, biases and shared embedding", 494032768,
       R"("model_type": "qwen2", "hidden_size": 896, "num_hidden_layers": 24,
          "num_attention_heads": 14, "num_key_value_heads": 2, "intermediate_size": 4864,
          "vocab_size": 151936, "tie_word_embeddings": true)"},
      {"Qwen3 0.6B, norms of heads", 596049920,
       R"("model_type": "qwen3", "hidden_size": 1024, "num_hidden_layers": 28,
          "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
          "intermediate_size": 3072, "vocab_size": 151936, "tie_word_embeddings": true)"},
      {"Gemma 2 2B, four norms a layer", 2614341888,
       R"("model_type": "gemma2", "hidden_size": 2304, "num_hidden_layers": 26,
          "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
          "intermediate_size": 9216, "vocab_size": 256000)"},
      {"Gemma 3 270M", 268098176,
       R"("model_type": "gemma3_text", "hidden_size": 640, "num_hidden_layers": 18,
          "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256,
          "intermediate_size": 2048, "vocab_size": 262144)"},
      {"Phi 3 mini", 3821079552,
       R"("model_type": "phi3", "hidden_size": 3072, "num_hidden_layers": 32,
          "num_attention_heads": 32, "num_key_value_heads": 32, "intermediate_size": 8192,
          "vocab_size": 32064)"},
      {"Mixtral 8x7B", 46702792704,
       R"("model_type": "mixtral", "hidden_size": 4096, "num_hidden_layers": 32,
          "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
          "vocab_size": 32000, "num_local_experts": 8, "num_experts_per_tok": 2)"},
      {"Qwen3 30B A3B", 30532122624,
       R"("model_type": "qwen3_moe", "hidden_size": 2048, "num_hidden_layers": 48,
          "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
          "intermediate_size": 6144, "moe_intermediate_size": 768, "num_experts": 128,
          "num_experts_per_tok": 8, "vocab_size": 151936)"},
      {"gpt-oss 20B, sinks and biases everywhere", 20914757184,
       R"("model_type": "gpt_oss", "hidden_size": 2880, "num_hidden_layers": 24,
          "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64,
          "intermediate_size": 2880, "vocab_size": 201088, "num_local_experts": 32,
          "num_experts_per_tok": 4)"},
  };
  for (const auto& c : cases) {
    const Result<ModelShape> shape = ParseModelShape(std::string("{").append(c.json).append("}"));
    ASSERT_TRUE(shape.ok()) << c.name << ": " << shape.status().message();
    EXPECT_EQ(Parameters(*shape), c.parameters) << c.name;
  }
}

/// A small valid config.json with `extra` after it; of two values for one key the last counts.
std::string Config(const std::string& extra, const std::string& type = "llama") {
  return R"({"model_type": ")" + type +
         R"(", "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4,
             "intermediate_size": 96, "vocab_size": 100)" +
         (extra.empty() ? "" : ", " + extra) + "}";
}

TEST(ParseModelShape, ReadsWindowsAsEachFamilyHasThem) {
  const auto windows = [](const std::string& extra, const std::string& type) {
    std::vector<std::int64_t> found;
    const Result<ModelShape> shape = ParseModelShape(Config(extra, type));
    EXPECT_TRUE(shape.ok()) << shape.status().message();
    if (shape.ok())
      for (const LayerConfig& layer : shape->config.layers) found.push_back(layer.window);
    return found;
  };
  using V = std::vector<std::int64_t>;
  EXPECT_EQ(windows(R"("sliding_window": 32)", "llama"), (V{0, 0, 0, 0}));
  EXPECT_EQ(windows(R"("sliding_window": 32)", "mistral"), (V{32, 32, 32, 32}));
  EXPECT_EQ(windows(R"("sliding_window": 32)", "gemma2"), (V{32, 0, 32, 0}));
  EXPECT_EQ(windows(R"("sliding_window": 32, "sliding_window_pattern": 3)", "gemma3_text"),
            (V{32, 32, 0, 32}));
  EXPECT_EQ(windows(R"("sliding_window": 32, "max_window_layers": 1)", "qwen2"), (V{0, 0, 0, 0}));
  EXPECT_EQ(windows(R"("sliding_window": 32, "max_window_layers": 1, "use_sliding_window": true)",
                    "qwen2"),
            (V{0, 32, 32, 32}));
  EXPECT_EQ(windows(R"("sliding_window": 8, "layer_types": ["full_attention",
                       "sliding_attention", "sliding_attention", "full_attention"])",
                    "llama"),
            (V{0, 8, 8, 0}));
}

TEST(ParseModelShape, ReadsTheDecoderOfAModelWithPictures) {
  const Result<ModelShape> shape =
      ParseModelShape(R"({"model_type": "gemma3", "vision_config": {}, "text_config": )" +
                      Config(R"("head_dim": 16)", "gemma3_text") + "}");
  ASSERT_TRUE(shape.ok()) << shape.status().message();
  EXPECT_EQ(shape->config.d_model, 64);
  EXPECT_TRUE(shape->config.tied_embeddings);
}

std::int64_t WeightBytes(const ModelShape& shape) {
  std::int64_t bytes = 0;
  for (const TensorInfo& tensor : shape.tensors) bytes += tensor.size_bytes;
  return bytes;
}

// A public report (mlx-serve PR#46): gemma-3-4b-it leaves out what equals the config class' values.
TEST(ParseModelShape, ANestedConfigTakesTheFamilysDefaultsAndTheOuterObjectsValues) {
  const Result<ModelShape> shape = ParseModelShape(R"({
      "architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3",
      "text_config": {"hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text",
                      "num_hidden_layers": 34, "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
                      "sliding_window": 1024},
      "torch_dtype": "float32", "vision_config": {"hidden_size": 1152}})");
  ASSERT_TRUE(shape.ok()) << shape.status().message();
  EXPECT_EQ(shape->config.vocab_size, 262208);
  EXPECT_EQ(shape->tensors.front().type, WeightType::kF32);
  EXPECT_EQ(shape->config.layers[0].window, 1024);
  EXPECT_EQ(shape->config.layers[5].window, 0);
  MemoryOptions options;
  options.session.context = 64;
  const Result<MemoryPlan> plan = PlanMemory(*shape, options);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(plan->kv_bytes_per_token, 139264);
  EXPECT_EQ(Parameters(*shape), 3880263168);  // as published, without the vision tower's

  const Result<ModelShape> llava = ParseModelShape(R"({
      "model_type": "llava", "text_config": {"model_type": "llama", "vocab_size": 32064,
                                             "max_position_embeddings": 4096}})");
  ASSERT_TRUE(llava.ok()) << llava.status().message();
  EXPECT_EQ(llava->config.layers.size(), 32U);
  EXPECT_EQ(llava->config.layers[0].num_kv_heads, 32);
  EXPECT_EQ(llava->config.layers[0].ffn_dim, 11008);
}

constexpr char kLlama70b[] =
    R"("model_type": "llama", "hidden_size": 8192, "num_hidden_layers": 80,
       "num_attention_heads": 64, "num_key_value_heads": 8, "intermediate_size": 28672,
       "vocab_size": 128256, "torch_dtype": "bfloat16")";
constexpr char kGptOss20b[] =
    R"("model_type": "gpt_oss", "hidden_size": 2880, "num_hidden_layers": 24,
       "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64,
       "intermediate_size": 2880, "vocab_size": 201088, "num_local_experts": 32,
       "num_experts_per_tok": 4, "torch_dtype": "bfloat16")";

Result<ModelShape> Quantised(const std::string& config, const std::string& quantization) {
  return ParseModelShape("{" + config + ", \"quantization_config\": " + quantization + "}");
}

// A public report (llm-d-benchmark#345).
TEST(ParseModelShape, AQuantizationConfigGivesTheBytesOfMatrices) {
  const auto bytes = [](const std::string& config, const std::string& quantization) {
    const Result<ModelShape> shape = Quantised(config, quantization);
    EXPECT_TRUE(shape.ok()) << shape.status().message();
    return shape.ok() ? static_cast<double>(WeightBytes(*shape)) : 0.0;
  };
  EXPECT_NEAR(bytes(kLlama70b, R"({"quant_method": "fp8"})"), 72.7e9, 0.1e9);
  EXPECT_NEAR(bytes(kGptOss20b, R"({"quant_method": "mxfp4"})"), 13.76e9, 0.05e9);
  // Four bits, and 20 bits of scale and zero point for every 128.
  EXPECT_NEAR(bytes(kLlama70b, R"({"quant_method": "awq", "bits": 4, "group_size": 128})"),
              68.45e9 * (4 + 20.0 / 128) / 8 + 4.2e9, 0.05e9);
  EXPECT_NEAR(bytes(kLlama70b, R"({"quant_method": "bitsandbytes", "load_in_4bit": true})"),
              68.45e9 * 4.5 / 8 + 4.2e9, 0.05e9);

  const ModelShape fp8 = *Quantised(kLlama70b, R"({"quant_method": "fp8"})");
  EXPECT_EQ(fp8.quantization, "fp8");
  MemoryOptions options;
  options.session.context = 64;
  const Result<MemoryPlan> plan = PlanMemory(fp8, options);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(plan->weight_bytes, WeightBytes(fp8));
  ASSERT_EQ(plan->warnings.size(), 1U);
  EXPECT_THAT(plan->warnings[0], HasSubstr("quantization_config stores them (fp8)"));
  // A type for all matrices is what the caller wants to know of.
  const auto forced = ParseModelShape(
      std::string("{") + kLlama70b + R"(, "quantization_config": {"quant_method": "fp8"}})",
      WeightType::kF16);
  EXPECT_NEAR(static_cast<double>(WeightBytes(*forced)), 141.1e9, 0.1e9);
}

TEST(ParseModelShape, AnUnknownQuantizationIsRefused) {
  for (const char* quantization : {R"({"quant_method": "aqlm"})", R"({})", R"("fp8")", "[]"})
    EXPECT_THAT(Quantised(kLlama70b, quantization).status().message(),
                HasSubstr("config.json: quantization_config = "))
        << quantization;
  EXPECT_THAT(Quantised(kLlama70b, R"({"quant_method": "gptq"})").status().message(),
              HasSubstr("bits is missing"));
  EXPECT_TRUE(Quantised(kLlama70b, "null").ok());
}

TEST(ParseModelShape, WhatIsNotPlannedIsRefusedUnlessItIsOff) {
  for (const std::string_view key : hf_keys::RefusedKeys()) {
    const std::string name(key);
    EXPECT_THAT(ParseModelShape(Config("\"" + name + "\": 2")).status().message(),
                HasSubstr("config.json: " + name + " = 2; this library does not plan"));
    EXPECT_FALSE(ParseModelShape(Config("\"" + name + "\": {\"0\": [1]}")).ok()) << name;
    for (const char* off : {"null", "false", "0", "{}", "[]"})
      EXPECT_TRUE(ParseModelShape(Config("\"" + name + "\": " + off)).ok()) << name << off;
  }
}

TEST(ParseModelShape, ReadsGpt2ByItsOwnNames) {
  const Result<ModelShape> shape = ParseModelShape(
      R"({"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024,
          "vocab_size": 50257})");
  ASSERT_TRUE(shape.ok()) << shape.status().message();
  EXPECT_EQ(Parameters(*shape), 124439808);  // as published
  EXPECT_EQ(shape->config.num_positions, 1024);
  EXPECT_EQ(shape->config.layers[0].ffn_dim, 3072);
  EXPECT_THAT(ParseModelShape(R"({"model_type": "gpt2", "n_embd": 768})").status().message(),
              HasSubstr("n_layer is missing"));
}

TEST(ParseModelShape, TakesTheTypeFromTheConfigUnlessToldOtherwise) {
  const auto type_of = [](const std::string& extra, std::optional<WeightType> type) {
    return ParseModelShape(Config(extra), type)->tensors.front().type;
  };
  EXPECT_EQ(type_of("", std::nullopt), WeightType::kF16);
  EXPECT_EQ(type_of(R"("torch_dtype": "float32")", std::nullopt), WeightType::kF32);
  EXPECT_EQ(type_of(R"("dtype": "bfloat16")", std::nullopt), WeightType::kBf16);
  EXPECT_EQ(type_of(R"("dtype": "bfloat16")", WeightType::kQ8_0), WeightType::kQ8_0);
}

TEST(ParseModelShape, NamesTheKeyAndTheValueThatAreWrong) {
  const struct {
    std::string json, message;
  } cases[] = {
      {"", "no valid JSON"},
      {"[1]", "[1]; expected an object"},
      {"{\"model_type\": \"llama\"", "no valid JSON"},
      {std::string(100000, '['), "nested more than 64 deep"},
      {"{\"hidden_size\": " + std::string(1 << 20, '[') + std::string(1 << 20, ']') + "}",
       "nested more than 64 deep"},
      {"{}", "model_type is missing"},
      {R"({"model_type": "llama"})", "hidden_size is missing"},
      {R"({"model_type": 3})", "model_type = 3; expected a string"},
      {Config("", "bert"), "model_type = \"bert\"; expected one of llama, mistral"},
      {Config(R"("hidden_size": -64)"), "hidden_size = -64; expected a whole number from 1 to"},
      {Config(R"("hidden_size": 0)"), "hidden_size = 0; expected a whole number from 1 to"},
      {Config(R"("hidden_size": 64.5)"), "hidden_size = 64.5; expected a whole number"},
      {Config(R"("hidden_size": "64")"), "hidden_size = \"64\"; expected a whole number"},
      {Config(R"("hidden_size": [64])"), "hidden_size = [64]; expected a whole number"},
      {Config(R"("hidden_size": null)"), "hidden_size is missing"},
      {Config(R"("hidden_size": 18446744073709551615)"), "hidden_size = 18446744073709551615;"},
      {Config(R"("hidden_size": 99999999999999999999)"), "hidden_size = 1e+20; expected"},
      {Config(R"("hidden_size": 66)"),
       "hidden_size = 66 is not a multiple of num_attention_heads = 4, and no head_dim is"},
      {Config(R"("num_key_value_heads": 3)"),
       "num_attention_heads = 4 is not a multiple of num_key_value_heads = 3"},
      {Config(R"("num_key_value_heads": 0)"), "num_key_value_heads = 0; expected"},
      {Config(R"("head_dim": 2048)"), "head_dim = 2048; expected a whole number from 1 to 1024"},
      {Config(R"("num_hidden_layers": 1000000)"), "num_hidden_layers = 1000000; expected"},
      {Config(R"("vocab_size": 1e9)"), "vocab_size = 1000000000.0; expected a whole number"},
      {Config(R"("tie_word_embeddings": 1)"), "tie_word_embeddings = 1; expected true or false"},
      {Config(R"("layer_types": ["full_attention"])"),
       "layer_types has 1 entries; num_hidden_layers = 4"},
      {Config(R"("layer_types": [1, 2, 3, 4])"), "layer_types holds 1; expected"},
      {Config(R"("layer_types": 7)"), "layer_types = 7; expected a list"},
      {Config(R"("torch_dtype": "int3")"), "torch_dtype = \"int3\"; expected float16"},
      {Config("", "mixtral"), "num_local_experts is missing"},
      {Config(R"("num_local_experts": 2, "num_experts_per_tok": 3)", "mixtral"),
       "num_experts_per_tok = 3; expected a whole number from 1 to 2"},
      {Config(R"("hidden_size": 16777216, "head_dim": 64, "intermediate_size": 16777216,
                 "num_local_experts": 65536, "num_experts_per_tok": 1)",
              "mixtral"),
       "tensor blk.0.ffn_gate_exps.weight has more than 2^63 - 1 bytes"},
  };
  for (const auto& c : cases) {
    const Result<ModelShape> shape = ParseModelShape(c.json);
    ASSERT_FALSE(shape.ok()) << c.message;
    EXPECT_THAT(shape.status().message(), HasSubstr(c.message));
  }
}

TEST(MakeModelShape, NamesWhatDoesNotGoTogether) {
  const auto message = [](auto change) {
    ShapeParams params;
    params.d_model = 64;
    params.num_heads = 4;
    change(params);
    const Result<ModelShape> shape = MakeModelShape(params);
    return shape.ok() ? std::string("no error") : shape.status().message();
  };
  EXPECT_EQ(message([](ShapeParams&) {}), "no error");
  EXPECT_EQ(message([](ShapeParams& p) { p.num_heads = 7; }),
            "MakeModelShape: d_model = 64 is not a multiple of num_heads = 7, and no head_dim is "
            "declared");
  EXPECT_EQ(message([](ShapeParams& p) { p.num_heads = 7, p.head_dim = 10; }), "no error");
  EXPECT_EQ(message([](ShapeParams& p) { p.d_model = -1; }),
            "MakeModelShape: d_model = -1; expected 1 to 16777216");
  EXPECT_EQ(message([](ShapeParams& p) { p.num_kv_heads = 3; }),
            "MakeModelShape: num_heads = 4 is not a multiple of num_kv_heads = 3");
  EXPECT_EQ(message([](ShapeParams& p) { p.d_model = 4096, p.num_heads = 2; }),
            "MakeModelShape: d_model / num_heads = 4096 / 2 = 2048; expected heads of up to 1024");
  EXPECT_EQ(message([](ShapeParams& p) { p.d_model = 80, p.weight_type = WeightType::kQ8_0; }),
            "MakeModelShape: tensor blk.0.attn_q.weight has rows of 80; expected a multiple of 32, "
            "the block of Q8_0");
  EXPECT_EQ(message([](ShapeParams& p) { p.layers = INT64_MAX; }),
            "MakeModelShape: layers = 9223372036854775807; expected 1 to 4096");
}

// The file's own tensors, and what a builder makes of the same numbers.
TEST(ReadModelShape, AgreesWithAShapeOfTheSameNumbers) {
  TinyModel tiny;
  tiny.family = "qwen2";
  tiny.biases = true;
  tiny.tied = false;
  tiny.MakeWeights(3);
  const TempDir dir;
  tiny.ToGguf().Write(dir.File("tiny.gguf"));
  const Result<ModelShape> read = ReadModelShape(dir.File("tiny.gguf"));
  ASSERT_TRUE(read.ok()) << read.status().message();
  ShapeParams params;
  params.d_model = tiny.d_model;
  params.num_heads = tiny.num_heads;
  params.num_kv_heads = tiny.num_kv_heads;
  params.head_dim = tiny.head_dim;
  params.layers = tiny.layers;
  params.ffn_dim = tiny.ffn_dim;
  params.vocab_size = tiny.vocab();
  params.qkv_bias = true;
  const Result<ModelShape> made = MakeModelShape(params);
  ASSERT_TRUE(made.ok()) << made.status().message();
  EXPECT_EQ(Parameters(*read), Parameters(*made));
  EXPECT_EQ(read->tensors.size(), made->tensors.size());
  EXPECT_GT(read->metadata_bytes, 0);
  EXPECT_GT(read->tokenizer_bytes, tiny.vocab() * 16);
  EXPECT_FALSE(ReadModelShape(dir.File("none.gguf")).ok());
}

}  // namespace
}  // namespace manyhead
