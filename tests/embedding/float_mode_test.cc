#include <gtest/gtest.h>
#include <immintrin.h>

#include <cstdint>
#include <string>
#include <vector>

#include "manyhead/c_api.h"
#include "manyhead/manyhead.h"
#include "tests/support/temp_dir.h"

// microsoft/onnxruntime#7448: denormals are flushed inside, for speed, and a host never notices:
// its own floating-point mode is what it was after a call of any kind.

namespace manyhead {
namespace {

const std::string kPath = std::string(MANYHEAD_SOURCE_DIR) + "/tools/models/bundled.gguf";

/// Exception flags are sticky: all arithmetic of the thread sets them.
constexpr unsigned kFlags = 0x3F;
/// The default; flushing denormals; rounding toward zero; both.
constexpr unsigned kModes[] = {0x1F80, 0x9FC0, 0x7F80, 0xFFC0};

/// Runs call() in each mode, which it must leave as it was.
template <class Call>
void ExpectModeKept(const char* what, Call&& call) {
  for (const unsigned mode : kModes) {
    const unsigned saved = _mm_getcsr();
    _mm_setcsr(mode);
    const bool ok = call();
    const unsigned after = _mm_getcsr();
    _mm_setcsr(saved);
    EXPECT_TRUE(ok) << what << " in mode " << mode;
    EXPECT_EQ(after & ~kFlags, mode & ~kFlags) << what;
  }
}

Model LoadModel() {
  auto model = Model::Load(kPath);
  EXPECT_TRUE(model.ok()) << model.status().message();
  return *std::move(model);
}

std::vector<TokenId> Ids(std::int64_t count) {
  std::vector<TokenId> ids;
  for (std::int64_t i = 0; i < count; ++i) ids.push_back(static_cast<TokenId>(3 + i * 37 % 250));
  return ids;
}

TEST(FloatMode, ModelsAndSessions) {
  const testing::TempDir dir;
  const Model model = LoadModel();
  auto session = Session::Create(model, {.context = 256, .threads = 2});
  ASSERT_TRUE(session.ok());
  const std::vector<TokenId> ids = Ids(40);
  std::vector<double> nll(ids.size() - 1);
  ExpectModeKept("Load", [] { return Model::Load(kPath, {.threads = 2}).ok(); });
  ExpectModeKept("Create", [&] { return Session::Create(model, {.context = 64}).ok(); });
  ExpectModeKept("Encode", [&] { return model.tokenizer().Encode("the small bird").ok(); });
  ExpectModeKept("Append", [&] { return session->Append(ids).ok(); });  // runs in oneDNN
  ExpectModeKept("Append", [&] { return session->Append(std::span(ids).first(1)).ok(); });
  ExpectModeKept("Truncate", [&] { return session->Truncate(20).ok(); });
  ExpectModeKept("Score", [&] { return session->Score(ids, nll).ok(); });
  GenerateOptions options;
  options.max_tokens = 8;
  options.sampling.temperature = 1;
  options.sampling.top_p = 0.9F;
  ExpectModeKept("Generate", [&] { return session->Generate(ids, options).ok(); });
  ExpectModeKept("Save", [&] { return session->Save(dir.File("state")).ok(); });
  ExpectModeKept("Restore", [&] { return session->Restore(dir.File("state")).ok(); });
}

TEST(FloatMode, HeadsOfModels) {
  const Model model = LoadModel();
  const std::vector<TokenId> ids = Ids(300);
  ExpectModeKept("CalibrateKv", [&] {
    CalibrateOptions options;
    options.budget_fraction = 0.5;
    options.context = 256;
    return CalibrateKv(model, ids, options).ok();
  });
  ExpectModeKept("ClassifyHeads", [&] { return ClassifyHeads(model, {}).ok(); });
  ExpectModeKept("DescribeCircuits", [&] { return DescribeCircuits(model).ok(); });
  ExpectModeKept("MeasureHeadEffects",
                 [&] { return MeasureHeadEffects(model, std::span(ids).first(64), {}, {}).ok(); });
}

TEST(FloatMode, CachesAndPlans) {
  const testing::TempDir dir;
  const std::string file = dir.File("cache");
  constexpr std::int64_t kHeads = 2, kDim = 32, kTokens = 48;
  const std::vector<float> rows(kTokens * kHeads * kDim, 0.25F);
  std::vector<float> out(rows.size());
  for (const KvType type :
       {KvType::kF32, KvType::kF16, KvType::kBf16, KvType::kInt8, KvType::kInt4}) {
    KvCacheParams cache_params;
    cache_params.layers = {{kHeads, kDim, kDim}};
    cache_params.k_type = cache_params.v_type = type;
    cache_params.capacity_bytes = 1 << 20;
    cache_params.max_tokens = 128;
    auto cache = KvCache::Create(cache_params);
    ASSERT_TRUE(cache.ok()) << cache.status().message();
    ExpectModeKept("a cache", [&] {
      const auto sequence = cache->CreateSequence();
      if (!sequence.ok() || !cache->Reserve(*sequence, kTokens).ok()) return false;
      const bool written = cache->Write(*sequence, 0, 0, kTokens, rows.data(), rows.data()).ok();
      const auto fork = cache->Fork(*sequence);
      const bool used = fork.ok() && cache->Truncate(*fork, 20).ok() &&
                        cache->Read(*fork, 0, 1, 3, out.data(), nullptr).ok() &&
                        cache->Drop(*fork, 0, 8).ok() && cache->Evict(*fork).ok();
      const SequenceId saved[] = {*sequence};
      return written && used && cache->Save(file, saved).ok() && cache->Restore(file).ok();
    });
    AttentionParams params;
    params.num_heads = 2 * kHeads;
    params.num_kv_heads = kHeads;
    params.head_dim = kDim;
    params.max_q_len = params.max_kv_len = kTokens;
    params.threads = 2;
    auto plan = AttentionPlan::Create(params);
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    const SequenceId first[] = {cache->sequences().front()};
    const std::int64_t indptr[] = {0, 1};
    std::vector<float> results(2 * rows.size());
    ExpectModeKept("Run over a cache", [&] {
      return plan->Run(*cache, 0, first, indptr, rows.data(), results.data()).ok();
    });
    ExpectModeKept("Run", [&] {
      return plan->Run(1, kTokens, rows.data(), rows.data(), rows.data(), results.data()).ok();
    });
  }
}

TEST(FloatMode, LayersWithProjections) {
  constexpr std::int64_t kModel = 32, kTokens = 12;
  const std::vector<float> weight(kModel * kModel, 0.1F), x(kTokens * kModel, 1.0F);
  std::vector<float> out(x.size());
  const ProjectionWeights w = F32Weights(weight);
  MultiHeadAttentionParams params;
  params.d_model = kModel;
  params.attention.num_heads = 4;
  params.attention.max_q_len = params.attention.max_kv_len = kTokens;
  params.attention.threads = 2;
  auto layer = MultiHeadAttention::Create(params, {w, w, w, w});
  ASSERT_TRUE(layer.ok()) << layer.status().message();
  for (const std::int64_t rows : {std::int64_t{1}, kTokens})  // own products, and oneDNN's
    ExpectModeKept("Forward", [&] { return layer->Forward(rows, x.data(), out.data()).ok(); });
}

TEST(FloatMode, TheCInterface) {
  mh_model* model = nullptr;
  mh_session* session = nullptr;
  ExpectModeKept("mh_model_load", [&] {
    mh_model_free(&model);
    return mh_model_load(kPath.c_str(), nullptr, &model, nullptr) == MH_OK;
  });
  ExpectModeKept("mh_session_create", [&] {
    mh_session_free(&session);
    return mh_session_create(model, nullptr, &session, nullptr) == MH_OK;
  });
  const std::vector<std::int32_t> ids = Ids(20);
  mh_generate_options options;
  mh_generate_options_init(&options);
  options.max_tokens = 8;
  ExpectModeKept("mh_session_generate", [&] {
    return mh_session_generate(session, ids.data(), ids.size(), &options, nullptr) == MH_OK;
  });
  mh_session_free(&session);
  mh_model_free(&model);
}

}  // namespace
}  // namespace manyhead
