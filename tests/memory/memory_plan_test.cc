#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "manyhead/memory.h"
#include "manyhead/session.h"
#include "tests/model/tiny_model.h"
#include "tests/support/temp_dir.h"

namespace manyhead {
namespace {

using ::manyhead::testing::TempDir;
using ::manyhead::testing::TinyModel;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

MemoryPlan Plan(const ShapeParams& params, std::int64_t context, std::int64_t batch = 1) {
  MemoryOptions options;
  options.session.context = context;
  options.batch = batch;
  const Result<ModelShape> shape = MakeModelShape(params);
  EXPECT_TRUE(shape.ok()) << shape.status().message();
  const Result<MemoryPlan> plan = PlanMemory(*shape, options);
  EXPECT_TRUE(plan.ok()) << plan.status().message();
  return *plan;
}

ShapeParams Attention(std::int64_t d_model, std::int64_t heads, std::int64_t kv_heads = 0) {
  ShapeParams params;
  params.d_model = d_model;
  params.num_heads = heads;
  params.num_kv_heads = kv_heads;
  return params;
}

TEST(PlanMemory, ProjectionsOfFullAttentionAreFourSquaresOfTheWidth) {
  for (const std::int64_t heads : {1, 4, 8, 16, 32, 64}) {
    const MemoryPlan plan = Plan(Attention(1024, heads), 128);
    EXPECT_EQ(plan.parameters, 4'194'304);
    EXPECT_EQ(plan.projection_parameters, 4'194'304);
    EXPECT_EQ(plan.weight_bytes, 2 * 4'194'304);
  }
}

TEST(PlanMemory, OperationsOfOneLayer) {
  const MemoryPlan plan = Plan(Attention(4096, 32), 2048);
  EXPECT_EQ(plan.flops.projections, 8LL * 2048 * 4096 * 4096);
  EXPECT_EQ(plan.flops.scores, 4LL * 2048 * 2048 * 4096);
  EXPECT_EQ(plan.flops.total(), 343'597'383'680);
  EXPECT_EQ(plan.flops.scores_seen, 4LL * 4096 * 2048 * 2049 / 2);
  EXPECT_EQ(plan.decode_flops.projections, 8LL * 4096 * 4096);
  EXPECT_EQ(plan.decode_flops.scores, 4LL * 2048 * 4096);
  EXPECT_EQ(plan.score_matrix_bytes, 32LL * 2048 * 2048 * 4);
}

// 32 heads to 8 at the same width: where only query heads go, keys and values go with them.
TEST(PlanMemory, FewerHeadsOfTheSameWidth) {
  const MemoryPlan many = Plan(Attention(4096, 32), 2048), few = Plan(Attention(4096, 8), 2048);
  EXPECT_EQ(many.parameters, few.parameters);
  EXPECT_EQ(many.flops.scores, few.flops.scores);
  EXPECT_EQ(many.score_matrix_bytes, 4 * few.score_matrix_bytes);
  EXPECT_EQ(many.kv_bytes, few.kv_bytes);
  const MemoryPlan grouped = Plan(Attention(4096, 32, 8), 2048);
  EXPECT_EQ(many.kv_bytes, 4 * grouped.kv_bytes);
  EXPECT_EQ(many.flops.scores, grouped.flops.scores);
  EXPECT_THAT(many.warnings, IsEmpty());
  ASSERT_EQ(few.warnings.size(), 1U);
  EXPECT_THAT(few.warnings[0], HasSubstr("head_dim = 512 of layer 0 is outside 64 to 128"));
  EXPECT_EQ(Plan(Attention(512, 16), 16).warnings.size(), 1U) << "32";
}

TEST(PlanMemory, LayersAndHeadsAddUpToTheWhole) {
  ShapeParams params = Attention(96, 6, 3);
  params.head_dim = 20;
  params.layers = 3;
  params.ffn_dim = 128;
  params.vocab_size = 300;
  params.qkv_bias = params.output_bias = params.qk_norm = true;
  params.window = 10;
  params.window_pattern = 2;
  const MemoryPlan plan = Plan(params, 100, 2);
  const std::int64_t norms = 2 * 96 + 2 * 20, ffn = 3 * 96 * 128, bias = 96;
  std::int64_t parameters = 2 * 300 * 96 + 96, kv_bytes = 0, scores = 0, seen = 0;
  for (std::size_t i = 0; i < plan.layers.size(); ++i) {
    const LayerPlan& layer = plan.layers[i];
    std::int64_t heads = 0;
    for (const HeadPlan& head : layer.heads) {
      // Two query heads, a key and a value head; two heads' columns of the output; biases.
      EXPECT_EQ(head.parameters, (2 + 1 + 1 + 2) * 20 * 96 + 4 * 20);
      EXPECT_EQ(head.kv_bytes, 2 * 2 * head.kv_bytes_per_token * 64) << "two pages, two sequences";
      heads += head.parameters;
      kv_bytes += head.kv_bytes;
      scores += head.flops.scores;
      seen += head.flops.scores_seen;
    }
    EXPECT_EQ(layer.parameters, heads + norms + ffn + bias);
    parameters += layer.parameters;
    const std::int64_t pairs = i == 1 ? 100 * 101 / 2 : 10 * 11 / 2 + 90 * 10;
    EXPECT_EQ(layer.flops.scores_seen, 2 * pairs * 6 * 4 * 20) << "layer " << i;
    EXPECT_EQ(layer.flops.feed_forward, 2LL * 2 * 100 * ffn);
  }
  EXPECT_EQ(plan.parameters, parameters);
  EXPECT_EQ(plan.kv_bytes, kv_bytes);
  EXPECT_EQ(plan.flops.scores, scores);
  EXPECT_EQ(plan.flops.scores_seen, seen);
  EXPECT_EQ(plan.flops.logits, 2LL * 2 * 300 * 96);
  EXPECT_EQ(plan.kv_bytes_per_token, 3 * 3 * (20 + 32) * 2) << "values in whole tiles of 16";
}

TEST(PlanMemory, CountsASharedEmbeddingOnce) {
  ShapeParams params = Attention(64, 1);
  params.vocab_size = 1000;
  const std::int64_t apart = Plan(params, 16).parameters;
  params.tied_embeddings = true;
  EXPECT_EQ(apart - Plan(params, 16).parameters, 64'000);
}

TEST(PlanMemory, CountsOnlyTheExpertsATokenGoesThrough) {
  const Result<ModelShape> shape = ParseModelShape(
      R"({"model_type": "mixtral", "hidden_size": 64, "num_hidden_layers": 1,
          "num_attention_heads": 1, "intermediate_size": 32, "vocab_size": 10,
          "num_local_experts": 8, "num_experts_per_tok": 2})");
  ASSERT_TRUE(shape.ok()) << shape.status().message();
  MemoryOptions options;
  options.session.context = 10;
  const Result<MemoryPlan> plan = PlanMemory(*shape, options);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(plan->flops.feed_forward, 2 * 10 * (2 * 3 * 64 * 32 + 8 * 64));
  ASSERT_EQ(plan->warnings.size(), 1U);
  EXPECT_THAT(plan->warnings[0], HasSubstr("experts"));
}

/// A plan of a file and a session of it with the same options, full to the last token.
void ExpectPlanned(const std::string& path, const SessionOptions& options, WeightStorage storage) {
  const Result<ModelShape> shape = ReadModelShape(path);
  ASSERT_TRUE(shape.ok()) << shape.status().message();
  const Result<MemoryPlan> plan =
      PlanMemory(*shape, {.session = options, .batch = 1, .weights = storage, .score = false});
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  const Result<Model> model = Model::Load(path, {.weights = storage, .threads = 1});
  ASSERT_TRUE(model.ok()) << model.status().message();
  EXPECT_EQ(plan->parameters, model->num_parameters());
  EXPECT_EQ(plan->weight_bytes, model->weight_bytes());
  EXPECT_EQ(plan->packed_bytes, model->packed_bytes());
  Result<Session> session = Session::Create(*model, options);
  ASSERT_TRUE(session.ok()) << session.status().message();
  EXPECT_EQ(plan->scratch_bytes, session->scratch_bytes());
  EXPECT_EQ(plan->kv_peak_bytes, session->cache().params().capacity_bytes);
  EXPECT_EQ(plan->kv_bytes_per_token, session->cache().bytes_per_token());
  const std::vector<TokenId> ids(static_cast<std::size_t>(session->context()), 1);
  ASSERT_TRUE(session->Append(ids).ok());
  if (!options.kv_policy.empty()) return;  // the session has no last eviction
  EXPECT_EQ(plan->kv_bytes, session->cache().usage().used_bytes);
  EXPECT_EQ(plan->kv_table_bytes, session->cache().usage().table_bytes);
}

TEST(PlanMemory, EqualsWhatASessionAllocates) {
  const std::string bundled = MANYHEAD_SOURCE_DIR "/tools/models/bundled.gguf";
  TinyModel tiny;
  tiny.family = "gemma3";
  tiny.layers = 3;
  tiny.window = 8;
  tiny.window_pattern = 2;
  tiny.MakeWeights(7);
  const TempDir dir;
  tiny.ToGguf().Write(dir.File("tiny.gguf"));
  for (const std::string& path : {dir.File("tiny.gguf"), bundled})
    for (const std::int64_t context : {1, 63, 200})
      for (const std::int64_t chunk : {1, 8, 17, 512})
        for (const MathMode math : {MathMode::kFast, MathMode::kExact}) {
          SCOPED_TRACE(::testing::Message()
                       << path << " context " << context << " chunk " << chunk);
          SessionOptions options;
          options.context = context;
          options.chunk = chunk;
          options.math = math;
          options.threads = 2;
          options.v_type = KvType::kInt8;
          ExpectPlanned(path, options, WeightStorage::kPacked);
          options.kv_policy = "sink(4)+recent(32)";
          ExpectPlanned(path, options, WeightStorage::kMapped);
          if (HasFatalFailure()) return;
        }
}

// A file of random weights for each kind of layers loads, runs and takes what was planned.
TEST(WriteRandomModel, RunsAsAModelOfItsFamily) {
  const char* const families[] = {"llama", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text"};
  const TempDir dir;
  for (const std::string family : families) {
    SCOPED_TRACE(family);
    const Result<ModelShape> shape = ParseModelShape(
        R"({"model_type": ")" + family + R"(", "hidden_size": 64, "num_hidden_layers": 3,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
            "intermediate_size": 96, "vocab_size": 100, "sliding_window": 8})");
    ASSERT_TRUE(shape.ok()) << shape.status().message();
    const std::string path = dir.File(family + ".gguf");
    const Status status = WriteRandomModel(*shape, path);
    ASSERT_TRUE(status.ok()) << status.message();
    SessionOptions options;
    options.context = 20;
    ExpectPlanned(path, options, WeightStorage::kPacked);
  }
}

// Fused projections are bound, packed and planned as three matrices.
TEST(WriteRandomModel, RunsGpt2) {
  const TempDir dir;
  const std::string path = dir.File("gpt2.gguf");
  for (const WeightType type : {WeightType::kF16, WeightType::kQ8_0}) {
    const Result<ModelShape> shape = ParseModelShape(
        R"({"model_type": "gpt2", "n_embd": 96, "n_layer": 2, "n_head": 4, "n_positions": 40,
            "vocab_size": 100})",
        type);
    ASSERT_TRUE(shape.ok()) << shape.status().message();
    const Status status = WriteRandomModel(*shape, path);
    ASSERT_TRUE(status.ok()) << status.message();
    const Result<ModelShape> read = ReadModelShape(path);
    ASSERT_TRUE(read.ok()) << read.status().message();
    EXPECT_EQ(read->tensors.size(), shape->tensors.size());
    SessionOptions options;
    options.context = 20;
    ExpectPlanned(path, options, WeightStorage::kPacked);
  }
}

TEST(PlanMemory, PolicyKeepsWhatItSays) {
  ShapeParams params = Attention(128, 2);
  params.layers = 2;
  MemoryOptions options;
  options.session.context = 8192;
  options.session.kv_policy =
      R"json({"heads": [{"layers": [1], "kv_heads": [0], "policy": "sink(4)+recent(256)"},
                        {"layers": [1], "kv_heads": [1], "policy": "off"}]})json";
  const Result<MemoryPlan> plan = PlanMemory(*MakeModelShape(params), options);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  const std::int64_t page = 64 * 64 * 2 * 2;
  EXPECT_EQ(plan->layers[0].kv_bytes, 2 * 128 * page);
  // The page of the sinks, and the four that hold the last 256 of 8192 tokens.
  EXPECT_EQ(plan->layers[1].heads[0].kv_bytes, 5 * page);
  EXPECT_EQ(plan->layers[1].heads[0].kv_tokens, 5 * 64);
  EXPECT_EQ(plan->layers[1].heads[1].kv_bytes, 0);
  EXPECT_GT(plan->kv_peak_bytes, plan->kv_bytes + plan->kv_table_bytes);
}

