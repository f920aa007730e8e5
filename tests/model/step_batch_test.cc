#include "runtime/model/step_batch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "manyhead/isa.h"
#include "runtime/cache/kv_cache_impl.h"
#include "runtime/model/decoder.h"
#include "runtime/model/weights.h"
#include "tests/model/load_tiny.h"
#include "tests/support/allocation_meter.h"

/// Steps of many sequences: every row has the bits that its sequence gets alone.

namespace manyhead {
namespace {

using testing::SomeIds;
using testing::TempDir;
using testing::TinyModel;

using ::testing::HasSubstr;

constexpr std::int64_t kContext = 90, kMostSequences = 64, kMostRows = 160;

struct Weights {
  const char* name;
  WeightType type;
  WeightStorage storage;
};

constexpr Weights kWeights[] = {
    {"f32", WeightType::kF32, WeightStorage::kMapped},
    {"f16", WeightType::kF16, WeightStorage::kMapped},
    {"q8_0 packed", WeightType::kQ8_0, WeightStorage::kPacked},
    {"q8_0 mapped", WeightType::kQ8_0, WeightStorage::kMapped},
};

struct CacheKind {
  const char* name;
  KvType k_type, v_type;
  const char* policy;
};

constexpr CacheKind kCaches[] = {
    {"f16", KvType::kF16, KvType::kF16, ""},
    {"int8/int4", KvType::kInt8, KvType::kInt4, "sink(2)+recent(9)"},
    {"mixed", KvType::kF32, KvType::kBf16,
     R"json({"heads": [{"layers": [0], "kv_heads": [1], "k_type": "int8", "policy": "window(7)"},
                   {"layers": [1], "kv_heads": [0], "v_type": "int4",
                    "policy": "budget(80)+recent(20)"}]})json"},
};

Model MakeModel(const Weights& weights) {
  TinyModel tiny;
  tiny.d_model = 64;
  tiny.num_heads = 4;
  tiny.head_dim = 16;
  tiny.ffn_dim = 96;
  tiny.context = kContext;
  tiny.matrices = weights.type;
  tiny.MakeWeights(5);
  const TempDir folder;
  tiny.ToGguf().Write(folder.File("m"));
  Result<Model> model = Model::Load(folder.File("m"), {.weights = weights.storage, .threads = 1});
  EXPECT_TRUE(model.ok()) << model.status().message();
  return *std::move(model);
}

bool SameBits(const std::vector<float>& a, const float* b) {
  return std::memcmp(a.data(), b, a.size() * sizeof(float)) == 0;
}

struct Settings {
  Isa isa = Isa::kScalar;
  MathMode math = MathMode::kFast;
  int threads = 1;
  std::int64_t max_sequences = 1;
};

Decoder MakeDecoder(const Model& model, const Settings& settings) {
  Result<Decoder> decoder = Decoder::Create(
      model.impl(),
      {kMostRows, kContext, settings.threads, settings.isa, settings.math, settings.max_sequences});
  EXPECT_TRUE(decoder.ok()) << decoder.status().message();
  return *std::move(decoder);
}

KvCache MakeCache(const Model& model, const CacheKind& kind, Isa isa) {
  KvCacheParams params;
  params.layers = Decoder::CacheLayers(model.config());
  params.k_type = kind.k_type;
  params.v_type = kind.v_type;
  params.max_tokens = kContext;
  params.isa = isa;
  params.capacity_bytes = 1 << 26;
  if (*kind.policy != 0) {
    auto heads = ParseKvHeads(kind.policy, params);
    EXPECT_TRUE(heads.ok()) << heads.status().message();
    params.heads = *std::move(heads);
  }
  Result<KvCache> cache = KvCache::Create(params);
  EXPECT_TRUE(cache.ok()) << cache.status().message();
  return *std::move(cache);
}

