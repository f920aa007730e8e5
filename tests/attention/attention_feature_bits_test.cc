// Tests changes that must not change a single bit while every feature is on, and side effects that
// Run must not have.

#include <gtest/gtest.h>
#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <thread>
#include <utility>
#include <vector>

#include "tests/attention/attention_config.h"
#include "tests/attention/attention_fixture.h"
#include "tests/support/allocation_meter.h"

namespace manyhead::testing {
namespace {

class AttentionFeatureBits : public EveryIsa {
 protected:
  /// Soft-cap, bias, mask, sinks, window and ALiBi.
  AttentionConfig Everything(Route route, KvType type) {
    AttentionConfig config;
    config.isa = GetParam();
    config.route = route;
    config.k_type = config.v_type = type;
    config.head_dim = 24;
    config.head_dim_v = 24;
    config.softcap = 5;
    config.gain = 2;
    config.window = 250;
    config.num_sink_tokens = 5;
    config.alibi = config.sinks = true;
    config.bias = config.mask = Spread::kFull;
    return config;
  }
};
INSTANTIATE_TEST_SUITE_P(Isa, AttentionFeatureBits, ::testing::ValuesIn(kAllIsas), IsaTestName);

constexpr std::pair<Route, KvType> kStores[] = {
    {Route::kTensors, KvType::kF32}, {Route::kTensors, KvType::kF16},
    {Route::kCache, KvType::kF32},   {Route::kCache, KvType::kF16},
    {Route::kCache, KvType::kBf16},  {Route::kCache, KvType::kInt8},
    {Route::kCache, KvType::kInt4},
};

Rows RunFresh(const AttentionConfig& config) {
  ConfigInputs inputs = MakeInputs(config);
  return RunConfig(config, inputs);
}

void ExpectSameBits(const Rows& a, const Rows& b) {
  EXPECT_EQ(a.out_THD, b.out_THD);
  EXPECT_EQ(a.lse_TH, b.lse_TH);
}

void Append(Rows& all, const Rows& part) {
  all.out_THD.insert(all.out_THD.end(), part.out_THD.begin(), part.out_THD.end());
  all.lse_TH.insert(all.lse_TH.end(), part.lse_TH.begin(), part.lse_TH.end());
}

template <class T>
void Advance(LogitTensor<T>& tensor, std::int64_t request, std::int64_t query) {
  if (tensor.data == nullptr) return;
  tensor.data += request * tensor.batch_stride + query * tensor.query_stride;
}

template <class T>
std::vector<T> QueryRows(const std::vector<T>& all_HTS, const AttentionCase& shape,
                         std::int64_t first, std::int64_t q_len, std::int64_t kv_len) {
  std::vector<T> part;
  if (all_HTS.empty()) return part;
  for (std::int64_t h = 0; h < shape.num_heads; ++h) {
    for (std::int64_t t = first; t < first + q_len; ++t) {
      const auto row = all_HTS.begin() + (h * shape.q_len + t) * shape.kv_len;
      part.insert(part.end(), row, row + kv_len);
    }
  }
  return part;
}

/// Queries [first, first + q_len) of request `b` as inputs of their own, over the first kv_len
/// keys.
ConfigInputs Part(const ConfigInputs& whole, std::size_t b, std::int64_t first, std::int64_t q_len,
                  std::int64_t kv_len) {
  const RequestInputs& from = whole.requests[b];
  const AttentionCase& shape = from.shape;
  ConfigInputs part;
  part.requests.resize(1);
  RequestInputs& to = part.requests[0];
  to.shape = shape;
  to.shape.q_len = q_len;
  to.shape.kv_len = kv_len;
  to.shape.bias_HTS = QueryRows(shape.bias_HTS, shape, first, q_len, kv_len);
  to.shape.mask_HTS = QueryRows(shape.mask_HTS, shape, first, q_len, kv_len);
  const std::int64_t q_row = shape.num_heads * shape.head_dim;
  to.q_THD.assign(from.q_THD.begin() + first * q_row, from.q_THD.begin() + (first + q_len) * q_row);
  to.k_SKD.assign(from.k_SKD.begin(),
                  from.k_SKD.begin() + kv_len * shape.num_kv_heads * shape.head_dim);
  to.v_SKD.assign(from.v_SKD.begin(),
                  from.v_SKD.begin() + kv_len * shape.num_kv_heads * shape.head_dim_v);
  part.logits.view = whole.logits.view;
  Advance(part.logits.view.bias, static_cast<std::int64_t>(b), first);
  Advance(part.logits.view.mask, static_cast<std::int64_t>(b), first);
  return part;
}

Rows RunPart(AttentionConfig config, const ConfigInputs& whole, std::size_t b, std::int64_t first,
             std::int64_t q_len, std::int64_t kv_len) {
  ConfigInputs part = Part(whole, b, first, q_len, kv_len);
  config.q_lens = {q_len};
  config.kv_lens = {kv_len};
  return RunConfig(config, part);
}

TEST_P(AttentionFeatureBits, ThreadCountsAgree) {
  for (const auto& [route, type] : kStores) {
    for (const std::int64_t T : {1, 4, 90}) {
      AttentionConfig config = Everything(route, type);
      SCOPED_TRACE(Describe(config));
      config.window = 900;
      config.q_lens = {T};
      config.kv_lens = {T == 90 ? 300 : 1700};
      const Rows one = RunFresh(config);
      for (const int threads : {2, 3, 5, 8}) {
        config.threads = threads;
        ExpectSameBits(RunFresh(config), one);
      }
    }
  }
}

TEST_P(AttentionFeatureBits, ThreadCountsAgreeOverARaggedBatch) {
  for (const auto& [route, type] : kStores) {
    AttentionConfig config = Everything(route, type);
    SCOPED_TRACE(Describe(config));
    config.q_lens = {3, 3, 3, 3};
    if (route == Route::kCache) config.q_lens = {1, 50, 0, 3};
    config.kv_lens = {1100, 50, 20, 600};
    const Rows one = RunFresh(config);
    for (const int threads : {2, 3, 5, 8}) {
      config.threads = threads;
      ExpectSameBits(RunFresh(config), one);
    }
  }
}

TEST_P(AttentionFeatureBits, ARequestAloneEqualsItInABatch) {
  for (const auto& [route, type] : kStores) {
    AttentionConfig config = Everything(route, type);
    SCOPED_TRACE(Describe(config));
    config.threads = 3;
    config.q_lens = {2, 2, 2, 2};
    if (route == Route::kCache) config.q_lens = {1, 70, 2, 1};
    config.kv_lens = {1300, 70, 9, 513};
    ConfigInputs inputs = MakeInputs(config);
    Rows alone;
    for (std::size_t b = 0; b < config.q_lens.size(); ++b) {
      Append(alone, RunPart(config, inputs, b, 0, config.q_lens[b], config.kv_lens[b]));
    }
    ExpectSameBits(RunConfig(config, inputs), alone);
  }
}

TEST_P(AttentionFeatureBits, ChunksOfAnySizeEqualOnePrefill) {
  for (const auto& [route, type] : kStores) {
    AttentionConfig config = Everything(route, type);
    SCOPED_TRACE(Describe(config));
    config.window = 100;
    config.threads = 2;
    config.q_lens = {230};
    config.kv_lens = {230};
    ConfigInputs inputs = MakeInputs(config);
    const ConfigInputs parts = MakeInputs(config);
    const Rows whole = RunConfig(config, inputs);
    for (const std::int64_t chunk : {1, 7, 16, 64, 113}) {
      SCOPED_TRACE(chunk);
      Rows joined;
      for (std::int64_t done = 0; done < 230; done += chunk) {
        const std::int64_t count = std::min(chunk, 230 - done);
        Append(joined, RunPart(config, parts, 0, done, count, done + count));
      }
      ExpectSameBits(joined, whole);
    }
  }
}

TEST_P(AttentionFeatureBits, PagesOfAnySizeEqualTensors) {
  AttentionConfig config = Everything(Route::kTensors, KvType::kF32);
  config.q_lens = {60};
  config.kv_lens = {600};
  const Rows tensors = RunFresh(config);
  config.route = Route::kCache;
  for (const std::int64_t page_size : {16, 48, 64, 1024}) {
    config.page_size = page_size;
    ExpectSameBits(RunFresh(config), tensors);
  }
}

// Broadcasting says the same as repeating.
TEST_P(AttentionFeatureBits, BroadcastLogitsEqualRepeatedOnes) {
  AttentionConfig config = Everything(Route::kTensors, KvType::kF32);
  config.q_lens = {9, 9};
  config.kv_lens = {90, 90};
  config.bias = config.mask = Spread::kKeys;
  ConfigInputs inputs = MakeInputs(config);
  const Rows broadcast = RunConfig(config, inputs);
  std::vector<float> bias;
  std::vector<std::uint8_t> mask;
  for (const RequestInputs& request : inputs.requests) {
    bias.insert(bias.end(), request.shape.bias_HTS.begin(), request.shape.bias_HTS.end());
    mask.insert(mask.end(), request.shape.mask_HTS.begin(), request.shape.mask_HTS.end());
  }
  inputs.logits.view.bias = {bias.data(), 90, 6 * 9 * 90, 9 * 90, 90};
  inputs.logits.view.mask = {mask.data(), 90, 6 * 9 * 90, 9 * 90, 90};
  ExpectSameBits(RunConfig(config, inputs), broadcast);
}

/// Plain tensors and a cache with every feature on.
class BothWays {
 public:
  explicit BothWays(const AttentionParams& params)
      : plan_(MakePlan(params)),
        filled_(FillCache({6, 2, 24, 24}, KvType::kF16, KvType::kF16, 64, {{k_, v_}}, kNan)) {
    tensors_.q_len = 2;
    tensors_.kv_len = kLength;
    tensors_.q = {q_.data(), 0, 144, 24};
    tensors_.k = {k_.data(), 0, 48, 24};
    tensors_.v = {v_.data(), 0, 48, 24};
    tensors_.out = {out_THD.data(), 0, 144, 24};
    tensors_.bias.bias = {bias_.data(), kLength, 0, 0, kLength};
  }
  bool Run() {
    const std::int64_t qo_indptr[] = {0, 2};
    const Status cached = plan_.Run(filled_.cache, 0, filled_.ids, qo_indptr, q_.data(),
                                    paged_THD.data(), nullptr, tensors_.bias);
    return cached.ok() && plan_.Run(tensors_).ok();
  }

