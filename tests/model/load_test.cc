#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>

#include "manyhead/model.h"
#include "manyhead/tokenizer.h"
#include "tests/model/tiny_model.h"

namespace manyhead {
namespace {

using ::manyhead::testing::GgufWriter;
using ::manyhead::testing::TinyModel;
using ::testing::HasSubstr;

Result<Model> LoadBytes(const std::string& bytes) {
  const std::string path = (std::filesystem::temp_directory_path() /
                            ("manyhead_load_" + std::to_string(getpid()) + ".gguf"))
                               .string();
  std::ofstream(path, std::ios::binary) << bytes;
  Result<Model> model = Model::Load(path);
  std::filesystem::remove(path);
  return model;
}

TinyModel Made(const std::function<void(TinyModel&)>& change = [](TinyModel&) {}) {
  TinyModel tiny;
  change(tiny);
  tiny.MakeWeights(3);
  return tiny;
}

TEST(ModelLoad, RefusesThreadsOutOfRange) {
  EXPECT_EQ(Model::Load("unread.gguf", {.threads = -1}).status().message(),
            "ModelOptions: threads = -1; expected 0 to 1024");
  EXPECT_EQ(Model::Load("unread.gguf", {.threads = 1025}).status().message(),
            "ModelOptions: threads = 1025; expected 0 to 1024");
}

TEST(ModelLoad, ReadsTheConfigOfItsFamily) {
  const Result<Model> model = LoadBytes(Made([](TinyModel& m) {
                                          m.family = "gemma3";
                                          m.layers = 7;
                                          m.window = 512;
                                        })
                                            .ToGguf()
                                            .Bytes());
  ASSERT_TRUE(model.ok()) << model.status().message();
  const ModelConfig& config = model->config();
  EXPECT_EQ(config.architecture, "gemma3");
  EXPECT_EQ(config.vocab_size, 259);
  EXPECT_TRUE(config.tied_embeddings);
  EXPECT_FLOAT_EQ(config.embedding_scale, std::sqrt(24.0F));
  ASSERT_EQ(config.layers.size(), 7U);
  for (int i = 0; i < 7; ++i) {
    EXPECT_EQ(config.layers[i].window, i == 5 ? 0 : 512) << i;
    EXPECT_EQ(config.layers[i].rope, i == 5 ? 0 : 1) << i;
  }
}

// Input of a public report (ggml-org/llama.cpp#12567): no output matrix means tied embeddings,
// counted once.
TEST(ModelLoad, TiedEmbeddingsCountOnce) {
  const TinyModel tied = Made(), untied = Made([](TinyModel&m) { m.tied = false; });
  const Result<Model> a = LoadBytes(tied.ToGguf().Bytes()), b = LoadBytes(untied.ToGguf().Bytes());
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_TRUE(a->config().tied_embeddings);
  EXPECT_FALSE(b->config().tied_embeddings);
  EXPECT_EQ(b->weight_bytes() - a->weight_bytes(), 259 * 24 * 4);
  EXPECT_EQ(a->weight_bytes_per_token(), a->weight_bytes());
  EXPECT_EQ(b->weight_bytes_per_token(), a->weight_bytes());
}

TEST(ModelLoad, UnknownArchitectureIsNamed) {
  GgufWriter file;
  file.Add("general.architecture", "mamba");
  const Result<Model> model = LoadBytes(file.Bytes());
  EXPECT_EQ(model.status().code(), StatusCode::kUnsupported);
  EXPECT_THAT(model.status().message(), HasSubstr("general.architecture = mamba"));
  EXPECT_THAT(LoadBytes(GgufWriter().Bytes()).status().message(),
              HasSubstr("general.architecture is missing"));
}

/// The message of loading `tiny` after `change` to its tensors.
std::string MessageAfter(const std::function<void(TinyModel&)>& change) {
  TinyModel tiny = Made();
  change(tiny);
  return LoadBytes(tiny.ToGguf().Bytes()).status().message();
}

// Text from a file is quoted so that it stays one line, and does no harm to a terminal.
TEST(ModelLoad, MessagesQuoteTheFilesTextsSafely) {
  const std::string hostile = "a\n\x1b[2Jb", quoted = "a\\x0a\\x1b[2Jb";
  const auto message = [](const GgufWriter& file) {
    return LoadBytes(file.Bytes()).status().message();
  };
  const TinyModel llama = Made();
  EXPECT_THAT(message(GgufWriter().Add("general.architecture", hostile)),
              HasSubstr("general.architecture = " + quoted + ";"));
  EXPECT_THAT(message(Made([&](TinyModel& m) { m.rope_scaling = hostile; }).ToGguf()),
              HasSubstr("llama.rope.scaling.type = " + quoted + ";"));
  EXPECT_THAT(message(llama.ToGguf().AddTensor(hostile, WeightType::kF32, {1}, std::string(4, 0))),
              HasSubstr("tensor " + quoted + " "));
}

TEST(ModelLoad, MessagesQuoteTheTokenizersTextsSafely) {
  const std::string hostile = "a\n\x1b[2Jb", quoted = "a\\x0a\\x1b[2Jb";
  using Texts = std::vector<std::string>;
  const auto message = [](const std::string& model, const std::string& pre, const Texts& tokens,
                          const std::string& merge) {
    GgufWriter file;
    file.Add("tokenizer.ggml.model", model).Add("tokenizer.ggml.pre", pre);
    file.Add("tokenizer.ggml.tokens", tokens).Add("tokenizer.ggml.merges", Texts{merge});
    constexpr std::int32_t kNormal = 1, kByte = 6;
    file.Add("tokenizer.ggml.token_type",
             std::vector<std::int32_t>(tokens.size(), model == "llama" ? kByte : kNormal));
    file.Add("tokenizer.ggml.scores", std::vector<float>(tokens.size()));
    const std::string path = ::testing::TempDir() + "hostile" + std::to_string(getpid());
    file.Write(path);
    const std::string text = Tokenizer::Load(path).status().message();
    std::filesystem::remove(path);
    return text;
  };
  const Texts two = {"a", "b"};
  EXPECT_THAT(message(hostile, "qwen2", two, "a b"), HasSubstr("model = '" + quoted + "'"));
  EXPECT_THAT(message("gpt2", hostile, two, "a b"), HasSubstr("pre = '" + quoted + "'"));
  EXPECT_THAT(message("gpt2", "qwen2", two, "b " + hostile), HasSubstr(quoted + "'"));
  EXPECT_THAT(message("gpt2", "qwen2", {hostile, hostile}, "a b"),
              HasSubstr("are both '" + quoted + "'"));
  EXPECT_THAT(message("llama", "", {hostile}, "a b"),
              HasSubstr("'" + quoted + "' is of type byte"));
}

TEST(ModelLoad, TensorsThatDoNotFitTheMetadataAreNamedWithBothShapes) {
  EXPECT_THAT(MessageAfter([](TinyModel& m) { m.tensors.erase("blk.1.ffn_up.weight"); }),
              HasSubstr("tensor blk.1.ffn_up.weight is missing"));
  EXPECT_THAT(
      MessageAfter([](TinyModel& m) { m.tensors["blk.0.attn_k.weight"].resize(24 * 11); }),
      HasSubstr("tensor blk.0.attn_k.weight has shape [11, 24]; the metadata ask for [12, 24]"));
  EXPECT_THAT(MessageAfter([](TinyModel& m) { m.tensors["output_norm.weight"].resize(23); }),
              HasSubstr("output_norm.weight has shape [1, 23]; the metadata ask for [1, 24]"));
  EXPECT_THAT(MessageAfter([](TinyModel& m) { m.tensors["blk.0.attn_magic.bias"] = {1}; }),
              HasSubstr("tensor blk.0.attn_magic.bias has no place in architecture llama"));
  // Public report ggml-org/llama.cpp#5910: fewer embedding rows than tokens.
  EXPECT_THAT(MessageAfter([](TinyModel& m) { m.tensors["token_embd.weight"].resize(258 * 24); }),
              HasSubstr("tokenizer.ggml.tokens has 259 tokens, token_embd.weight only 258 rows"));
}

// The sizes of the report, and ggml-org/llama.cpp#8445: more rows than tokens are fine.
TEST(ModelLoad, TokensWithoutAnEmbeddingAreRefusedRowsWithoutATokenAreNot) {
  const auto load = [](std::int64_t tokens, std::int64_t rows) {
    return LoadBytes(Made([&](TinyModel& m) {
                       m.extra_tokens = tokens - 259;
                       m.extra_rows = rows - tokens;
                     })
                         .ToGguf()
                         .Bytes());
  };
  const Result<Model> fewer = load(32001, 32000);
  EXPECT_EQ(fewer.status().code(), StatusCode::kIoError);
  EXPECT_THAT(
      fewer.status().message(),
      HasSubstr("tokenizer.ggml.tokens has 32001 tokens, token_embd.weight only 32000 rows"));
  const Result<Model> more = load(32000, 32001);
  ASSERT_TRUE(more.ok()) << more.status().message();
  EXPECT_EQ(more->tokenizer().vocab_size(), 32000);
  EXPECT_EQ(more->config().vocab_size, 32001);
}

TEST(ModelLoad, MetadataOutOfRangeAreNamedWithTheirValue) {
  const std::pair<std::function<void(TinyModel&)>, const char*> cases[] = {
      {[](TinyModel& m) { m.num_heads = 0; }, "llama.attention.head_count = 0"},
      {[](TinyModel& m) { m.num_kv_heads = 3; }, "head_count = 4 is not a multiple of"},
      {[](TinyModel& m) { m.head_dim = 2000; }, "llama.attention.key_length = 2000"},
      {[](TinyModel& m) { m.head_dim = 7; }, "llama.rope.dimension_count = 7"},
      {[](TinyModel& m) { m.layers = 100000; }, "llama.block_count = 100000"},
      {[](TinyModel& m) { m.layers = 4000; }, "tensor blk.2.attn_norm.weight is missing"},
      {[](TinyModel& m) { m.context = 0; }, "llama.context_length = 0"},
      {[](TinyModel& m) { m.rope_base = -1; }, "llama.rope.freq_base = -1"},
      {[](TinyModel& m) {
         m.rope_scaling = "spiral";
         m.rope_factor = 2;
       },
       "llama.rope.scaling.type = spiral"},
      {[](TinyModel& m) {
         m.rope_scaling = "linear";
         m.rope_factor = -1;
       },
       "llama.rope.scaling.factor = -1"},
      {[](TinyModel& m) {
         m.rope_factors = m.tensors["rope_freqs.weight"] = {1, 2};
       },
       "rope_freqs.weight has 2 elements of F32; expected 3"},
      {[](TinyModel& m) {
         m.tensors["rope_freqs.weight"] = {1, 0, 2};
       },
       "rope_freqs.weight holds 0"},
  };
  for (const auto& [change, text] : cases) EXPECT_THAT(MessageAfter(change), HasSubstr(text));
}

TEST(ModelLoad, ArraysOfAnotherLengthThanTheLayersAreRefused) {
  for (const char* key : {"llama.attention.sliding_window_pattern", "llama.attention.head_count",
                          "llama.feed_forward_length", "llama.attention.head_count_kv"}) {
    for (std::size_t count : {0, 3}) {
      const TinyModel tiny = Made();
      GgufWriter file;
      file.Add(key, std::vector<std::uint32_t>(count, 1));
      EXPECT_THAT(LoadBytes(tiny.ToGguf(std::move(file), key).Bytes()).status().message(),
                  HasSubstr(std::string(key) + " has " + std::to_string(count) +
                            " values for block_count = 2"));
    }
  }
}

TEST(ModelLoad, ExpertsAreRefusedByName) {
  GgufWriter file = Made().ToGguf();
  file.Add("llama.expert_count", std::uint32_t{8});
  EXPECT_THAT(LoadBytes(file.Bytes()).status().message(), HasSubstr("llama.expert_count"));
}

// Public report ggml-org/llama.cpp#6774: a file cut anywhere is an error, never a fault at first
// use.
TEST(ModelLoad, ACutFileIsAnErrorAtEveryLength) {
  const std::string bytes = Made().ToGguf().Bytes();
  for (int i = 0; i < 64; ++i)
    EXPECT_FALSE(LoadBytes(bytes.substr(0, bytes.size() * i / 64)).ok()) << i;
  EXPECT_FALSE(LoadBytes(bytes.substr(0, bytes.size() - 1)).ok());
  EXPECT_TRUE(LoadBytes(bytes).ok());
}

}  // namespace
}  // namespace manyhead