/// Some tokens of a sequence in one step.
struct Part {
  std::vector<TokenId> ids;
  RowRole role = RowRole::kPrefill;
  const std::vector<HeadEdits>* edits = nullptr;
  AttentionTap* tap = nullptr;
};

/// The results of a step for each row.
struct Rows {
  std::vector<float> logits, hidden;
};

/// A cache with sequences, and a decoder.
struct World {
  World(const Model& model, const CacheKind& kind, const Settings& settings)
      : decoder(MakeDecoder(model, settings)),
        cache(MakeCache(model, kind, settings.isa)),
        vocab(model.config().vocab_size),
        d(model.config().d_model) {}

  void Add() { ids.push_back(*cache.CreateSequence()); }

  /// One step of parts[i] of sequence order[i], every row of which wants everything.
  Rows Step(const std::vector<std::size_t>& order, const std::vector<Part>& parts) {
    std::vector<TokenId> tokens;
    std::vector<std::int64_t> indptr = {0}, wanted;
    std::vector<StepSequence> sequences;
    for (std::size_t i = 0; i < order.size(); ++i) {
      const SequenceId id = ids[order[i]];
      const std::int64_t position = cache.length(id);
      EXPECT_TRUE(cache.Reserve(id, std::ssize(parts[i].ids)).ok());
      tokens.insert(tokens.end(), parts[i].ids.begin(), parts[i].ids.end());
      indptr.push_back(std::ssize(tokens));
      sequences.push_back({id, position, parts[i].role, parts[i].edits, parts[i].tap, nullptr});
    }
    for (std::int64_t row = 0; row < std::ssize(tokens); ++row) wanted.push_back(row);
    Rows rows{std::vector<float>(tokens.size() * static_cast<std::size_t>(vocab)),
              std::vector<float>(tokens.size() * static_cast<std::size_t>(d))};
    const Status status = decoder.Step(
        cache, {tokens, indptr, sequences, wanted, rows.logits.data(), wanted, rows.hidden.data()});
    EXPECT_TRUE(status.ok()) << status.message();
    return rows;
  }

  Decoder decoder;
  KvCache cache;
  std::int64_t vocab, d;
  std::vector<SequenceId> ids;
};

/// Compares a step of `many` with steps of one sequence each in `alone`: decoding rows one by one,
/// a prompt in pieces of `piece` rows.
void ExpectStepsAlone(World& many, World& alone, const std::vector<std::size_t>& order,
                      const std::vector<Part>& parts, std::int64_t piece) {
  const Rows rows = many.Step(order, parts);
  std::int64_t row = 0;
  for (std::size_t i = 0; i < order.size(); ++i) {
    const Part& part = parts[i];
    const std::int64_t step = part.role == RowRole::kDecode ? 1 : piece;
    for (std::int64_t begin = 0; begin < std::ssize(part.ids); begin += step) {
      const std::int64_t count = std::min(step, std::ssize(part.ids) - begin);
      Part one = part;
      one.ids.assign(part.ids.begin() + begin, part.ids.begin() + begin + count);
      const Rows expected = alone.Step({order[i]}, {one});
      ASSERT_TRUE(SameBits(expected.logits, rows.logits.data() + row * many.vocab))
          << "logits of sequence " << order[i] << " from its row " << begin;
      ASSERT_TRUE(SameBits(expected.hidden, rows.hidden.data() + row * many.d))
          << "hidden states of sequence " << order[i] << " from its row " << begin;
      row += count;
    }
  }
}

class StepBatchTest : public ::testing::TestWithParam<Weights> {
 protected:
  StepBatchTest() : model_(MakeModel(GetParam())) {}
  /// Calls fn(isa, kind) for all there are.
  template <class Fn>
  void ForEachSetting(Fn&& fn) {
    for (const Isa isa : SupportedIsas())
      for (const CacheKind& kind : kCaches) {
        SCOPED_TRACE(std::string(IsaName(isa)) + ", cache " + kind.name);
        fn(isa, kind);
        if (HasFatalFailure()) return;
      }
  }

