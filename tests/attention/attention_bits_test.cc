// Tests changes that must not change a single bit, and properties that hold for all numbers.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "tests/attention/attention_fixture.h"
#include "tests/support/allocation_meter.h"
#include "tests/support/attention_reference.h"

namespace manyhead::testing {
namespace {

class AttentionBits : public EveryIsa {};
INSTANTIATE_TEST_SUITE_P(Isa, AttentionBits, ::testing::ValuesIn(kAllIsas), IsaTestName);

struct Inputs {
  std::vector<float> q_THD, k_SKD, v_SKD;
};

Inputs RandomInputs(const AttentionCase& shape) {
  return {RandomTensor(shape.q_len * shape.num_heads * shape.head_dim, 1),
          RandomTensor(shape.kv_len * shape.num_kv_heads * shape.head_dim, 2),
          RandomTensor(shape.kv_len * shape.num_kv_heads * shape.head_dim_v, 3)};
}

/// The last `q_len` queries of `inputs`, whose keys end at `kv_len`.
Output RunPart(AttentionPlan& plan, AttentionCase shape, const Inputs& inputs, std::int64_t q_len,
               std::int64_t kv_len) {
  const std::int64_t q_row = shape.num_heads * shape.head_dim;
  const std::int64_t first = shape.q_len - (shape.kv_len - kv_len) - q_len;
  const std::vector<float> q_THD(inputs.q_THD.begin() + first * q_row,
                                 inputs.q_THD.begin() + (first + q_len) * q_row);
  shape.q_len = q_len;
  shape.kv_len = kv_len;
  return RunTensors(plan, shape, q_THD, inputs.k_SKD, inputs.v_SKD);
}

void ExpectSameBits(const Output& a, const Output& b) {
  EXPECT_EQ(a.out_THD, b.out_THD);
  EXPECT_EQ(a.lse_TH, b.lse_TH);
}

TEST_P(AttentionBits, ThreadCountsAgree) {
  for (const AttentionCase& shape : {AttentionCase{8, 2, 20, 20, 1, 3000, 0.2, true, 0},
                                     AttentionCase{8, 2, 20, 20, 4, 3000, 0.2, true, 900},
                                     AttentionCase{6, 3, 33, 17, 200, 1100, 0.2, true, 0},
                                     AttentionCase{32, 16, 20, 20, 91, 600, 0.2, true, 70},
                                     AttentionCase{60, 1, 8, 8, 1, 1100, 0.2, false, 0}}) {
    const Inputs inputs = RandomInputs(shape);
    AttentionPlan one = MakePlan(ParamsFor(shape, GetParam(), 1));
    const Output expected = RunTensors(one, shape, inputs.q_THD, inputs.k_SKD, inputs.v_SKD);
    for (const int threads : {2, 3, 5, 8}) {
      AttentionPlan many = MakePlan(ParamsFor(shape, GetParam(), threads));
      ExpectSameBits(RunTensors(many, shape, inputs.q_THD, inputs.k_SKD, inputs.v_SKD), expected);
    }
  }
}

TEST_P(AttentionBits, ChunkedPrefillAndDecodeEqualOnePrefill) {
  for (const std::int64_t window : {0, 50}) {
    const AttentionCase shape{6, 2, 24, 24, 701, 701, 0.3, true, window};
    const Inputs inputs = RandomInputs(shape);
    AttentionPlan plan = MakePlan(ParamsFor(shape, GetParam(), 2));
    const Output whole = RunTensors(plan, shape, inputs.q_THD, inputs.k_SKD, inputs.v_SKD);
    for (const std::int64_t chunk : {1, 7, 16, 64, 333}) {
      Output joined;
      for (std::int64_t done = 0; done < shape.q_len; done += chunk) {
        const std::int64_t count = std::min(chunk, shape.q_len - done);
        const Output part = RunPart(plan, shape, inputs, count, done + count);
        joined.out_THD.insert(joined.out_THD.end(), part.out_THD.begin(), part.out_THD.end());
        joined.lse_TH.insert(joined.lse_TH.end(), part.lse_TH.begin(), part.lse_TH.end());
      }
      SCOPED_TRACE(chunk);
      ExpectSameBits(joined, whole);
    }
  }
}

TEST_P(AttentionBits, PagesOfAnySizeEqualTensors) {
  const AttentionCase shape{4, 2, 18, 30, 60, 600, 0.3, true, 0};
  const Inputs inputs = RandomInputs(shape);
  AttentionPlan plan = MakePlan(ParamsFor(shape, GetParam()));
  const Output expected = RunTensors(plan, shape, inputs.q_THD, inputs.k_SKD, inputs.v_SKD);
  for (const std::int64_t page_size : {16, 48, 64, 80, 1024}) {
    const FilledCache filled = FillCache(shape, KvType::kF32, KvType::kF32, page_size,
                                         {{inputs.k_SKD, inputs.v_SKD}}, kNan);
    ExpectSameBits(RunCache(plan, filled, {0, shape.q_len}, inputs.q_THD), expected);
  }
}

// fp16 numbers use one kernel in a decode step and another in a prefill.
TEST_P(AttentionBits, NarrowTypesDecodeAsTheyPrefill) {
  for (const KvType type : {KvType::kF16, KvType::kBf16}) {
    const AttentionCase shape{4, 2, 18, 30, 90, 90, 0.3, true, 0};
    const Inputs inputs = RandomInputs(shape);
    std::vector<float> k_SKD = inputs.k_SKD, v_SKD = inputs.v_SKD;
    for (float& x : k_SKD) x = RoundTo(type, x);
    for (float& x : v_SKD) x = RoundTo(type, x);
    AttentionPlan plan = MakePlan(ParamsFor(shape, GetParam()));
    const FilledCache filled = FillCache(shape, type, type, 32, {{k_SKD, v_SKD}}, kNan);
    const Output whole = RunCache(plan, filled, {0, shape.q_len}, inputs.q_THD);
    const std::vector<float> last_q(inputs.q_THD.end() - 4 * 18, inputs.q_THD.end());
    const Output last = RunCache(plan, filled, {}, last_q);
    EXPECT_EQ(last.out_THD, std::vector<float>(whole.out_THD.end() - 4 * 30, whole.out_THD.end()));
  }
}

TEST_P(AttentionBits, WindowOfTheWholeLengthEqualsNone) {
  AttentionCase shape{4, 2, 18, 18, 40, 200, 0.3, true, 0};
  const Inputs inputs = RandomInputs(shape);
  AttentionPlan none = MakePlan(ParamsFor(shape, GetParam()));
  const Output expected = RunTensors(none, shape, inputs.q_THD, inputs.k_SKD, inputs.v_SKD);
  for (const std::int64_t window : {std::int64_t{200}, std::int64_t{1000}, INT64_MAX}) {
    shape.window = window;
    AttentionPlan plan = MakePlan(ParamsFor(shape, GetParam()));
    ExpectSameBits(RunTensors(plan, shape, inputs.q_THD, inputs.k_SKD, inputs.v_SKD), expected);
  }
}

TEST_P(AttentionBits, BatchOrderAndNeighboursDoNotMatter) {
  const AttentionCase shape{8, 2, 24, 24, 6, 1300, 0.3, true, 0};
  std::vector<CachedSequence> sequences;
  std::vector<std::vector<float>> queries;
  for (const std::int64_t S : {1300, 1, 700}) {
    sequences.push_back({RandomTensor(S * 48, 5), RandomTensor(S * 48, 6)});
    queries.push_back(RandomTensor(8 * 24, static_cast<std::uint32_t>(S)));
  }
  const FilledCache filled = FillCache(shape, KvType::kF16, KvType::kF32, 64, sequences, kNan);
  AttentionPlan plan = MakePlan(ParamsFor(shape, GetParam(), 3));
  std::vector<std::vector<float>> alone;
  for (std::size_t b = 0; b < 3; ++b) {
    GuardedOutput out(8 * 24);
    ASSERT_TRUE(
        plan.Run(filled.cache, 0, {&filled.ids[b], 1}, nullptr, queries[b].data(), out.data())
            .ok());
    alone.push_back(out.values());
  }
  std::vector<std::size_t> order = {0, 1, 2};
  do {
    std::vector<SequenceId> ids;
    std::vector<float> q_THD, expected;
    for (const std::size_t b : order) {
      ids.push_back(filled.ids[b]);
      q_THD.insert(q_THD.end(), queries[b].begin(), queries[b].end());
      expected.insert(expected.end(), alone[b].begin(), alone[b].end());
    }
    GuardedOutput out(3 * 8 * 24);
    ASSERT_TRUE(plan.Run(filled.cache, 0, ids, nullptr, q_THD.data(), out.data()).ok());
    EXPECT_EQ(out.values(), expected);
    EXPECT_TRUE(out.guards_intact());
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST_P(AttentionBits, RunAllocatesNothing) {
  const AttentionCase shape{8, 2, 24, 24, 1, 2000, 0.3, true, 0};
  const Inputs inputs = RandomInputs(shape);
  AttentionPlan plan = MakePlan(ParamsFor(shape, GetParam(), 2));
  const FilledCache filled =
      FillCache(shape, KvType::kF32, KvType::kF32, 64, {{inputs.k_SKD, inputs.v_SKD}}, kNan);
  std::vector<float> out_THD(8 * 24);
  ResetAllocationMeter();
  const Status cached =
      plan.Run(filled.cache, 0, filled.ids, nullptr, inputs.q_THD.data(), out_THD.data());
  const Status tensors = plan.Run(1, 2000, inputs.q_THD.data(), inputs.k_SKD.data(),
                                  inputs.v_SKD.data(), out_THD.data());
  EXPECT_EQ(NumAllocations(), 0U);
  EXPECT_TRUE(cached.ok() && tensors.ok());
}

TEST_P(AttentionBits, ConstantValuesComeBack) {
  const AttentionCase shape{4, 2, 24, 10, 30, 300, 0.3, true, 0};
  Inputs inputs = RandomInputs(shape);
  std::fill(inputs.v_SKD.begin(), inputs.v_SKD.end(), 0.7F);
  AttentionPlan plan = MakePlan(ParamsFor(shape, GetParam()));
  const Output output = RunTensors(plan, shape, inputs.q_THD, inputs.k_SKD, inputs.v_SKD);
  for (const float x : output.out_THD) ASSERT_NEAR(x, 0.7, 2e-6);
}

TEST_P(AttentionBits, OrderOfKeysAndCommonShiftsHardlyMatter) {
  const AttentionCase shape{2, 1, 8, 8, 3, 150, 0.3, false, 0};
  const Inputs inputs = RandomInputs(shape);
  AttentionPlan plan = MakePlan(ParamsFor(shape, GetParam()));
  const Output expected = RunTensors(plan, shape, inputs.q_THD, inputs.k_SKD, inputs.v_SKD);
  Inputs changed = inputs;
  for (std::int64_t s = 0; s < 150; ++s) {
    for (std::int64_t d = 0; d < 8; ++d) {
      changed.k_SKD[s * 8 + d] = inputs.k_SKD[(149 - s) * 8 + d] + 1.5F;  // adds the same to all
      changed.v_SKD[s * 8 + d] = inputs.v_SKD[(149 - s) * 8 + d];
    }
  }
  const Output output = RunTensors(plan, shape, changed.q_THD, changed.k_SKD, changed.v_SKD);
  for (std::size_t i = 0; i < output.out_THD.size(); ++i) {
    ASSERT_NEAR(output.out_THD[i], expected.out_THD[i], 2 * AttentionTolerance(shape, 1, 3, 1));
  }
}

TEST_P(AttentionBits, SharedHeadsEqualRepeatedHeads) {
  const AttentionCase shared{6, 1, 24, 24, 9, 130, 0.3, true, 0};
  AttentionCase repeated = shared;
  repeated.num_kv_heads = 6;
  const Inputs inputs = RandomInputs(shared);
  Inputs wide = inputs;
  wide.k_SKD.clear();
  wide.v_SKD.clear();
  for (std::int64_t s = 0; s < shared.kv_len; ++s) {
    for (int h = 0; h < 6; ++h) {
      wide.k_SKD.insert(wide.k_SKD.end(), &inputs.k_SKD[s * 24], &inputs.k_SKD[s * 24] + 24);
      wide.v_SKD.insert(wide.v_SKD.end(), &inputs.v_SKD[s * 24], &inputs.v_SKD[s * 24] + 24);
    }
  }
  AttentionPlan one = MakePlan(ParamsFor(shared, GetParam()));
  AttentionPlan six = MakePlan(ParamsFor(repeated, GetParam()));
  ExpectSameBits(RunTensors(one, shared, inputs.q_THD, inputs.k_SKD, inputs.v_SKD),
                 RunTensors(six, repeated, wide.q_THD, wide.k_SKD, wide.v_SKD));
}

}  // namespace
}  // namespace manyhead::testing
