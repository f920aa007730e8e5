#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "manyhead/attention.h"
#include "manyhead/isa.h"
#include "manyhead/kv_cache.h"
#include "tests/support/attention_reference.h"

namespace manyhead::testing {

inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
inline constexpr float kInf = std::numeric_limits<float>::infinity();

/// Skips, visibly, what this CPU cannot run.
class EveryIsa : public ::testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    for (const Isa isa : SupportedIsas()) {
      if (isa == GetParam()) return;
    }
    GTEST_SKIP() << "this CPU cannot run " << IsaName(GetParam());
  }
};

inline std::string IsaTestName(const ::testing::TestParamInfo<Isa>& info) {
  return IsaName(info.param);
}

/// Those with attention kernels of their own.
inline constexpr Isa kAllIsas[] = {Isa::kScalar, Isa::kAvx2, Isa::kAvx512};

/// Numbers between two guards, at an address that is a multiple of 4 bytes only; NaN until written.
class GuardedOutput {
 public:
  explicit GuardedOutput(std::int64_t n)
      : memory_(static_cast<std::size_t>(n) + 2 * kGuard, kGuardValue), size_(n) {
    for (std::int64_t i = 0; i < n; ++i) data()[i] = kNan;
  }
  float* data() { return memory_.data() + kGuard; }
  std::vector<float> values() const {
    return {memory_.begin() + kGuard, memory_.begin() + kGuard + size_};
  }
  bool guards_intact() const {
    for (std::int64_t i = 0; i < kGuard; ++i) {
      if (memory_[i] != kGuardValue || memory_[kGuard + size_ + i] != kGuardValue) return false;
    }
    return true;
  }

 private:
  static constexpr std::int64_t kGuard = 33;
  static constexpr float kGuardValue = -12345.0F;
  std::vector<float> memory_;
  std::int64_t size_;
};

struct Output {
  std::vector<float> out_THD;
  std::vector<float> lse_TH;
};

inline AttentionParams ParamsFor(const AttentionCase& shape, Isa isa, int threads = 1) {
  AttentionParams params;
  params.num_heads = shape.num_heads;
  params.num_kv_heads = shape.num_kv_heads;
  params.head_dim = shape.head_dim;
  params.head_dim_v = shape.head_dim_v;
  params.max_q_len = shape.q_len;
  params.max_kv_len = shape.kv_len > 0 ? shape.kv_len : 1;
  params.softmax_scale = static_cast<float>(shape.scale);
  params.causal = shape.causal;
  params.window = shape.window;
  params.threads = threads;
  params.isa = isa;
  return params;
}

/// Returns valid parameters of a plan, for tests that make one of them invalid.
inline AttentionParams GoodParams() {
  AttentionParams params;
  params.num_heads = 4;
  params.num_kv_heads = 2;
  params.head_dim = 8;
  params.max_q_len = 6;
  params.max_kv_len = 20;
  params.threads = 1;
  return params;
}

inline AttentionPlan MakePlan(const AttentionParams& params) {
  Result<AttentionPlan> plan = AttentionPlan::Create(params);
  if (!plan.ok()) ADD_FAILURE() << plan.status().message();
  return std::move(*plan);
}

/// A one-layer cache that holds `sequences.size()` sequences, packed by PackPages.
struct CachedSequence {
  std::vector<float> k_SKD;
  std::vector<float> v_SKD;
};

struct FilledCache {
  KvCache cache;
  std::vector<SequenceId> ids;
};