TEST(PlanMemory, TotalIsTheSumOfItsParts) {
  ShapeParams params = Attention(256, 4);
  params.ffn_dim = 512;
  params.vocab_size = 1024;
  params.weight_type = WeightType::kQ8_0;
  const MemoryPlan plan = Plan(params, 1024);
  EXPECT_EQ(plan.total_bytes, plan.packed_bytes + plan.mapped_bytes + plan.vector_bytes +
                                  plan.tokenizer_bytes + plan.process_bytes + plan.kv_peak_bytes +
                                  plan.scratch_bytes);
  EXPECT_EQ(plan.vector_bytes, 3 * 256 * 4);
  EXPECT_GE(plan.packed_bytes + plan.mapped_bytes + plan.vector_bytes, plan.weight_bytes);
}

TEST(PlanMemory, NamesWhatIsOutOfRange) {
  const auto message = [](const ModelShape& shape, auto change) {
    MemoryOptions options;
    options.session.context = 64;
    change(options);
    const Result<MemoryPlan> plan = PlanMemory(shape, options);
    return plan.ok() ? std::string("no error") : plan.status().message();
  };
  const ModelShape shape = *MakeModelShape(Attention(64, 1));
  EXPECT_EQ(message(shape, [](MemoryOptions&) {}), "no error");
  EXPECT_THAT(message(shape, [](MemoryOptions& o) { o.batch = 0; }), HasSubstr("batch = 0"));
  EXPECT_THAT(message(shape, [](MemoryOptions& o) { o.session.context = -5; }),
              HasSubstr("context = -5"));
  EXPECT_THAT(message(shape, [](MemoryOptions& o) { o.session.context = INT64_MAX; }),
              HasSubstr("context = 9223372036854775807"));
  EXPECT_THAT(message(shape, [](MemoryOptions& o) { o.session.kv_policy = "window(0)"; }),
              HasSubstr("window"));
  ShapeParams large = Attention(1 << 18, 256);
  large.layers = 4096;
  EXPECT_THAT(message(*MakeModelShape(large),
                      [](MemoryOptions& o) {
                        o.session.context = std::int64_t{1} << 31;
                        o.batch = 1 << 20;
                      }),
              HasSubstr("2^63 - 1"));
  ModelShape broken = shape;
  broken.config.layers[0].num_kv_heads = 0;
  EXPECT_THAT(message(broken, [](MemoryOptions&) {}), HasSubstr("num_kv_heads = 0"));
  broken.config.layers.clear();
  EXPECT_THAT(message(broken, [](MemoryOptions&) {}), HasSubstr("0 layers"));
}

}  // namespace
}  // namespace manyhead
