// Small inputs of public bug reports on other attention code, with their right values.

#include <gtest/gtest.h>
#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "tests/attention/attention_fixture.h"
#include "tests/support/attention_reference.h"

namespace manyhead::testing {
namespace {

class AttentionReports : public EveryIsa {};
INSTANTIATE_TEST_SUITE_P(Isa, AttentionReports, ::testing::ValuesIn(kAllIsas), IsaTestName);

std::vector<float> Ones(std::int64_t n, float value = 1) {
  return std::vector<float>(static_cast<std::size_t>(n), value);
}

// pytorch/pytorch#127055: NaN for late rows when a window hides whole leading tiles of keys. The
// mean of the keys first..i is (first + i) / 2; for the last row and a window of 10 it is 634.5.
TEST_P(AttentionReports, WindowThatHidesLeadingTiles) {
  constexpr std::int64_t kLength = 640, kDim = 4;
  std::vector<float> v_SKD;
  for (std::int64_t j = 0; j < kLength; ++j) {
    v_SKD.insert(v_SKD.end(), {static_cast<float>(j), 1.0F, -1.0F, 0.5F});
  }
  for (const std::int64_t window : {10, 1}) {
    const AttentionCase shape{1, 1, kDim, kDim, kLength, kLength, 0.5, true, window};
    AttentionPlan plan = MakePlan(ParamsFor(shape, GetParam()));
    const Output output =
        RunTensors(plan, shape, Ones(kLength * kDim), Ones(kLength * kDim), v_SKD);
    for (std::int64_t i = 0; i < kLength; ++i) {
      const std::int64_t first = std::max<std::int64_t>(0, i - window + 1);
      const float* row = &output.out_THD[i * kDim];
      ASSERT_NEAR(row[0], 0.5 * static_cast<double>(first + i), 1e-4) << "row " << i;
      ASSERT_NEAR(row[1], 1, 1e-6) << "row " << i;
      ASSERT_NEAR(row[2], -1, 1e-6) << "row " << i;
      ASSERT_NEAR(row[3], 0.5, 1e-6) << "row " << i;
    }
  }
}

// pytorch/pytorch#101967: NaN beyond the valid keys of a page poisons the output.
TEST_P(AttentionReports, PoisonBeyondTheLastKey) {
  const AttentionCase shape{1, 1, 4, 4, 1, 5, 0.5, true, 0};
  std::vector<float> v_SKD;
  for (const float x : {1.0F, 2.0F, 3.0F, 4.0F, 5.0F}) v_SKD.insert(v_SKD.end(), 4, x);
  for (const std::int64_t page_size : {16, 64}) {
    for (const float poison : {kNan, kInf, -kInf}) {
      AttentionPlan plan = MakePlan(ParamsFor(shape, GetParam()));
      const FilledCache filled =
          FillCache(shape, KvType::kF32, KvType::kF32, page_size, {{Ones(20), v_SKD}}, poison);
      const Output output = RunCache(plan, filled, {}, Ones(4, 0));
      EXPECT_EQ(output.out_THD, Ones(4, 3));
    }
  }
}

// pytorch/pytorch#103749: a row whose mask hides every key. It is zero, and the others do not
// notice.
TEST_P(AttentionReports, MaskThatHidesARowEntirely) {
  constexpr std::int64_t H = 2, T = 6, S = 10, D = 8;
  AttentionCase shape{H, H, D, D, T, S, 0.125, false};
  std::vector<std::uint8_t> mask_TS(T * S, 0);
  for (std::int64_t t = 0; t < T - 1; ++t) std::fill_n(&mask_TS[t * S], t + 1, std::uint8_t{1});
  for (std::int64_t h = 0; h < H; ++h) {
    shape.mask_HTS.insert(shape.mask_HTS.end(), mask_TS.begin(), mask_TS.end());
  }
  const std::vector<float> q_THD = RandomTensor(T * H * D, 1), k_SHD = RandomTensor(S * H * D, 2),
                           v_SHD = RandomTensor(S * H * D, 3);
  AttentionPlan plan = MakePlan(ParamsFor(shape, GetParam()));
  const auto run = [&](std::int64_t q_len) {
    GuardedOutput out(q_len * H * D);
    AttentionTensors tensors;
    tensors.q_len = q_len;
    tensors.kv_len = S;
    tensors.q = {q_THD.data(), 0, H * D, D};
    tensors.k = {k_SHD.data(), 0, H * D, D};
    tensors.v = {v_SHD.data(), 0, H * D, D};
    tensors.out = {out.data(), 0, H * D, D};
    tensors.bias.mask = {mask_TS.data(), S, 0, 0, S};
    const Status status = plan.Run(tensors);
    EXPECT_TRUE(status.ok()) << status.message();
    EXPECT_TRUE(out.guards_intact());
    return out.values();
  };
  std::vector<float> out_THD = run(T);
  const AttentionResult expected = ReferenceAttention(shape, q_THD, k_SHD, v_SHD);
  for (std::size_t i = 0; i < out_THD.size(); ++i) {
    ASSERT_NEAR(out_THD[i], expected.out_THD[i], expected.out_bound_TH[i / D]);
  }
  for (std::size_t i = (T - 1) * H * D; i < out_THD.size(); ++i) EXPECT_EQ(out_THD[i], 0.0F);
  out_THD.resize((T - 1) * H * D);
  EXPECT_EQ(out_THD, run(T - 1));
}

// pytorch/pytorch#101967 with a mask: NaN and infinity in keys and values that it hides.
TEST_P(AttentionReports, PoisonBehindAMask) {
  const AttentionCase shape{1, 1, 4, 4, 1, 5, 0.5, true};
  const std::vector<std::uint8_t> mask = {1, 1, 1, 0, 0};
  AttentionBias bias;
  bias.mask = {mask.data(), 5, 0, 0, 0};
  for (const float poison : {kNan, kInf, -kInf}) {
    std::vector<float> k_SKD = Ones(20), v_SKD;
    for (const float x : {1.0F, 2.0F, 3.0F, poison, poison}) v_SKD.insert(v_SKD.end(), 4, x);
    std::fill(k_SKD.begin() + 12, k_SKD.end(), poison);
    const std::vector<float> q = Ones(4, 0);
    AttentionPlan plan = MakePlan(ParamsFor(shape, GetParam()));
    GuardedOutput paged(4), plain(4);
    const FilledCache filled =
        FillCache(shape, KvType::kF32, KvType::kF32, 16, {{k_SKD, v_SKD}}, poison);
    ASSERT_TRUE(
        plan.Run(filled.cache, 0, filled.ids, nullptr, q.data(), paged.data(), nullptr, bias).ok());
    EXPECT_EQ(paged.values(), Ones(4, 2));
    AttentionTensors tensors;
    tensors.q_len = 1;
    tensors.kv_len = 5;
    tensors.q = {q.data(), 0, 4, 4};
    tensors.k = {k_SKD.data(), 0, 4, 4};
    tensors.v = {v_SKD.data(), 0, 4, 4};
    tensors.out = {plain.data(), 0, 4, 4};
    tensors.bias = bias;
    ASSERT_TRUE(plan.Run(tensors).ok());
    EXPECT_EQ(plain.values(), Ones(4, 2));
  }
}

// The same for keys that causality or a window hides: rows that do not see the NaN are untouched,
// rows that see it hand it on.
TEST_P(AttentionReports, NanInAKeyOrValueReachesOnlyRowsThatSeeIt) {
  constexpr std::int64_t kLength = 150, kBad = 70, kWindow = 20;
  const AttentionCase shape{2, 1, 4, 4, kLength, kLength, 0.5, true, kWindow};
  const std::vector<float> q_THD = RandomTensor(kLength * 8, 1);
  const std::vector<float> k_SKD = RandomTensor(kLength * 4, 2);
  const std::vector<float> v_SKD = RandomTensor(kLength * 4, 3);
  AttentionPlan plan = MakePlan(ParamsFor(shape, GetParam()));
  const Output clean = RunTensors(plan, shape, q_THD, k_SKD, v_SKD);
  for (const float poison : {kNan, kInf}) {
    for (const bool in_key : {true, false}) {
      std::vector<float> k = k_SKD, v = v_SKD;
      for (int d = 0; d < 4; ++d) (in_key ? k : v)[kBad * 4 + d] = poison;
      const Output output = RunTensors(plan, shape, q_THD, k, v);
      for (std::int64_t i = 0; i < kLength * 8; ++i) {
        const std::int64_t row = i / 8;
        const bool sees = row >= kBad && row < kBad + kWindow;
        if (!sees) {
          ASSERT_EQ(output.out_THD[i], clean.out_THD[i]) << "row " << row;
        } else if (std::isnan(poison) || !in_key) {
          ASSERT_FALSE(std::isfinite(output.out_THD[i])) << "row " << row;
        }
      }
    }
  }
}

// microsoft/onnxruntime#29020: alignment of the causal mask when q_len < kv_len.
TEST_P(AttentionReports, CausalMaskIsBottomRightAligned) {
  const std::vector<float> v_SKD = {1, 2, 3, 4, 5};
  const auto run = [&](std::int64_t q_len, std::int64_t kv_len) {
    const AttentionCase shape{1, 1, 1, 1, q_len, kv_len, 1.0, true, 0};
    AttentionPlan plan = MakePlan(ParamsFor(shape, GetParam()));
    return RunTensors(plan, shape, Ones(q_len, 0), Ones(kv_len), v_SKD).out_THD;
  };
  EXPECT_EQ(run(2, 5), (std::vector<float>{2.5, 3.0}));
  EXPECT_EQ(run(1, 5), (std::vector<float>{3.0}));
  EXPECT_EQ(run(3, 3), (std::vector<float>{1, 1.5, 2}));
}

// vllm-project/vllm#3385: a window of one token too many, and prefill and decode that disagree.
TEST_P(AttentionReports, WindowIncludesTheTokenItself) {
  const std::vector<float> v_SKD = {1, 2, 3, 4, 5, 6}, expected = {1, 1.5, 2, 3, 4, 5};
  AttentionCase shape{1, 1, 1, 1, 6, 6, 1.0, true, 3};
  AttentionPlan plan = MakePlan(ParamsFor(shape, GetParam()));
  EXPECT_EQ(RunTensors(plan, shape, Ones(6, 0), Ones(6), v_SKD).out_THD, expected);
  for (std::int64_t chunk : {5, 1}) {
    std::vector<float> rows;
    for (std::int64_t done = 0; done < 6; done += shape.q_len) {
      shape.q_len = done == 0 ? chunk : 1;
      shape.kv_len = done + shape.q_len;
      const Output part = RunTensors(plan, shape, Ones(6, 0), Ones(6), v_SKD);
      rows.insert(rows.end(), part.out_THD.begin(), part.out_THD.end());
    }
    EXPECT_EQ(rows, expected) << "first chunk " << chunk;
  }
}

// huggingface/transformers PR#33317: a product of fp16 numbers that overflows fp16.
TEST_P(AttentionReports, ProductsBeyondTheRangeOfFp16) {
  for (const std::int64_t kv_len : {2, 3}) {
    const AttentionCase shape{1, 1, 128, 128, 1, kv_len, 1 / std::sqrt(128.0), true, 0};
    std::vector<float> k_SKD = Ones(256, 24), v_SKD = Ones(128, 1);
    v_SKD.resize(256, 3);
    k_SKD.resize(kv_len * 128, -24);
    v_SKD.resize(kv_len * 128, 7);
    AttentionPlan plan = MakePlan(ParamsFor(shape, GetParam()));
    const FilledCache filled =
        FillCache(shape, KvType::kF16, KvType::kF16, 16, {{k_SKD, v_SKD}}, kNan);
    const Output output = RunCache(plan, filled, {}, Ones(128, 24));
    EXPECT_EQ(output.out_THD, Ones(128, 2));
    // 128 additions of equal terms: each may round the same way by half of 2^-11.
    EXPECT_NEAR(output.lse_TH[0], 6516.6961 + std::log(2.0), 128 * 0x1p-12);
  }
}

// NVIDIA/FasterTransformer#89: head sizes that are no multiple of a vector. With q = 0 and v[j][d]
// = d the result is d whatever the length.
TEST_P(AttentionReports, EveryHeadSizeAndLength) {
  for (const std::int64_t D : {1, 3, 40, 64, 72, 80, 96, 100, 112, 120, 128, 192, 256}) {
    for (const std::int64_t S : {1, 7, 15, 16, 17, 63, 64, 65, 200}) {
      std::vector<float> v_SKD;
      for (std::int64_t i = 0; i < S * D; ++i) v_SKD.push_back(static_cast<float>(i % D));
      const FilledCache filled = FillCache({1, 1, D, D}, KvType::kF32, KvType::kF32, 64,
                                           {{RandomTensor(S * D, 7), v_SKD}}, kNan);
      const FilledCache random = FillCache({1, 1, D, D}, KvType::kF16, KvType::kBf16, 16,
                                           {{RandomTensor(S * D, 7), v_SKD}}, kNan);
      for (const std::int64_t T : {1, 2, 5}) {
        if (T > S) continue;
        const AttentionCase shape{1, 1, D, D, T, S, 1.0, true, 0};
        AttentionPlan plan = MakePlan(ParamsFor(shape, GetParam()));
        for (const FilledCache* cache : {&filled, &random}) {
          const Output output = RunCache(plan, *cache, {0, T}, Ones(T * D, 0));
          for (std::int64_t i = 0; i < T * D; ++i) {
            ASSERT_NEAR(output.out_THD[i], static_cast<double>(i % D), 1e-6 * 256)
                << "D " << D << " S " << S << " T " << T;
          }
        }
      }
    }
  }
}

// FlashML-org/FreeToken PR#177: tiles of heads that cross the border of a KV group.
TEST_P(AttentionReports, HeadsReadTheirOwnGroup) {
  const std::pair<std::int64_t, std::int64_t> heads[] = {{14, 2}, {12, 2}, {24, 8}, {28, 4},
                                                         {40, 2}, {48, 2}, {80, 4}, {71, 1}};
  for (const auto& [H, K] : heads) {
    constexpr std::int64_t kLength = 3;
    std::vector<float> v_SKD;
    for (std::int64_t i = 0; i < kLength * K * 8; ++i) {
      v_SKD.push_back(static_cast<float>(i / 8 % K + 1));
    }
    for (const std::int64_t T : {1, 2}) {
      const AttentionCase shape{H, K, 8, 8, T, kLength, 1.0, true, 0};
      AttentionPlan plan = MakePlan(ParamsFor(shape, GetParam()));
      const Output output =
          RunTensors(plan, shape, Ones(T * H * 8, 0), Ones(kLength * K * 8), v_SKD);
      for (std::int64_t i = 0; i < T * H * 8; ++i) {
        ASSERT_EQ(output.out_THD[i], static_cast<float>(i / 8 % H / (H / K) + 1))
            << "H " << H << " K " << K;
      }
    }
  }
}

// vllm-project/vllm#27034: a batch of one decoding and two prefilling sequences against each alone.
TEST_P(AttentionReports, MixedBatchEqualsEachSequenceAlone) {
  const std::int64_t lengths[] = {5, 17, 33};
  const AttentionCase shape{4, 2, 16, 16, 55, 33, 0.25, true, 0};
  for (int decoding = 0; decoding < 3; ++decoding) {
    std::vector<CachedSequence> sequences;
    std::vector<std::int64_t> qo_indptr = {0};
    std::vector<float> q_THD;
    std::vector<std::vector<float>> alone_q;
    for (int b = 0; b < 3; ++b) {
      const std::int64_t S = lengths[b], T = b == decoding ? 1 : S;
      sequences.push_back({RandomTensor(S * 32, 10 + b), RandomTensor(S * 32, 20 + b)});
      alone_q.push_back(RandomTensor(T * 64, 30 + b));
      q_THD.insert(q_THD.end(), alone_q.back().begin(), alone_q.back().end());
      qo_indptr.push_back(qo_indptr.back() + T);
    }
    AttentionPlan plan = MakePlan(ParamsFor(shape, GetParam()));
    const FilledCache batch = FillCache(shape, KvType::kF32, KvType::kF32, 16, sequences, kNan);
    const Output together = RunCache(plan, batch, qo_indptr, q_THD);
    for (int b = 0; b < 3; ++b) {
      const FilledCache alone =
          FillCache(shape, KvType::kF32, KvType::kF32, 16, {sequences[b]}, kNan);
      const Output output = RunCache(plan, alone, {0, qo_indptr[b + 1] - qo_indptr[b]}, alone_q[b]);
      const auto begin = together.out_THD.begin() + qo_indptr[b] * 64;
      EXPECT_EQ(output.out_THD,
                std::vector<float>(begin, together.out_THD.begin() + qo_indptr[b + 1] * 64))
          << "sequence " << b << " while " << decoding << " decodes";
    }
  }
}

// microsoft/onnxruntime#7448: denormal values, and the caller's floating-point mode.
TEST_P(AttentionReports, DenormalsAndTheCallersFloatingPointMode) {
  constexpr std::int64_t kLength = 4096, kDim = 128;
  for (const int threads : {1, 4}) {
    const AttentionCase shape{1, 1, kDim, kDim, 1, kLength, 1.0, true, 0};
    AttentionPlan plan = MakePlan(ParamsFor(shape, GetParam(), threads));
    const std::vector<float> k_SKD = Ones(kLength * kDim);
    for (const unsigned mode : {0x1f80U, 0x9fc0U, 0x7f80U}) {  // default; flushing; toward zero
      const unsigned saved = _mm_getcsr();
      _mm_setcsr(mode);
      const Output tiny =
          RunTensors(plan, shape, Ones(kDim, 0), k_SKD, Ones(kLength * kDim, 1e-39F));
      const unsigned after = _mm_getcsr();
      _mm_setcsr(saved);
      EXPECT_EQ(after & ~0x3fU, mode & ~0x3fU);  // but for the sticky exception flags
      for (const float x : tiny.out_THD) ASSERT_NEAR(x, 1e-39F, 1e-38);
    }
    // Weights of about e^-95 beside one of 1.
    std::vector<float> spread(k_SKD.size(), -95.0F / kDim);
    for (std::int64_t d = 0; d < kDim; ++d) spread[17 * kDim + d] = 0;
    std::vector<float> v_SKD = Ones(kLength * kDim);
    for (std::int64_t d = 0; d < kDim; ++d) v_SKD[17 * kDim + d] = 2;
    const Output output = RunTensors(plan, shape, Ones(kDim), spread, v_SKD);
    for (const float x : output.out_THD) ASSERT_EQ(x, 2.0F);
  }
}

// Tencent/TNN PR#1682: aligned loads where a row is no multiple of a vector. All pointers are 4
// bytes beside an aligned address.
TEST_P(AttentionReports, PointersAlignedToFourBytesOnly) {
  for (const std::int64_t D : {13, 16, 32}) {
    const AttentionCase shape{2, 1, D, D, 3, 13, 1 / std::sqrt(static_cast<double>(D)), true, 0};
    const std::vector<float> q = RandomTensor(3 * 2 * D, 1), k = RandomTensor(13 * D, 2),
                             v = RandomTensor(13 * D, 3);
    const auto shifted = [](const std::vector<float>& x, std::vector<float>& memory) {
      memory.assign(x.size() + 32, kNan);
      const auto misalign = reinterpret_cast<std::uintptr_t>(memory.data()) / 4 % 16;
      float* p = memory.data() + (17 - misalign) % 16;
      std::copy(x.begin(), x.end(), p);
      return p;
    };
    std::vector<float> q_memory, k_memory, v_memory, out_memory;
    float* out = shifted(Ones(3 * 2 * D, kNan), out_memory);
    ASSERT_EQ(reinterpret_cast<std::uintptr_t>(out) % 64, 4U);
    AttentionPlan plan = MakePlan(ParamsFor(shape, GetParam()));
    ASSERT_TRUE(
        plan.Run(3, 13, shifted(q, q_memory), shifted(k, k_memory), shifted(v, v_memory), out)
            .ok());
    const AttentionResult expected = ReferenceAttention(shape, q, k, v);
    for (std::size_t i = 0; i < expected.out_THD.size(); ++i) {
      ASSERT_NEAR(out[i], expected.out_THD[i], AttentionTolerance(shape, 1, 1, 1));
    }
  }
}

}  // namespace
}  // namespace manyhead::testing