  static AttentionParams Params(Isa isa, int threads) {
    AttentionParams params = ParamsFor(AttentionCase{6, 2, 24, 24, 2, kLength, 0.3}, isa, threads);
    params.logit_softcap = 3;
    params.window = 1500;
    params.num_sink_tokens = 4;
    params.alibi_slopes = AlibiSlopes(6);
    params.sink_logits = {0, 1, 2, 3, -1, -kInf};
    return params;
  }

  std::vector<float> out_THD = std::vector<float>(288), paged_THD = out_THD;

 private:
  static constexpr std::int64_t kLength = 1600;
  std::vector<float> q_ = RandomTensor(288, 1), k_ = RandomTensor(kLength * 48, 2),
                     v_ = RandomTensor(kLength * 48, 3), bias_ = RandomTensor(kLength * 2, 4);
  AttentionPlan plan_;
  FilledCache filled_;
  AttentionTensors tensors_;
};

/// Eight runs of one plan with different positions and numbers of keys and different biases.
class DifferentRuns {
 public:
  static constexpr int kWays = 8;
  AttentionParams Params(Isa isa) const { return ParamsFor(shape_, isa, 2); }

  std::vector<float> Run(AttentionPlan& plan, int way) const {
    std::vector<float> out(3 * 96, kNan);
    const std::int64_t qo_indptr[] = {0, 3};
    AttentionTensors tensors;
    if (way % 2 == 1) tensors.bias.bias = {bias_.data(), 700, 0, 0, 0};
    tensors.q_len = 3;
    tensors.kv_len = way < 4 ? 700 : 20;
    tensors.q = {q_.data(), 0, 96, 24};
    tensors.k = {k_.data(), 0, 48, 24};
    tensors.v = {v_.data(), 0, 48, 24};
    tensors.out = {out.data(), 0, 96, 24};
    const Status status = way % 4 < 2 ? plan.Run(filled_.cache, 0, filled_.ids, qo_indptr,
                                                 q_.data(), out.data(), nullptr, tensors.bias)
                                      : plan.Run(tensors);
    EXPECT_TRUE(status.ok()) << status.message();
    return out;
  }

