#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "manyhead/session.h"
#include "tests/model/tiny_model.h"
#include "tests/support/snapshot_file.h"
#include "tests/support/temp_dir.h"

/// Sessions that stop, and go on as if they had not (public report ggml-org/llama.cpp#23400).

namespace manyhead {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::TempDir;

Model LoadTiny(const TempDir& folder, unsigned seed) {
  testing::TinyModel tiny;
  tiny.MakeWeights(seed);
  const std::string path = folder.File("model" + std::to_string(seed));
  tiny.ToGguf().Write(path);
  Result<Model> model = Model::Load(path);
  EXPECT_TRUE(model.ok()) << model.status().message();
  return *std::move(model);
}

Model Bundled() {
  Result<Model> model = Model::Load(MANYHEAD_SOURCE_DIR "/tools/models/bundled.gguf");
  EXPECT_TRUE(model.ok()) << model.status().message();
  return *std::move(model);
}

std::vector<TokenId> Ids(std::int64_t count, unsigned seed = 5) {
  std::vector<TokenId> ids;
  for (std::int64_t i = 0; i < count; ++i)
    ids.push_back(3 +
                  static_cast<TokenId>((seed * 7919U + static_cast<unsigned>(i) * 104729U) % 250U));
  return ids;
}

std::vector<float> LogitsAfter(Session& session, std::span<const TokenId> ids) {
  const Result<std::span<const float>> logits = session.Append(ids);
  EXPECT_TRUE(logits.ok()) << logits.status().message();
  return {logits->begin(), logits->end()};
}

bool SameBits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

struct Setting {
  const char* name;
  SessionOptions options;
};

std::vector<Setting> Settings() {
  std::vector<Setting> settings;
  const auto add = [&](const char* name, KvType k_type, KvType v_type, const char* policy) {
    SessionOptions options;
    options.context = 500;
    options.k_type = k_type;
    options.v_type = v_type;
    options.kv_policy = policy;
    options.chunk = 100;
    options.threads = 2;
    settings.push_back({name, options});
  };
  add("f32", KvType::kF32, KvType::kF32, "");
  add("f16", KvType::kF16, KvType::kF16, "full");
  add("bf16", KvType::kBf16, KvType::kBf16, "");
  add("int8", KvType::kInt8, KvType::kInt8, "");
  add("int4", KvType::kInt4, KvType::kInt4, "");
  add("int8/int4", KvType::kInt8, KvType::kInt4, "window(40)");
  add("sinks", KvType::kF16, KvType::kF16, "sink(4)+recent(70)");
  add("budgets", KvType::kF16, KvType::kInt8, "budget(80)+recent(20)");
  add("off", KvType::kF16, KvType::kF16, R"({"heads": [{"kv_heads": [1], "policy": "off"}]})");
  return settings;
}

TEST(SessionState, GoesOnAsIfItHadNeverStopped) {
  const TempDir folder;
  const Model model = Bundled();
  for (const auto& [name, options] : Settings())
    for (const int before : {1, 64, 230}) {
      SCOPED_TRACE(::testing::Message() << name << " after " << before);
      Session whole = *Session::Create(model, options);
      const std::vector<float> logits = LogitsAfter(whole, Ids(before));
      ASSERT_TRUE(whole.Save(folder.File("s")).ok());

      Session again = *Session::Create(model, options);
      LogitsAfter(again, Ids(90, 8));  // Restore drops the tokens held before
      ASSERT_TRUE(again.Restore(folder.File("s")).ok());
      ASSERT_EQ(std::vector(again.tokens().begin(), again.tokens().end()), Ids(before));
      EXPECT_TRUE(SameBits(again.logits(), logits));
      EXPECT_EQ(again.cache().usage().used_bytes, whole.cache().usage().used_bytes);
      // Tokens one by one, then many, then a truncation.
      for (const std::int64_t count : {1, 1, 1, 150, 1}) {
        const std::vector<TokenId> ids = Ids(count, static_cast<unsigned>(whole.length()));
        ASSERT_TRUE(SameBits(LogitsAfter(whole, ids), LogitsAfter(again, ids))) << whole.length();
      }
      ASSERT_TRUE(whole.Truncate(40).ok() && again.Truncate(40).ok());
      ASSERT_TRUE(SameBits(LogitsAfter(whole, Ids(3)), LogitsAfter(again, Ids(3))));
    }
}

// Greedy and random texts: the ids of two halves are those of the whole, on the last token of which
// nothing is evaluated twice.
TEST(SessionState, HalvesOfATextMakeTheWhole) {
  const TempDir folder;
  const Model model = Bundled();
  for (const auto& [name, options] : Settings())
    for (const float temperature : {0.0F, 1.3F}) {
      SCOPED_TRACE(::testing::Message() << name << " at " << temperature);
      GenerateOptions generate;
      generate.max_tokens = 60;
      generate.sampling.temperature = temperature;
      generate.sampling.seed = 12;
      Session whole = *Session::Create(model, options);
      const auto expected = whole.Generate(Ids(120), generate);
      ASSERT_TRUE(expected.ok() && expected->ids.size() == 60U);

      Session first = *Session::Create(model, options);
      generate.max_tokens = 25;
      auto part = first.Generate(Ids(120), generate);
      ASSERT_TRUE(part.ok());
      std::vector<TokenId> ids = part->ids;
      ASSERT_EQ(first.length(), 120 + 24) << "the last id is drawn, not evaluated";
      LogitsAfter(first, {&ids.back(), 1});
      ASSERT_TRUE(first.Save(folder.File("s")).ok());

      Session second = *Session::Create(model, options);
      ASSERT_TRUE(second.Restore(folder.File("s")).ok());
      EXPECT_EQ(second.length(), 145);
      generate.max_tokens = 35;
      generate.sampling.seed = second.next_seed();
      const std::vector<TokenId> prompt(second.tokens().begin(), second.tokens().end());
      part = second.Generate(prompt, generate);
      ASSERT_TRUE(part.ok()) << part.status().message();
      EXPECT_EQ(part->timings.prefill_tokens, 0);
      ids.insert(ids.end(), part->ids.begin(), part->ids.end());
      EXPECT_EQ(ids, expected->ids);
    }
}

TEST(SessionState, LogitsAreThereOnlyWhileTheyAreRight) {
  const TempDir folder;
  const Model model = Bundled();
  Session session = *Session::Create(model, {});
  EXPECT_THAT(session.logits(), IsEmpty());
  const std::vector<float> logits = LogitsAfter(session, Ids(20));
  EXPECT_TRUE(SameBits(session.logits(), logits));
  std::vector<double> nll(4);
  ASSERT_TRUE(session.Score(Ids(5), nll).ok());
  EXPECT_THAT(session.logits(), IsEmpty());
  ASSERT_TRUE(session.Save(folder.File("s")).ok());
  Session other = *Session::Create(model, {});
  ASSERT_TRUE(other.Restore(folder.File("s")).ok());
  EXPECT_THAT(other.logits(), IsEmpty());
  ASSERT_TRUE(session.Truncate(20).ok());
  EXPECT_THAT(session.logits(), IsEmpty()) << "of 20 tokens, but computed before others came";
  LogitsAfter(session, Ids(1));
  EXPECT_EQ(session.logits().size(), static_cast<std::size_t>(model.config().vocab_size));
  ASSERT_TRUE(session.Truncate(20).ok());
  EXPECT_THAT(session.logits(), IsEmpty());
}

// A sequence may continue after the tokens of a model's own prompt; a prompt that is held as a
// whole is not evaluated again.
TEST(SessionState, APromptThatIsHeldIsNotEvaluatedAgain) {
  const Model model = Bundled();
  Session session = *Session::Create(model, {});
  GenerateOptions options;
  options.max_tokens = 0;
  options.top_logits = 3;
  const auto cold = session.Generate(Ids(30), options);
  const auto warm = session.Generate(Ids(30), options);
  ASSERT_TRUE(cold.ok() && warm.ok());
  EXPECT_EQ(cold->timings.prefill_tokens, 30);
  EXPECT_EQ(warm->timings.prefill_tokens, 0);
  EXPECT_EQ(warm->top_logits, cold->top_logits);
}

TEST(SessionState, ForeignFilesLeaveTheSessionAsItIs) {
  const TempDir folder;
  const Model model = LoadTiny(folder, 3), other = LoadTiny(folder, 4);
  SessionOptions options;
  options.context = 100;
  Session session = *Session::Create(model, options);
  LogitsAfter(session, Ids(60));
  ASSERT_TRUE(session.Save(folder.File("s")).ok());

  const auto refused = [&](Session& into) {
    const std::vector<TokenId> before(into.tokens().begin(), into.tokens().end());
    const std::vector<float> logits(into.logits().begin(), into.logits().end());
    const Status status = into.Restore(folder.File("s"));
    EXPECT_FALSE(status.ok());
    EXPECT_EQ(std::vector(into.tokens().begin(), into.tokens().end()), before);
    EXPECT_TRUE(SameBits(into.logits(), logits));
    return status.message();
  };
  Session stranger = *Session::Create(other, options);
  LogitsAfter(stranger, Ids(7));
  EXPECT_THAT(refused(stranger), HasSubstr("fingerprint = \"llama "));
  options.k_type = KvType::kInt8;
  Session types = *Session::Create(model, options);
  LogitsAfter(types, Ids(7));
  EXPECT_THAT(refused(types), HasSubstr("k_type, v_type = f16, f16; the cache's are int8, f16"));
  EXPECT_TRUE(types.Restore(folder.File("s"), {.convert_types = true}).ok());
  EXPECT_EQ(types.length(), 60);
  options.k_type = KvType::kF16;
  options.kv_policy = "window(30)";
  Session policies = *Session::Create(model, options);
  LogitsAfter(policies, Ids(7));
  EXPECT_THAT(refused(policies), HasSubstr("policy = full; the cache's is window(30)"));
  options.kv_policy = "";
  options.context = 59;
  Session shorter = *Session::Create(model, options);
  LogitsAfter(shorter, Ids(7));
  EXPECT_THAT(refused(shorter), HasSubstr("has 60 tokens; max_tokens = 59"));
  EXPECT_THAT(session.Restore(folder.File("none")).message(), HasSubstr("cannot open"));
}

// User data that say something else than a session does.
TEST(SessionState, DamagedStatesAreRefused) {
  const TempDir folder;
  const Model model = LoadTiny(folder, 3);
  Session session = *Session::Create(model, {});
  LogitsAfter(session, Ids(10));
  ASSERT_TRUE(session.Save(folder.File("s")).ok());
  std::ifstream in(folder.File("s"), std::ios::binary);
  const std::string file{std::istreambuf_iterator<char>(in), {}};
  std::int64_t fingerprint_bytes = 0;
  std::memcpy(&fingerprint_bytes, file.data() + 32, 8);
  const std::size_t state = 32 + 8 + static_cast<std::size_t>(fingerprint_bytes) + 8;
  const struct {
    std::size_t offset;
    std::int64_t value;
    const char* message;
  } cases[] = {
      {0, 11, "is no session's: its user data have another form"},
      {0, 9, "is no session's"},
      {0, -1, "is no session's"},
      {8, std::int64_t{259} << 32 | 1, "ids[1] = 259; expected 0 to 258"},
      {8, -1, "ids[0] = -1; expected 0 to 258"},
      {8 + 40, 11, "has 10 token ids, 11 of them of a prompt; its sequence has 10"},
      {8 + 40 + 16, 258, "is no session's"},
      {8 + 40 + 16, std::int64_t{1} << 60, "is no session's"},
  };
  for (const auto& one : cases) {
    std::string bytes = file;
    std::memcpy(bytes.data() + state + one.offset, &one.value, 8);
    testing::Resign(bytes);
    folder.Write("s", bytes);
    const Status status = session.Restore(folder.File("s"));
    EXPECT_EQ(status.code(), StatusCode::kIoError);
    EXPECT_THAT(status.message(), HasSubstr(one.message));
    EXPECT_EQ(session.length(), 10);
  }
}

// A prompt whose beginning is held, from a prompt, gives the bits of a cold run: what is left to be
// evaluated goes the way of many rows as the whole did.
TEST(SessionState, ReusedBeginningsGiveTheBitsOfAColdRun) {
  const Model model = Bundled();
  for (const auto& [name, options] : Settings()) {
    if (options.kv_policy.starts_with("budget")) continue;
    for (const MathMode math : {MathMode::kFast, MathMode::kExact}) {
      SessionOptions one = options;
      one.math = math;
      Session warm = *Session::Create(model, one);
      GenerateOptions generate;
      generate.max_tokens = 12;
      for (const int length : {200, 203, 130, 131, 108, 300, 20, 9}) {
        // 120 tokens of each are the same.
        std::vector<TokenId> prompt = Ids(length);
        for (std::size_t i = 120; i < prompt.size(); ++i)
          prompt[i] = 3 + (prompt[i] + length) % 200;
        generate.top_logits = 5;
        const auto reused = warm.Generate(prompt, generate);
        Session cold = *Session::Create(model, one);
        const auto expected = cold.Generate(prompt, generate);
        ASSERT_TRUE(reused.ok() && expected.ok());
        EXPECT_EQ(reused->top_logits, expected->top_logits) << name << " " << length;
        EXPECT_EQ(reused->ids, expected->ids) << name << " " << length;
        if (length != 200 && name == std::string("f16")) {
          EXPECT_LT(reused->timings.prefill_tokens, length == 9 ? 10 : length - 10);
        }
      }
    }
  }
}

// Prompts that take turns: what each begins with is reused after others came between, and gives the
// bits of a cold run.
TEST(SessionState, PromptsThatTakeTurnsReuseTheirBeginnings) {
  const Model model = Bundled();
  for (const auto& [name, options] : Settings()) {
    const bool budget = options.kv_policy.starts_with("budget");
    SessionOptions keeping = options;
    keeping.prefix_bytes = 1 << 20;
    Session warm = *Session::Create(model, keeping);
    GenerateOptions generate;
    generate.max_tokens = 8;
    generate.top_logits = 5;
    std::int64_t evaluated = 0;
    for (int turn = 0; turn < 9; ++turn) {
      std::vector<TokenId> prompt = Ids(140, static_cast<unsigned>(turn % 3));
      const std::vector<TokenId> end = Ids(20 + 9 * turn, static_cast<unsigned>(50 + turn));
      prompt.insert(prompt.end(), end.begin(), end.end());
      const auto reused = warm.Generate(prompt, generate);
      Session cold = *Session::Create(model, options);
      const auto expected = cold.Generate(prompt, generate);
      ASSERT_TRUE(reused.ok()) << reused.status().message();
      if (!budget) {
        EXPECT_EQ(reused->top_logits, expected->top_logits) << name << " " << turn;
        EXPECT_EQ(reused->ids, expected->ids) << name << " " << turn;
      }
      if (turn >= 3) evaluated += std::ssize(prompt) - reused->timings.prefill_tokens;
      const KvUsage usage = warm.cache().usage();
      EXPECT_LE(usage.used_bytes + usage.table_bytes, usage.capacity_bytes);
    }
    if (options.kv_policy.empty()) {
      EXPECT_EQ(evaluated, 6 * 128) << name << ": two pages of 64 tokens of each";
    }
  }
}

// With hardly any room beside, nothing fails and nothing changes.
TEST(SessionState, PrefixesStandBackForTheText) {
  const Model model = Bundled();
  SessionOptions options;
  options.context = 300;
  options.prefix_bytes = 1;
  Session session = *Session::Create(model, options);
  GenerateOptions generate;
  generate.max_tokens = 200;
  for (const unsigned seed : {1U, 2U, 1U}) {
    const auto result = session.Generate(Ids(290, seed), generate);
    ASSERT_TRUE(result.ok()) << result.status().message();
  }
  options.prefix_bytes = -1;
  EXPECT_THAT(Session::Create(model, options).status().message(),
              HasSubstr("prefix_bytes = -1; expected 0 to"));
}

}  // namespace
}  // namespace manyhead
