// Heads of one layer with types and policies of their own, against a reference that sees what the
// policies say.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/cache/kv_cache_impl.h"
#include "tests/attention/attention_fixture.h"
#include "tests/support/attention_reference.h"

namespace manyhead::testing {
namespace {

using ::testing::HasSubstr;

class AttentionHeads : public EveryIsa {};
INSTANTIATE_TEST_SUITE_P(Isa, AttentionHeads, ::testing::ValuesIn(kAllIsas), IsaTestName);

/// Whether a policy without a budget lets a query at position i see token s, by its definition.
bool PolicyShows(const KvPolicy& policy, std::int64_t i, std::int64_t s) {
  switch (policy.kind) {
    case KvPolicyKind::kFull:
    case KvPolicyKind::kBudget:
      return true;
    case KvPolicyKind::kWindow:
      return s > i - policy.recent;
    case KvPolicyKind::kSinkRecent:
      return s < policy.sink || s > i - policy.recent;
    case KvPolicyKind::kOff:
      return false;
  }
  return false;
}

/// One layer whose KV heads are `heads`, and the text that goes through it.
struct Text {
  AttentionCase shape;  ///< q_len = kv_len = the whole text
  std::vector<KvHeadParams> heads;
  std::vector<float> q_THD, k_SKD, v_SKD;