  Model model_;
};

TEST_P(StepBatchTest, DecodingRowsHaveTheBitsOfTheirSequencesAlone) {
  ForEachSetting([&](Isa isa, const CacheKind& kind) {
    for (const std::size_t count : {1, 2, 8, 9, 33, 64}) {
      World many(model_, kind, {isa, MathMode::kFast, 2, kMostSequences});
      World alone(model_, kind, {isa, MathMode::kFast, 1, 1});
      std::vector<std::size_t> order;
      for (std::size_t i = 0; i < count; ++i) {
        many.Add();
        alone.Add();
        order.push_back(i * 7 % count);
        // Prompts of 1 to 23 tokens, each evaluated alone in both.
        const Part prompt{
            SomeIds(static_cast<std::int64_t>(1 + i * 7 % 23), static_cast<unsigned>(i))};
        many.Step({i}, {prompt});
        alone.Step({i}, {prompt});
      }
      for (unsigned step = 0; step < 3; ++step) {
        std::vector<Part> parts;
        for (std::size_t i = 0; i < count; ++i)
          parts.push_back(
              {SomeIds(1, step * 91 + static_cast<unsigned>(order[i])), RowRole::kDecode});
        SCOPED_TRACE(::testing::Message() << count << " sequences, step " << step);
        ASSERT_NO_FATAL_FAILURE(ExpectStepsAlone(many, alone, order, parts, 1));
      }
    }
  });
}

// Prompts that begin in the middle of the step, prompts that go on, tokens that decode, and drafts:
// several rows of a sequence that decode.
TEST_P(StepBatchTest, BothRolesInOneStepHaveTheBitsOfEachAlone) {
  for (const MathMode math : {MathMode::kFast, MathMode::kExact})
    ForEachSetting([&](Isa isa, const CacheKind& kind) {
      if (std::string(kind.name) == "mixed") return;  // pieces of a prompt evict other pages
      World many(model_, kind, {isa, math, 2, 9});
      World alone(model_, kind, {isa, math, 1, 1});
      for (std::size_t i = 0; i < 9; ++i) {
        many.Add();
        alone.Add();
      }
      const auto part = [](std::int64_t count, RowRole role) {
        return Part{SomeIds(count, static_cast<unsigned>(count * 3)), role};
      };
      constexpr RowRole kPrompt = RowRole::kPrefill, kDecode = RowRole::kDecode;
      ASSERT_NO_FATAL_FAILURE(ExpectStepsAlone(
          many, alone, {4, 1, 0, 7},
          {part(3, kPrompt), part(1, kDecode), part(1, kPrompt), part(21, kPrompt)}, 2));
      ASSERT_NO_FATAL_FAILURE(
          ExpectStepsAlone(many, alone, {1, 2, 7, 0, 3, 4, 8, 5},
                           {part(1, kDecode), part(30, kPrompt), part(5, kDecode), part(9, kPrompt),
                            part(1, kDecode), part(1, kDecode), part(2, kDecode), part(1, kPrompt)},
                           7));
      ASSERT_NO_FATAL_FAILURE(
          ExpectStepsAlone(many, alone, {6, 5, 4, 3, 2},
                           {part(12, kDecode), part(40, kPrompt), part(1, kDecode),
                            part(1, kDecode), part(1, kDecode)},
                           64));
    });
}