inline FilledCache FillCache(const AttentionCase& shape, KvType k_type, KvType v_type,
                             std::int64_t page_size, const std::vector<CachedSequence>& sequences,
                             float poison) {
  KvCacheParams params;
  params.layers = {{shape.num_kv_heads, shape.head_dim, shape.head_dim_v}};
  params.k_type = k_type;
  params.v_type = v_type;
  params.page_size = page_size;
  params.max_tokens = 1;
  for (const CachedSequence& sequence : sequences) {
    const auto tokens =
        static_cast<std::int64_t>(sequence.k_SKD.size()) / (shape.num_kv_heads * shape.head_dim);
    params.max_tokens = std::max(params.max_tokens, tokens);
  }
  Result<std::int64_t> bytes =
      KvCapacityBytes(params, static_cast<std::int64_t>(sequences.size()), params.max_tokens);
  EXPECT_TRUE(bytes.ok()) << bytes.status().message();
  params.capacity_bytes = *bytes;
  Result<KvCache> cache = KvCache::Create(params);
  EXPECT_TRUE(cache.ok()) << cache.status().message();
  FilledCache filled{std::move(*cache), {}};
  for (const CachedSequence& sequence : sequences) {
    const Result<SequenceId> id = filled.cache.CreateSequence();
    EXPECT_TRUE(id.ok());
    const auto tokens =
        static_cast<std::int64_t>(sequence.k_SKD.size()) / (shape.num_kv_heads * shape.head_dim);
    EXPECT_TRUE(filled.cache.Reserve(*id, tokens).ok());
    PackPages(filled.cache, *id, 0, shape.num_kv_heads, sequence.k_SKD, sequence.v_SKD, poison);
    filled.ids.push_back(*id);
  }
  return filled;
}

/// Runs over plain tensors, and checks guards.
inline Output RunTensors(AttentionPlan& plan, const AttentionCase& shape,
                         const std::vector<float>& q_THD, const std::vector<float>& k_SKD,
                         const std::vector<float>& v_SKD) {
  GuardedOutput out(shape.q_len * shape.num_heads * shape.head_dim_v);
  GuardedOutput lse(shape.q_len * shape.num_heads);
  const Status status = plan.Run(shape.q_len, shape.kv_len, q_THD.data(), k_SKD.data(),
                                 v_SKD.data(), out.data(), lse.data());
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_TRUE(out.guards_intact() && lse.guards_intact());
  return {out.values(), lse.values()};
}

/// Runs over a cache; qo_indptr empty = one query per sequence.
inline Output RunCache(AttentionPlan& plan, const FilledCache& filled,
                       const std::vector<std::int64_t>& qo_indptr,
                       const std::vector<float>& q_THD) {
  const AttentionParams& params = plan.params();
  const auto tokens =
      static_cast<std::int64_t>(q_THD.size()) / (params.num_heads * params.head_dim);
  GuardedOutput out(tokens * params.num_heads * params.head_dim_v);
  GuardedOutput lse(tokens * params.num_heads);
  const Status status =
      plan.Run(filled.cache, 0, filled.ids, qo_indptr.empty() ? nullptr : qo_indptr.data(),
               q_THD.data(), out.data(), lse.data());
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_TRUE(out.guards_intact() && lse.guards_intact());
  return {out.values(), lse.values()};
}

/// Compares with the reference and reports the worst element.
inline void ExpectNear(const Output& actual, const AttentionResult& expected, double tolerance,
                       double lse_tolerance) {
  ASSERT_EQ(actual.out_THD.size(), expected.out_THD.size());
  double worst = 0;
  std::size_t where = 0;
  for (std::size_t i = 0; i < actual.out_THD.size(); ++i) {
    const double error = std::fabs(actual.out_THD[i] - expected.out_THD[i]);
    if (!(error <= worst)) worst = error, where = i;
    if (std::isnan(error)) break;
  }
  ASSERT_LE(worst, tolerance) << "out[" << where << "] = " << actual.out_THD[where] << ", expected "
                              << expected.out_THD[where];
  for (std::size_t i = 0; i < actual.lse_TH.size(); ++i) {
    if (std::isinf(expected.lse_TH[i])) {
      ASSERT_EQ(actual.lse_TH[i], expected.lse_TH[i]);
    } else {
      ASSERT_NEAR(actual.lse_TH[i], expected.lse_TH[i], lse_tolerance) << "lse[" << i << "]";
    }
  }
}

}  // namespace manyhead::testing