  std::int64_t group() const { return shape.num_heads / shape.num_kv_heads; }
};

Text MakeText(AttentionCase shape, std::vector<KvHeadParams> heads, unsigned seed) {
  shape.num_kv_heads = static_cast<std::int64_t>(heads.size());
  shape.q_len = shape.kv_len;
  return {shape, std::move(heads),
          RandomTensor(shape.q_len * shape.num_heads * shape.head_dim, seed),
          RandomTensor(shape.kv_len * shape.num_kv_heads * shape.head_dim, seed + 1),
          RandomTensor(shape.kv_len * shape.num_kv_heads * shape.head_dim_v, seed + 2)};
}

/// Rows [S, K, n] as the types of their heads store them.
std::vector<float> Stored(const Text& text, const std::vector<float>& rows, std::int64_t n,
                          KvType KvHeadParams::*type) {
  const std::int64_t K = text.shape.num_kv_heads;
  std::vector<float> stored = rows;
  for (std::int64_t row = 0; row * n < static_cast<std::int64_t>(rows.size()); ++row) {
    const std::vector<float> one(rows.begin() + row * n, rows.begin() + (row + 1) * n);
    const std::vector<float> rounded = StoredRows(text.heads[row % K].*type, one, n);
    std::copy(rounded.begin(), rounded.end(), stored.begin() + row * n);
  }
  return stored;
}

/// The reference for the queries [begin, begin + count), where `shows(kv_head, i, s)` tells what
/// the cache lets be seen.
template <class Shows>
AttentionResult Expected(const Text& text, std::int64_t begin, std::int64_t count,
                         const Shows& shows) {
  AttentionCase shape = text.shape;
  const std::int64_t S = begin + count;
  shape.q_len = count;
  shape.kv_len = S;
  for (std::int64_t h = 0; h < shape.num_heads; ++h)
    for (std::int64_t t = 0; t < count; ++t)
      for (std::int64_t s = 0; s < S; ++s)
        shape.mask_HTS.push_back(shows(h / text.group(), begin + t, s) ? 1 : 0);
  for (const KvHeadParams& head : text.heads) {
    if (head.k_type == KvType::kInt4) shape.k_terms = 3;
    if (head.v_type == KvType::kInt4) shape.v_terms = 3;
  }
  const std::int64_t q_row = shape.num_heads * shape.head_dim;
  return ReferenceAttention(shape,
                            {text.q_THD.begin() + begin * q_row, text.q_THD.begin() + S * q_row},
                            Stored(text, text.k_SKD, shape.head_dim, &KvHeadParams::k_type),
                            Stored(text, text.v_SKD, shape.head_dim_v, &KvHeadParams::v_type));
}

KvCacheParams CacheFor(const Text& text, std::int64_t page_size, Isa isa) {
  KvCacheParams params;
  params.layers = {{text.shape.num_kv_heads, text.shape.head_dim, text.shape.head_dim_v}};
  params.heads = {text.heads};
  params.page_size = page_size;
  params.max_tokens = text.shape.kv_len;
  params.isa = isa;
  params.capacity_bytes = *KvCapacityBytes(params, 2, params.max_tokens);
  return params;
}

AttentionParams PlanFor(const Text& text, Isa isa, int threads) {
  AttentionParams params = ParamsFor(text.shape, isa, threads);
  params.num_sink_tokens = text.shape.num_sink_tokens;
  params.logit_softcap = static_cast<float>(text.shape.logit_softcap);
  params.alibi_slopes = text.shape.alibi_slopes;
  return params;
}

/// Appends the tokens [length, length + count) of the text and attends from them.
Output Step(AttentionPlan& plan, KvCache& cache, SequenceId id, const Text& text,
            std::int64_t count) {
  const AttentionCase& shape = text.shape;
  const std::int64_t begin = cache.length(id), K = shape.num_kv_heads;
  Status status = cache.Reserve(id, count);
  EXPECT_TRUE(status.ok()) << status.message();
  status = cache.Write(id, 0, begin, count, text.k_SKD.data() + begin * K * shape.head_dim,
                       text.v_SKD.data() + begin * K * shape.head_dim_v);
  EXPECT_TRUE(status.ok()) << status.message();
  GuardedOutput out(count * shape.num_heads * shape.head_dim_v);
  GuardedOutput lse(count * shape.num_heads);
  const std::int64_t indptr[] = {0, count};
  status = plan.Run(cache, 0, {&id, 1}, indptr,
                    text.q_THD.data() + begin * shape.num_heads * shape.head_dim, out.data(),
                    lse.data());
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_TRUE(out.guards_intact() && lse.guards_intact());
  return {out.values(), lse.values()};
}

void ExpectWithinBounds(const Output& actual, const AttentionResult& expected,
                        std::int64_t head_dim_v, double slack = 1) {
  ASSERT_EQ(actual.out_THD.size(), expected.out_THD.size());
  for (std::size_t i = 0; i < actual.out_THD.size(); ++i)
    ASSERT_NEAR(actual.out_THD[i], expected.out_THD[i],
                slack * expected.out_bound_TH[i / static_cast<std::size_t>(head_dim_v)])
        << "out[" << i << "]";
  for (std::size_t i = 0; i < actual.lse_TH.size(); ++i) {
    if (std::isinf(expected.lse_TH[i])) {
      ASSERT_EQ(actual.lse_TH[i], expected.lse_TH[i]) << "lse[" << i << "]";
    } else {
      ASSERT_NEAR(actual.lse_TH[i], expected.lse_TH[i], slack * expected.lse_bound_TH[i])
          << "lse[" << i << "]";
    }
  }
}

std::vector<KvHeadParams> MixedHeads() {
  return {{KvType::kF32, KvType::kF32, KvPolicy::Full()},
          {KvType::kF16, KvType::kInt8, KvPolicy::Window(33)},
          {KvType::kInt8, KvType::kBf16, KvPolicy::SinkRecent(4, 40)},
          {KvType::kInt4, KvType::kInt4, KvPolicy::SinkRecent(50, 1)},
          {KvType::kF32, KvType::kF32, KvPolicy::Off()},
          {KvType::kBf16, KvType::kF16, KvPolicy::Window(1)},
          {KvType::kF32, KvType::kInt4, KvPolicy::SinkRecent(0, 130)}};
}

TEST_P(AttentionHeads, EachHeadSeesWhatItsPolicySays) {
  AttentionCase shape{14, 7, 20, 36, 0, 300, 0.4, true, 0};
  std::vector<AttentionCase> shapes(5, shape);
  shapes[1].window = 60;  // the model's, beside the heads' own
  shapes[2].window = 45;
  shapes[2].num_sink_tokens = 7;  // between the heads' own sinks
  shapes[3].logit_softcap = 2;
  shapes[3].alibi_slopes = AlibiSlopes(14);
  shapes[4].window = 290;
  for (const AttentionCase& one : shapes) {
    const Text text = MakeText(one, MixedHeads(), 11);
    const auto shows = [&](std::int64_t head, std::int64_t i, std::int64_t s) {
      return PolicyShows(text.heads[head].policy, i, s);
    };
    for (const std::int64_t page_size : {16, 64}) {
      for (const std::vector<std::int64_t>& steps :
           {std::vector<std::int64_t>{300}, {150, 1, 1, 100, 7, 41}, {17, 70, 1, 212}}) {
        KvCache cache = *KvCache::Create(CacheFor(text, page_size, GetParam()));
        AttentionPlan plan = MakePlan(PlanFor(text, GetParam(), 2));
        const SequenceId id = *cache.CreateSequence();
        for (const std::int64_t count : steps) {
          const std::int64_t begin = cache.length(id);
          SCOPED_TRACE(begin);
          const Output actual = Step(plan, cache, id, text, count);
          ExpectWithinBounds(actual, Expected(text, begin, count, shows), shape.head_dim_v);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

// Evicted tokens would not be seen any more: a sequence gives the same bits however it is divided,
// on any number of threads, and whatever released pages contain.
TEST_P(AttentionHeads, StepsOfAnySizeGiveTheSameBits) {
  const Text text = MakeText({14, 7, 24, 24, 0, 1300, 0.3, true, 0}, MixedHeads(), 5);
  std::vector<float> whole;
  for (const auto& [steps, threads] :
       {std::pair<std::int64_t, int>{1300, 1}, {1, 2}, {130, 1}, {333, 3}}) {
    KvCache cache = *KvCache::Create(CacheFor(text, 16, GetParam()));
    AttentionPlan plan = MakePlan(PlanFor(text, GetParam(), threads));
    const SequenceId id = *cache.CreateSequence();
    std::vector<float> joined;
    while (cache.length(id) < 1300) {
      const std::int64_t count = std::min(steps, 1300 - cache.length(id));
      const Output part = Step(plan, cache, id, text, count);
      joined.insert(joined.end(), part.out_THD.begin(), part.out_THD.end());
    }
    if (whole.empty()) whole = joined;
    ASSERT_EQ(joined, whole) << "steps of " << steps;
  }
}

// Full heads beside others are, bit for bit, those of a cache that has only full heads.
TEST_P(AttentionHeads, FullHeadsAreThoseOfThePlainCache) {
  for (const KvType type : {KvType::kF16, KvType::kInt8}) {
    std::vector<KvHeadParams> plain(4, {type, type, {}}), mixed = plain;
    mixed[1] = {KvType::kF32, KvType::kInt4, KvPolicy::SinkRecent(4, 20)};
    mixed[2].policy = KvPolicy::Off();
    const Text a = MakeText({8, 4, 40, 40, 0, 700, 0.3, true, 0}, plain, 8);
    Text b = a;
    b.heads = mixed;
    KvCacheParams default_params = CacheFor(a, 64, GetParam());
    default_params.heads.clear();
    default_params.k_type = default_params.v_type = type;
    KvCache plain_cache = *KvCache::Create(default_params);
    KvCache listed_cache = *KvCache::Create(CacheFor(a, 64, GetParam()));
    KvCache mixed_cache = *KvCache::Create(CacheFor(b, 64, GetParam()));
    AttentionPlan plan = MakePlan(PlanFor(a, GetParam(), 2));
    const SequenceId ids[] = {*plain_cache.CreateSequence(), *listed_cache.CreateSequence(),
                              *mixed_cache.CreateSequence()};
    for (const std::int64_t count : {650, 1, 49}) {
      const Output expected = Step(plan, plain_cache, ids[0], a, count);
      ASSERT_EQ(Step(plan, listed_cache, ids[1], a, count).out_THD, expected.out_THD);
      const Output actual = Step(plan, mixed_cache, ids[2], b, count);
      for (std::int64_t t = 0; t < count; ++t)
        for (const std::int64_t h : {0, 1, 6, 7})
          for (std::int64_t d = 0; d < 40; ++d)
            ASSERT_EQ(actual.out_THD[(t * 8 + h) * 40 + d], expected.out_THD[(t * 8 + h) * 40 + d]);
    }
    EXPECT_EQ(plain_cache.usage().used_bytes, listed_cache.usage().used_bytes);
    EXPECT_LT(mixed_cache.usage().used_bytes, plain_cache.usage().used_bytes);
  }
}

/// MixedHeads, whose windows can go back by `margin` tokens.
std::vector<KvHeadParams> HeadsWithMargin(std::int64_t margin) {
  std::vector<KvHeadParams> heads = MixedHeads();
  for (KvHeadParams& head : heads)
    if (head.policy.recent > 0) head.policy.margin = margin;
  return heads;
}

/// Appends five tokens of `drafts`, one by one, and evicts all that policies let go by then.
void Speculate(AttentionPlan& plan, KvCache& cache, SequenceId id, const Text& drafts) {
  for (int i = 0; i < 5; ++i) Step(plan, cache, id, drafts, 1);
  ASSERT_TRUE(cache.Evict(id).ok());
}

// At every position, five tokens are speculated and rejected: the sequence itself goes back, or a
// fork of it does. What follows has the bits of a sequence without a margin that never took them.
TEST_P(AttentionHeads, RollbacksWithinTheMarginLeaveNoTrace) {
  const AttentionCase shape{14, 7, 20, 36, 0, 270, 0.4, true, 0};
  const Text text = MakeText(shape, HeadsWithMargin(5), 31);
  const Text drafts = MakeText(shape, text.heads, 77);
  Text plain_text = text;
  plain_text.heads = MixedHeads();
  const auto shows = [&](std::int64_t head, std::int64_t i, std::int64_t s) {
    return PolicyShows(text.heads[head].policy, i, s);
  };
  KvCache cache = *KvCache::Create(CacheFor(text, 16, GetParam()));
  KvCache plain = *KvCache::Create(CacheFor(plain_text, 16, GetParam()));
  AttentionPlan plan = MakePlan(PlanFor(text, GetParam(), 2));
  SequenceId id = *cache.CreateSequence();
  const SequenceId plain_id = *plain.CreateSequence();
  int inexact_without = 0;
  for (std::int64_t length = 0; length < 264; ++length) {
    SCOPED_TRACE(length);
    const SequenceId fork = *plain.Fork(plain_id);
    ASSERT_NO_FATAL_FAILURE(Speculate(plan, plain, fork, drafts));
    inexact_without += *plain.ExactLength(fork, length) != length;
    ASSERT_TRUE(plain.FreeSequence(fork).ok());

    ASSERT_NO_FATAL_FAILURE(Speculate(plan, cache, id, drafts));
    if (length % 2 == 1) {
      const SequenceId before = id;
      id = *cache.Fork(before);
      ASSERT_TRUE(cache.FreeSequence(before).ok());
    }
    const Status status = cache.Rollback(id, 5);
    ASSERT_TRUE(status.ok()) << status.message();
    const Output actual = Step(plan, cache, id, text, 1);
    const Output expected = Step(plan, plain, plain_id, plain_text, 1);
    ASSERT_EQ(actual.out_THD, expected.out_THD);
    ASSERT_EQ(actual.lse_TH, expected.lse_TH);
    if (length % 37 == 0)
      ExpectWithinBounds(actual, Expected(text, length, 1, shows), shape.head_dim_v);
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(inexact_without, 50) << "of 264 rollbacks need no margin";
}

/// Selects the tokens that a budget keeps with plain code: groups of 16 tokens, each with the
/// weight that its keys received.
class Keeper {
 public:
  Keeper(const KvPolicy& policy, std::int64_t tokens)
      : policy_(policy), scores_((tokens + 15) / 16, 0), gone_((tokens + 15) / 16, false) {}

  bool Has(std::int64_t s) const { return !gone_[s / 16]; }
  double score(std::int64_t group) const { return scores_[group]; }
  void Add(std::int64_t s, double prob) { scores_[s / 16] += prob; }

  void Evict(std::int64_t length) {
    for (;;) {
      std::int64_t held = 0, least = -1;
      for (std::int64_t s = 0; s < length; ++s) held += Has(s);
      if (held <= policy_.budget) return;
      for (std::int64_t g = 0; g * 16 + 16 <= length; ++g) {
        const bool is_protected = g * 16 < policy_.sink || g * 16 + 16 > length - policy_.recent;
        if (gone_[g] || is_protected) continue;
        if (least < 0 || scores_[g] < scores_[least]) least = g;
      }
      gone_[least] = true;
    }
  }

 private:
  KvPolicy policy_;
  std::vector<double> scores_;
  std::vector<bool> gone_;
};

TEST_P(AttentionHeads, BudgetsKeepWhatIsAttendedTo) {
  std::vector<KvHeadParams> heads = {{KvType::kF32, KvType::kF32, KvPolicy::Budget(96, 20)},
                                     {KvType::kF16, KvType::kF16, KvPolicy::Budget(130, 40, 5)},
                                     {KvType::kF32, KvType::kF32, KvPolicy::Full()}};
  AttentionCase shape{6, 3, 16, 16, 0, 420, 2.0, true, 0};
  for (const std::int64_t window : {0, 150}) {
    shape.window = window;
    const Text text = MakeText(shape, heads, 77);
    KvCache cache = *KvCache::Create(CacheFor(text, 64, GetParam()));
    AttentionPlan plan = MakePlan(PlanFor(text, GetParam(), 2));
    const SequenceId id = *cache.CreateSequence();
    std::vector<Keeper> keepers = {{heads[0].policy, 420}, {heads[1].policy, 420}};
    for (const std::int64_t count : {100, 1, 30, 150, 1, 1, 60, 1, 76}) {
      const std::int64_t begin = cache.length(id);
      SCOPED_TRACE(begin);
      for (Keeper& keeper : keepers) keeper.Evict(begin);
      const Output actual = Step(plan, cache, id, text, count);
      const auto shows = [&](std::int64_t head, std::int64_t, std::int64_t s) {
        return head == 2 || keepers[head].Has(s);
      };
      const AttentionResult expected = Expected(text, begin, count, shows);
      ExpectWithinBounds(actual, expected, shape.head_dim_v);
      if (HasFatalFailure()) return;
      // The probabilities of the reference, head by head.
      AttentionCase part = shape;
      part.num_kv_heads = 3;
      part.q_len = count;
      part.kv_len = begin + count;
      for (std::int64_t h = 0; h < 6; ++h)
        for (std::int64_t t = 0; t < count; ++t)
          for (std::int64_t s = 0; s < part.kv_len; ++s)
            part.mask_HTS.push_back(shows(h / 2, 0, s) ? 1 : 0);
      const std::vector<double> probs = ReferenceWeights(
          part, LogitStage::kProbs,
          {text.q_THD.begin() + begin * 96, text.q_THD.begin() + (begin + count) * 96},
          Stored(text, text.k_SKD, 16, &KvHeadParams::k_type));
      for (std::int64_t h = 0; h < 4; ++h)
        for (std::int64_t t = 0; t < count; ++t)
          for (std::int64_t s = 0; s < part.kv_len; ++s)
            keepers[h / 2].Add(s, probs[(h * count + t) * part.kv_len + s]);
      for (std::int64_t head = 0; head < 2; ++head) {
        const kernels::KvHeadView view = cache.impl().HeadView(id, 0, head);
        for (std::int64_t s = 0; s < part.kv_len; ++s) {
          ASSERT_EQ(cache.Holds(id, 0, head, s), keepers[head].Has(s)) << head << " " << s;
          if (!keepers[head].Has(s)) continue;
          ASSERT_NEAR(static_cast<double>(view.scores[s / 16]) / double{kernels::kKvScoreUnit},
                      keepers[head].score(s / 16), 1e-3);
        }
        const std::int64_t tokens = (*cache.head_usage(id))[0][head].tokens;
        EXPECT_LE(tokens, heads[head].policy.budget + count);
      }
    }
  }
}

// The sums of a budget do not depend on who adds first.
TEST_P(AttentionHeads, BudgetsScoreTheSameOnAnyNumberOfThreads) {
  const std::vector<KvHeadParams> heads(2, {KvType::kF16, KvType::kF16, KvPolicy::Budget(128, 32)});
  const Text text = MakeText({10, 2, 24, 24, 0, 900, 1.0, true, 0}, heads, 3);
  std::vector<std::int64_t> first;
  for (const int threads : {1, 2, 5}) {
    KvCache cache = *KvCache::Create(CacheFor(text, 64, GetParam()));
    AttentionPlan plan = MakePlan(PlanFor(text, GetParam(), threads));
    const SequenceId id = *cache.CreateSequence();
    for (const std::int64_t count : {500, 1, 1, 300, 1}) Step(plan, cache, id, text, count);
    std::vector<std::int64_t> scores;
    for (std::int64_t head = 0; head < 2; ++head) {
      const kernels::KvHeadView view = cache.impl().HeadView(id, 0, head);
      scores.insert(scores.end(), view.scores, view.scores + (view.length + 15) / 16);
    }
    if (first.empty()) first = scores;
    EXPECT_EQ(scores, first);
  }
}

// Dropped and copied ranges: what is left is seen, at the positions it had.
TEST_P(AttentionHeads, DroppedRangesAreNotSeen) {
  const std::vector<KvHeadParams> heads = {{KvType::kF32, KvType::kF32, {}},
                                           {KvType::kInt8, KvType::kInt4, {}},
                                           {KvType::kF32, KvType::kF16, KvPolicy::Window(120)},
                                           {KvType::kF32, KvType::kF32, KvPolicy::Off()}};
  const Text text = MakeText({8, 4, 20, 20, 0, 260, 0.4, true, 0}, heads, 21);
  KvCache cache = *KvCache::Create(CacheFor(text, 32, GetParam()));
  AttentionPlan plan = MakePlan(PlanFor(text, GetParam(), 2));
  const SequenceId id = *cache.CreateSequence();
  Step(plan, cache, id, text, 200);
  std::vector<bool> dropped(260, false);
  const auto shows = [&](std::int64_t head, std::int64_t i, std::int64_t s) {
    return !dropped[s] && PolicyShows(heads[head].policy, i, s);
  };
  for (const auto& [begin, end] :
       {std::pair<int, int>{0, 5}, {37, 38}, {60, 130}, {125, 141}, {196, 200}}) {
    ASSERT_TRUE(cache.Drop(id, begin, end).ok());
    std::fill(dropped.begin() + begin, dropped.begin() + end, true);
    EXPECT_FALSE(cache.Holds(id, 0, 0, begin));
    EXPECT_FALSE(cache.Read(id, 0, 1, begin, nullptr, nullptr).ok());
  }
  const SequenceId copy = *cache.CreateSequence();
  ASSERT_TRUE(cache.Copy(id, 41, 187, copy).ok());
  for (const std::int64_t count : {1, 20, 39}) {
    const std::int64_t begin = cache.length(id);
    ExpectWithinBounds(Step(plan, cache, id, text, count), Expected(text, begin, count, shows), 20);
    if (HasFatalFailure()) return;
  }
  std::fill(dropped.begin(), dropped.begin() + 41, true);
  std::fill(dropped.begin() + 187, dropped.end(), false);
  for (const std::int64_t count : {2, 60}) {
    const std::int64_t begin = cache.length(copy);
    ExpectWithinBounds(Step(plan, cache, copy, text, count), Expected(text, begin, count, shows),
                       20);
    if (HasFatalFailure()) return;
  }
}

TEST(AttentionHeadErrors, QueriesWhoseKeysWereEvictedAreRefused) {
  const Text text = MakeText({2, 1, 8, 8, 0, 100, 1, true, 0},
                             {{KvType::kF32, KvType::kF32, KvPolicy::Window(16)}}, 1);
  KvCache cache = *KvCache::Create(CacheFor(text, 16, Isa::kScalar));
  AttentionPlan plan = MakePlan(PlanFor(text, Isa::kScalar, 1));
  const SequenceId id = *cache.CreateSequence();
  Step(plan, cache, id, text, 60);
  Step(plan, cache, id, text, 3);
  const std::int64_t indptr[] = {0, 4};
  std::vector<float> out(4 * 16, kNan);
  const Status status = plan.Run(cache, 0, {&id, 1}, indptr, text.q_THD.data(), out.data());
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("q_len = 4 of request 0 begins at position 59; keys that "
                                          "queries before position 60 see were evicted"));
  for (const float x : out) EXPECT_TRUE(std::isnan(x));
}

}  // namespace
}  // namespace manyhead::testing