TEST_P(StepBatchTest, EditsAndTapsAreThoseOfTheirSequence) {
  /// Adds up what it sees.
  class Sum : public AttentionTap {
   public:
    void Observe(Worker& worker, const AttentionStep& step) noexcept override {
      if (worker.index() == 0) {
        const AttentionParams& params = step.plan->params();
        std::vector<float> weights(static_cast<std::size_t>(params.num_heads * kContext));
        for (std::int64_t row = 0; row < step.rows; ++row) {
          step.WeightsOf(0, 1, row, {weights.data(), kContext, step.position + row + 1, nullptr});
          seen.insert(seen.end(), weights.begin(), weights.end());
          const std::int64_t width = params.num_heads * params.head_dim_v;
          seen.insert(seen.end(), step.attended + row * width, step.attended + (row + 1) * width);
          seen.push_back(step.lse[row * params.num_heads]);
        }
        sequences.push_back(step.sequence);
      }
      worker.Barrier();
    }
    std::int64_t* head_times() noexcept override { return nullptr; }
    std::int64_t head_times_stride() const noexcept override { return 0; }
    std::vector<float> seen;
    std::vector<SequenceId> sequences;
  };
  std::vector<HeadEdits> off(2), scaled(2);
  off[1].edits.push_back({16, 16, 0, {}});
  scaled[0].edits.push_back({0, 32, 0.5F, {}});
  scaled[1].edits.push_back({48, 16, 0, std::vector<float>(16, 0.25F)});
  const Isa isa = SupportedIsas().back();
  World many(model_, kCaches[0], {isa, MathMode::kFast, 2, 4});
  World alone(model_, kCaches[0], {isa, MathMode::kFast, 1, 1});
  many.decoder.AllowTaps(true);
  alone.decoder.AllowTaps(true);
  for (int i = 0; i < 4; ++i) {
    many.Add();
    alone.Add();
  }
  Sum taps[2], taps_alone[2];
  const std::vector<std::size_t> order = {2, 0, 3, 1};
  const auto parts = [&](Sum* tap) {
    return std::vector<Part>{{SomeIds(4, 1), RowRole::kPrefill, &off, &tap[0]},
                             {SomeIds(6, 2)},
                             {SomeIds(1, 3), RowRole::kDecode, &scaled, &tap[1]},
                             {SomeIds(1, 4), RowRole::kDecode}};
  };
  for (int step = 0; step < 2; ++step) {
    const Rows rows = many.Step(order, parts(taps));
    std::int64_t row = 0;
    for (std::size_t i = 0; i < order.size(); ++i) {
      const Part one = parts(taps_alone)[i];
      ASSERT_TRUE(
          SameBits(alone.Step({order[i]}, {one}).logits, rows.logits.data() + row * many.vocab))
          << "sequence " << order[i];
      row += std::ssize(one.ids);
    }
  }
  for (int i = 0; i < 2; ++i) {
    ASSERT_FALSE(taps[i].seen.empty());
    EXPECT_EQ(taps[i].seen.size(), taps_alone[i].seen.size());
    EXPECT_TRUE(SameBits(taps[i].seen, taps_alone[i].seen.data())) << i;
    EXPECT_THAT(taps[i].sequences, ::testing::Each(many.ids[i == 0 ? 2 : 3]));
  }
  // The same sequence gives other logits without its edits.
  World plain(model_, kCaches[0], {isa, MathMode::kFast, 1, 1});
  plain.Add();
  World edited(model_, kCaches[0], {isa, MathMode::kFast, 1, 1});
  edited.Add();
  EXPECT_FALSE(
      SameBits(plain.Step({0}, {{SomeIds(4, 1)}}).logits,
               edited.Step({0}, {{SomeIds(4, 1), RowRole::kPrefill, &off}}).logits.data()));
}

INSTANTIATE_TEST_SUITE_P(, StepBatchTest, ::testing::ValuesIn(kWeights), [](const auto& test) {
  std::string name = test.param.name;
  std::replace(name.begin(), name.end(), ' ', '_');
  return name;
});

