#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "manyhead/session.h"
#include "tests/model/load_tiny.h"
#include "tests/support/temp_dir.h"

/// The arithmetic of a token follows its role: prompts give the same bits however they are cut, and
/// several tokens that decode those of a step each.

namespace manyhead {
namespace {

using testing::SomeIds;
using testing::TempDir;
using testing::TinyModel;

using ::testing::HasSubstr;

Model Tiny(WeightType matrices, WeightStorage storage) {
  TinyModel tiny;
  tiny.d_model = 64;
  tiny.head_dim = 16;
  tiny.ffn_dim = 96;
  tiny.context = 400;
  tiny.matrices = matrices;
  tiny.MakeWeights(7);
  const TempDir folder;
  tiny.ToGguf().Write(folder.File("m"));
  Result<Model> model = Model::Load(folder.File("m"), {.weights = storage, .threads = 1});
  EXPECT_TRUE(model.ok()) << model.status().message();
  return *std::move(model);
}

struct Named {
  std::string name;
  Model model;
};

std::vector<Named> Models() {
  return {{"f32", Tiny(WeightType::kF32, WeightStorage::kMapped)},
          {"f16", Tiny(WeightType::kF16, WeightStorage::kMapped)},
          {"q8_0 mapped", Tiny(WeightType::kQ8_0, WeightStorage::kMapped)},
          {"q8_0 packed", Tiny(WeightType::kQ8_0, WeightStorage::kPacked)}};
}

Session Make(const Model& model, SessionOptions options) {
  Result<Session> session = Session::Create(model, options);
  EXPECT_TRUE(session.ok()) << session.status().message();
  return *std::move(session);
}

std::vector<float> After(Session& session, std::span<const TokenId> ids,
                         std::optional<RowRole> role = {}) {
  const Result<std::span<const float>> logits = session.Append(ids, role);
  EXPECT_TRUE(logits.ok()) << logits.status().message();
  return {logits->begin(), logits->end()};
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST(SessionRoles, APromptHasTheSameBitsHoweverItIsCut) {
  const std::vector<TokenId> ids = SomeIds(200);
  for (const auto& [name, model] : Models())
    for (const Isa isa : SupportedIsas())
      for (const MathMode math : {MathMode::kFast, MathMode::kExact}) {
        std::vector<std::vector<float>> prompts, decoded;
        std::vector<std::vector<double>> nlls;
        for (const std::int64_t chunk : {512, 64, 7, 1}) {
          SCOPED_TRACE(name + " " + IsaName(isa) + " chunk " + std::to_string(chunk));
          SessionOptions options;
          options.isa = isa;
          options.math = math;
          options.chunk = chunk;
          options.threads = 1;
          Session session = Make(model, options);
          prompts.push_back(After(session, ids, RowRole::kPrefill));
          decoded.push_back(After(session, SomeIds(1, 9)));
          Session scored = Make(model, options);
          nlls.emplace_back(ids.size() - 1);
          ASSERT_TRUE(scored.Score(ids, nlls.back()).ok());
          ASSERT_TRUE(SameBits(prompts.back(), prompts.front()));
          ASSERT_TRUE(SameBits(decoded.back(), decoded.front()));
          ASSERT_EQ(nlls.back(), nlls.front());
        }
      }
}

TEST(SessionRoles, SeveralTokensThatDecodeHaveTheBitsOfAStepEach) {
  for (const auto& [name, model] : Models())
    for (const Isa isa : SupportedIsas())
      for (const std::int64_t drafts : {1, 2, 8, 9, 40}) {
        SCOPED_TRACE(name + " " + IsaName(isa) + " drafts " + std::to_string(drafts));
        SessionOptions options;
        options.isa = isa;
        options.threads = 1;
        Session together = Make(model, options), one_by_one = Make(model, options);
        After(together, SomeIds(20));
        After(one_by_one, SomeIds(20));
        const std::vector<TokenId> ids = SomeIds(drafts, 77);
        const std::vector<float> logits = After(together, ids, RowRole::kDecode);
        std::vector<float> expected;
        for (const TokenId id : ids) expected = After(one_by_one, {&id, 1});
        ASSERT_TRUE(SameBits(logits, expected));
      }
}

// By default one token decodes and more are a prompt; the roles differ where products do.
TEST(SessionRoles, AppendTakesItsRoleFromTheCountUnlessItIsGiven) {
  const Model model = Tiny(WeightType::kF32, WeightStorage::kMapped);
  const std::vector<TokenId> one = SomeIds(1, 5), two = SomeIds(2, 5);
  const auto after = [&](std::span<const TokenId> ids, std::optional<RowRole> role) {
    Session session = Make(model, {});
    After(session, SomeIds(30));
    return After(session, ids, role);
  };
  EXPECT_TRUE(SameBits(after(one, {}), after(one, RowRole::kDecode)));
  EXPECT_FALSE(SameBits(after(one, {}), after(one, RowRole::kPrefill)));
  EXPECT_TRUE(SameBits(after(two, {}), after(two, RowRole::kPrefill)));
  EXPECT_FALSE(SameBits(after(two, {}), after(two, RowRole::kDecode)));
  Session session = Make(model, {});
  EXPECT_THAT(session.Append(one, static_cast<RowRole>(2)).status().message(),
              HasSubstr("role = 2; expected 0 to 1"));
  EXPECT_EQ(session.length(), 0);
}

TEST(SessionRoles, ProductPathsNameTheProductsOfBothRoles) {
  SessionOptions options;
  options.isa = Isa::kScalar;
  const auto names = [&](const Model& model) {
    std::vector<std::string> lines;
    for (const ProductPath& path : Make(model, options).ProductPaths())
      lines.push_back(std::string(StepPhaseName(path.phase)) + " " + WeightTypeName(path.type) +
                      " x" + std::to_string(path.matrices) + ": " + path.decode + " | " +
                      path.prefill);
    return lines;
  };
  EXPECT_THAT(names(Tiny(WeightType::kQ8_0, WeightStorage::kMapped)),
              ::testing::ElementsAre("query/key/value Q8_0 x6: matvec int8 scalar | onednn f32",
                                     "attention output Q8_0 x2: matvec int8 scalar | onednn f32",
                                     "gate/up Q8_0 x4: matvec int8 scalar | onednn f32",
                                     "down Q8_0 x2: matvec int8 scalar | onednn f32",
                                     "head Q8_0 x1: matvec int8 scalar | matvec int8 scalar"));
  options.math = MathMode::kExact;
  EXPECT_EQ(names(Tiny(WeightType::kQ8_0, WeightStorage::kPacked)).front(),
            "query/key/value Q8_0 x6: matvec f32 scalar | onednn f32");
}

/// A prompt, its reply of 11 tokens, and a second prompt of 5 tokens more.
struct Turns {
  std::int64_t evaluated = 0;  ///< tokens of the second prompt
  std::vector<std::pair<TokenId, float>> warm, cold;
};

Turns TakeTurns(const Model& model, const SessionOptions& options, std::int64_t prompt) {
  GenerateOptions generate;
  generate.max_tokens = 12;
  generate.top_logits = 8;
  Session session = Make(model, options);
  EXPECT_TRUE(session.Generate(SomeIds(prompt), generate).ok());
  std::vector<TokenId> second(session.tokens().begin(), session.tokens().end());
  for (const TokenId id : SomeIds(5, 60)) second.push_back(id);
  Turns turns;
  const auto warm = session.Generate(second, generate);
  Session fresh = Make(model, options);
  const auto cold = fresh.Generate(second, generate);
  EXPECT_TRUE(warm.ok() && cold.ok());
  turns.evaluated = warm->timings.prefill_tokens;
  turns.warm = warm->top_logits;
  turns.cold = cold->top_logits;
  return turns;
}

// Roles agree where the product of packed weights takes both, behind the accurate rows of a prompt.
TEST(SessionRoles, AReplyIsEvaluatedAnewAsPartOfAPromptWhereItsBitsWouldDiffer) {
  for (const auto& [name, model] : Models())
    for (const Isa isa : SupportedIsas()) {
      SCOPED_TRACE(name + " " + IsaName(isa));
      SessionOptions options;
      options.isa = isa;
      options.threads = 1;
      for (const std::int64_t prompt : {40, 63, 64, 90}) {
        SCOPED_TRACE(prompt);
        const Turns turns = TakeTurns(model, options, prompt);
        EXPECT_EQ(turns.warm, turns.cold);
        const bool agree = name == "q8_0 packed" && isa != Isa::kScalar && prompt >= 64;
        EXPECT_EQ(turns.evaluated, agree ? 5 : 16);
      }
    }
}

// Pages of 16 tokens are evicted once the window has left them: with them goes the way back.
TEST(SessionRoles, AReplyStaysWhereTheWayBackWasEvicted) {
  SessionOptions options;
  options.threads = 1;
  options.kv_policy = "window(3)";
  const Model model = Tiny(WeightType::kF32, WeightStorage::kMapped);
  GenerateOptions generate;
  generate.max_tokens = 120;
  Session session = Make(model, options);
  ASSERT_TRUE(session.Generate(SomeIds(20), generate).ok());
  const std::int64_t held = session.length();
  ASSERT_GT(held, 100);
  std::vector<TokenId> second(session.tokens().begin(), session.tokens().end());
  for (const TokenId id : SomeIds(5, 60)) second.push_back(id);
  const auto warm = session.Generate(second, generate);
  ASSERT_TRUE(warm.ok());
  EXPECT_EQ(warm->timings.prefill_tokens, 5);
}

// Truncating behind what a window has left evaluates tokens anew, each in its role; a file keeps
// the roles.
TEST(SessionRoles, TruncatedAndRestoredTokensKeepTheirRoles) {
  const TempDir folder;
  SessionOptions options;
  options.threads = 1;
  options.kv_policy = "window(9)";
  options.k_type = options.v_type = KvType::kF32;
  options.context = 400;
  const Model model = Tiny(WeightType::kF16, WeightStorage::kMapped);
  const auto fill = [&](Session& session, std::int64_t most) {
    // Prompts and decode steps alternate.
    std::int64_t position = 0;
    for (const std::int64_t count : {30, 40, 20, 50, 100}) {
      const RowRole role = count == 40 || count == 50 ? RowRole::kDecode : RowRole::kPrefill;
      const std::int64_t taken = std::min(count, most - position);
      if (taken > 0) After(session, SomeIds(taken, static_cast<unsigned>(count)), role);
      position += std::max<std::int64_t>(0, taken);
    }
  };
  Session session = Make(model, options);
  fill(session, 240);
  ASSERT_TRUE(session.Save(folder.File("s")).ok());
  Session restored = Make(model, options);
  ASSERT_TRUE(restored.Restore(folder.File("s")).ok());
  for (const std::int64_t length : {135, 60}) {
    Session fresh = Make(model, options);
    fill(fresh, length);
    ASSERT_TRUE(session.Truncate(length).ok());
    ASSERT_TRUE(restored.Truncate(length).ok());
    Session prompt = Make(model, options);
    std::vector<TokenId> ids(fresh.tokens().begin(), fresh.tokens().end());
    After(prompt, ids, RowRole::kPrefill);
    const std::vector<float> expected = After(fresh, SomeIds(1, 3));
    EXPECT_TRUE(SameBits(After(session, SomeIds(1, 3)), expected)) << length;
    EXPECT_TRUE(SameBits(After(restored, SomeIds(1, 3)), expected)) << length;
    EXPECT_FALSE(SameBits(After(prompt, SomeIds(1, 3)), expected)) << "roles must matter here";
    ASSERT_TRUE(session.Truncate(length).ok() && restored.Truncate(length).ok());
  }
}

}  // namespace
}  // namespace manyhead