 private:
  AttentionCase shape_{4, 2, 24, 24, 3, 700, 0.3};
  std::vector<float> q_ = RandomTensor(3 * 96, 1), k_ = RandomTensor(700 * 48, 2),
                     v_ = RandomTensor(700 * 48, 3), bias_ = RandomTensor(700, 4);
  FilledCache filled_ = FillCache(shape_, KvType::kF16, KvType::kF32, 64, {{k_, v_}}, kNan);
};

// A plan keeps nothing of what it ran before: bias, cache, lengths.
TEST_P(AttentionFeatureBits, EveryRunStandsAlone) {
  const DifferentRuns runs;
  AttentionPlan used = MakePlan(runs.Params(GetParam()));
  for (const int way : {0, 1, 0, 2, 3, 2, 1, 6, 7, 0, 3, 6, 1}) {
    AttentionPlan fresh = MakePlan(runs.Params(GetParam()));
    EXPECT_EQ(runs.Run(used, way), runs.Run(fresh, way)) << way;
  }
}

TEST_P(AttentionFeatureBits, HostThreadsTakeTurnsWithOnePlan) {
  const DifferentRuns runs;
  AttentionPlan plan = MakePlan(runs.Params(GetParam()));
  std::vector<std::vector<float>> expected;
  for (int way = 0; way < DifferentRuns::kWays; ++way) expected.push_back(runs.Run(plan, way));
  std::vector<std::thread> hosts;
  std::vector<int> wrong(4);
  for (std::size_t host = 0; host < wrong.size(); ++host) {
    hosts.emplace_back([&, host] {
      for (int i = 0; i < 16; ++i) {
        const int way = (static_cast<int>(host) * 3 + i) % DifferentRuns::kWays;
        wrong[host] += runs.Run(plan, way) == expected[way] ? 0 : 1;
      }
    });
  }
  for (std::thread& host : hosts) host.join();
  EXPECT_EQ(wrong, std::vector<int>(4, 0));
}

TEST_P(AttentionFeatureBits, RunAllocatesNothingAndKeepsTheFloatingPointMode) {
  for (const int threads : {1, 3}) {
    BothWays ways(BothWays::Params(GetParam(), threads));
    for (const unsigned mode : {0x1f80U, 0x9fc0U, 0x7f80U}) {  // default; flushing; toward zero
      const unsigned saved = _mm_getcsr();
      _mm_setcsr(mode);
      ResetAllocationMeter();
      const bool ok = ways.Run();
      const std::size_t allocations = NumAllocations();
      const unsigned after = _mm_getcsr();
      _mm_setcsr(saved);
      EXPECT_TRUE(ok);
      EXPECT_EQ(allocations, 0U);
      EXPECT_EQ(after & ~0x3fU, mode & ~0x3fU);  // but for the sticky exception flags
    }
  }
}

TEST_P(AttentionFeatureBits, HostThreadsRunPlansOfTheirOwnAtOnce) {
  BothWays expected(BothWays::Params(GetParam(), 1));
  ASSERT_TRUE(expected.Run());
  std::vector<std::thread> hosts;
  std::vector<int> wrong(4);
  for (std::size_t i = 0; i < wrong.size(); ++i) {
    hosts.emplace_back([&, i] {
      BothWays mine(BothWays::Params(GetParam(), static_cast<int>(i % 2 + 1)));
      for (int run = 0; run < 8; ++run) {
        std::fill(mine.out_THD.begin(), mine.out_THD.end(), kNan);
        std::fill(mine.paged_THD.begin(), mine.paged_THD.end(), kNan);
        const bool same =
            mine.Run() && mine.out_THD == expected.out_THD && mine.paged_THD == expected.paged_THD;
        wrong[i] += same ? 0 : 1;
      }
    });
  }
  for (std::thread& host : hosts) host.join();
  EXPECT_EQ(wrong, std::vector<int>(4, 0));
}

}  // namespace
}  // namespace manyhead::testing