TEST(StepBatchRowsTest, OnlyTheRowsThatAreWantedAreGivenInTheOrderAsked) {
  const Model model = MakeModel(kWeights[2]);
  const Isa isa = SupportedIsas().back();
  World all(model, kCaches[0], {isa, MathMode::kFast, 1, 3});
  World some(model, kCaches[0], {isa, MathMode::kFast, 2, 3});
  for (int i = 0; i < 3; ++i) {
    all.Add();
    some.Add();
    ASSERT_TRUE(some.cache.Reserve(some.ids[static_cast<std::size_t>(i)], i == 1 ? 1 : 5).ok());
  }
  std::vector<TokenId> ids = SomeIds(11);
  const auto piece = [&](int begin, int end) {
    return std::vector<TokenId>(ids.begin() + begin, ids.begin() + end);
  };
  const Rows rows =
      all.Step({0, 1, 2}, {{piece(0, 5)}, {piece(5, 6), RowRole::kDecode}, {piece(6, 11)}});
  const std::int64_t indptr[] = {0, 5, 6, 11}, logit_rows[] = {10, 5, 0, 1}, hidden_rows[] = {5, 4};
  const StepSequence sequences[] = {{some.ids[0], 0, RowRole::kPrefill},
                                    {some.ids[1], 0, RowRole::kDecode},
                                    {some.ids[2], 0, RowRole::kPrefill}};
  const auto vocab = static_cast<std::size_t>(some.vocab), d = static_cast<std::size_t>(some.d);
  std::vector<float> logits(4 * vocab + 1, -7.0F), hidden(2 * d + 1, -7.0F);
  const Status status = some.decoder.Step(
      some.cache, {ids, indptr, sequences, logit_rows, logits.data(), hidden_rows, hidden.data()});
  ASSERT_TRUE(status.ok()) << status.message();
  for (std::size_t i = 0; i < 4; ++i)
    EXPECT_EQ(std::memcmp(logits.data() + i * vocab,
                          rows.logits.data() + static_cast<std::size_t>(logit_rows[i]) * vocab,
                          vocab * 4),
              0)
        << i;
  for (std::size_t i = 0; i < 2; ++i)
    EXPECT_EQ(std::memcmp(hidden.data() + i * d,
                          rows.hidden.data() + static_cast<std::size_t>(hidden_rows[i]) * d, d * 4),
              0)
        << i;
  EXPECT_EQ(logits.back(), -7.0F);
  EXPECT_EQ(hidden.back(), -7.0F);
}

TEST(StepBatchRowsTest, NothingIsAllocatedForAStep) {
  const Model model = MakeModel(kWeights[2]);
  World world(model, kCaches[0], {SupportedIsas().back(), MathMode::kFast, 2, 3});
  std::vector<StepSequence> sequences;
  for (int i = 0; i < 3; ++i) {
    world.Add();
    ASSERT_TRUE(world.cache.Reserve(world.ids.back(), 1).ok());
    sequences.push_back({world.ids.back(), 0, RowRole::kDecode});
  }
  const std::vector<TokenId> ids = SomeIds(3);
  const std::int64_t indptr[] = {0, 1, 2, 3};
  std::vector<float> logits(static_cast<std::size_t>(3 * world.vocab));
  const std::int64_t wanted[] = {2, 0, 1};
  ASSERT_TRUE(
      world.decoder.Step(world.cache, {ids, indptr, sequences, wanted, logits.data()}).ok());
  testing::ResetAllocationMeter();
  ASSERT_TRUE(
      world.decoder.Step(world.cache, {ids, indptr, sequences, wanted, logits.data()}).ok());
  EXPECT_EQ(testing::NumAllocations(), 0U);
}

TEST(StepBatchRowsTest, MalformedBatchesAreNamedAndChangeNothing) {
  const Model model = MakeModel(kWeights[0]);
  World world(model, kCaches[0], {Isa::kScalar, MathMode::kFast, 1, 2});
  for (int i = 0; i < 3; ++i) {
    world.Add();
    ASSERT_TRUE(world.cache.Reserve(world.ids.back(), 2).ok());
  }
  const SequenceId a = world.ids[0], b = world.ids[1], c = world.ids[2];
  const std::vector<TokenId> ids = SomeIds(4), many(kMostRows + 1, 3);
  const std::vector<HeadEdits> short_edits(1);
  class Deaf : public AttentionTap {
    void Observe(Worker&, const AttentionStep&) noexcept override {}
    std::int64_t* head_times() noexcept override { return nullptr; }
    std::int64_t head_times_stride() const noexcept override { return 0; }
  } tap;
  std::vector<float> logits(static_cast<std::size_t>(4 * world.vocab), -7.0F);
  struct Case {
    std::vector<TokenId> ids;
    std::vector<std::int64_t> indptr;
    std::vector<StepSequence> sequences;
    std::vector<std::int64_t> logit_rows;
    const char* message;
    bool no_room = false;
  };
  const Case cases[] = {
      {ids, {0}, {}, {}, "sequences = 0; expected 1..2"},
      {ids, {0, 1, 2, 4}, {{a}, {b}, {c}}, {}, "sequences = 3; expected 1..2"},
      {{}, {0, 0}, {{a}}, {}, "ids = 0; expected 1..160"},
      {many, {0, kMostRows + 1}, {{a}}, {}, "ids = 161; expected 1..160"},
      {ids, {0, 4}, {{a}, {b}}, {}, "qo_indptr has 2 elements; expected sequences + 1 = 3"},
      {ids, {1, 2, 4}, {{a}, {b}}, {}, "qo_indptr[0] = 1; expected 0"},
      {ids, {0, 0, 4}, {{a}, {b}}, {}, "qo_indptr[1] = 0; expected more than qo_indptr[0] = 0"},
      {ids, {0, 2, 3}, {{a}, {b}}, {}, "qo_indptr[2] = 3; expected ids = 4"},
      {{3, 259, 4, 5}, {0, 2, 4}, {{a}, {b}}, {}, "ids[1] = 259; expected 0..258"},
      {ids, {0, 2, 4}, {{a}, {SequenceId{77}}}, {}, "sequences[1].id = 77 is not a sequence"},
      {ids, {0, 2, 4}, {{a}, {a}}, {}, "sequences[1].id = 0 is that of sequences[0] too"},
      {ids, {0, 2, 4}, {{a}, {b, 1}}, {}, "sequences[1].position = 1; expected 0: the cache holds"},
      {ids, {0, 1, 4}, {{a, 1}, {b}}, {}, "sequences[1].position = 0; expected -1"},
      {ids, {0, 2, 4}, {{a}, {b, 0, static_cast<RowRole>(2)}}, {}, "sequences[1].role = 2"},
      {ids,
       {0, 2, 4},
       {{a}, {b, 0, RowRole::kDecode, &short_edits}},
       {},
       "sequences[1].edits has 1 layers; expected 2"},
      {ids,
       {0, 2, 4},
       {{a, 0, RowRole::kDecode, nullptr, &tap}, {b}},
       {},
       "sequences[0] has an attention tap"},
      {ids, {0, 2, 4}, {{a}, {b}}, {0, 4}, "logit_rows[1] = 4; expected 0..3"},
      {ids, {0, 2, 4}, {{a}, {b}}, {0, 1, 2, 3, 3}, "logit_rows has 5 rows; expected at most 4"},
      {ids, {0, 2, 4}, {{a}, {b}}, {0}, "logit is null with 1 rows wanted", true},
  };
  std::vector<float> k(16), before(16);
  ASSERT_TRUE(world.cache.Read(a, 0, 0, 0, before.data(), nullptr).ok());
  for (const Case& one : cases) {
    const Status status =
        world.decoder.Step(world.cache, {one.ids, one.indptr, one.sequences, one.logit_rows,
                                         one.no_room ? nullptr : logits.data()});
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr(one.message));
  }
  EXPECT_THAT(logits, ::testing::Each(-7.0F));
  ASSERT_TRUE(world.cache.Read(a, 0, 0, 0, k.data(), nullptr).ok());
  EXPECT_EQ(k, before);
}

}  // namespace
}  // namespace manyhead
