#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <string>
#include <vector>

#include "manyhead/ablation.h"
#include "manyhead/session.h"
#include "tests/heads/ablation_testing.h"

/// Head outputs that are captured in one run and patched into another.

namespace manyhead {
namespace {

using testing::Ablated;
using testing::Distance;
using testing::Exact;
using ::testing::HasSubstr;
using testing::LogitsAfter;
using testing::Parse;
using testing::SomeIds;
using testing::TempDir;

constexpr std::int64_t kLayers = 3, kHeads = 6;

class Patched : public ::testing::Test {
 protected:
  static Model Load() {
    testing::TinyModel tiny;
    tiny.layers = kLayers;
    tiny.num_heads = kHeads;
    tiny.num_kv_heads = 3;
    tiny.MakeWeights(21);
    return testing::LoadTiny(tiny);
  }

  std::int64_t width() const { return model_.config().layers[0].head_dim_v; }

  /// Appends `ids` and returns the output of every head at every position, captured on the way.
  std::map<HeadId, std::vector<float>> Outputs(Session& session, std::span<const TokenId> ids) {
    std::map<HeadId, std::vector<float>> outputs;
    const CaptureOptions capture{.weights = false, .on_row = [&](const CapturedRow& row) {
                                   EXPECT_TRUE(row.weights.empty());
                                   std::vector<float>& all = outputs[row.head];
                                   all.insert(all.end(), row.output.begin(), row.output.end());
                                 }};
    EXPECT_TRUE(session.SetCapture(&capture).ok());
    LogitsAfter(session, ids);
    EXPECT_TRUE(session.SetCapture(nullptr).ok());
    return outputs;
  }

  /// A patch of `head` from position `position` on.
  static Ablation Only(HeadId head, std::int64_t position, std::vector<float> values) {
    Ablation ablation;
    ablation.patches = {{head, position, std::move(values)}};
    return ablation;
  }

  std::string Refusal(const Ablation& ablation) {
    Session session = *Session::Create(model_, Exact());
    LogitsAfter(session, SomeIds(20));
    const std::vector<float> before(session.logits().begin(), session.logits().end());
    const Status status = session.SetAblation(ablation);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(std::vector<float>(session.logits().begin(), session.logits().end()), before);
    return status.message();
  }

  Model model_ = Load();
};

TEST_F(Patched, ItsOwnOutputsChangeNothing) {
  Session plain = *Session::Create(model_, Exact());
  const std::map<HeadId, std::vector<float>> outputs = Outputs(plain, SomeIds(90));
  ASSERT_EQ(outputs.size(), kLayers * kHeads);
  Ablation all;
  for (const auto& [head, values] : outputs) all.patches.push_back({head, 0, values});
  Session session = Ablated(model_, Exact(), all);
  EXPECT_EQ(LogitsAfter(session, SomeIds(90)),
            std::vector<float>(plain.logits().begin(), plain.logits().end()));
}

// A patch of zeros is a head off, one of means the edit "mean": both have tests of their own.
TEST_F(Patched, ValuesAtEveryPositionAreTheSameAsAnEdit) {
  Session off = Ablated(model_, Exact(), Parse(model_, "1.2"));
  const std::vector<float> zeros(static_cast<std::size_t>(70 * width()), 0.0F);
  Session session = Ablated(model_, Exact(), Only({1, 2}, 0, zeros));
  EXPECT_EQ(LogitsAfter(session, SomeIds(70)), LogitsAfter(off, SomeIds(70)));

  HeadTextOptions options;
  options.math = MathMode::kExact;
  Ablation mean = Parse(model_, "2.5=mean");
  mean.means = *MeasureHeadMeans(model_, SomeIds(50, 77), options);
  const auto begin = mean.means[2].begin() + 5 * width();
  std::vector<float> rows;
  for (int i = 0; i < 70; ++i) rows.insert(rows.end(), begin, begin + width());
  Session averaged = Ablated(model_, Exact(), mean);
  Session patched = Ablated(model_, Exact(), Only({2, 5}, 0, rows));
  EXPECT_EQ(LogitsAfter(patched, SomeIds(70)), LogitsAfter(averaged, SomeIds(70)));
}

TEST_F(Patched, OnlyItsPositionsAndLaterTokensChange) {
  constexpr std::int64_t kAt = 43, kTokens = 60;
  const std::vector<float> values(static_cast<std::size_t>(2 * width()), 0.7F);
  Session plain = *Session::Create(model_, Exact());
  const std::int64_t vocab = model_.config().vocab_size;
  std::vector<float> before(static_cast<std::size_t>(kTokens * vocab)), after(before);
  ASSERT_TRUE(plain.AppendLogits(SomeIds(kTokens), before).ok());
  for (const std::int64_t chunk : {7, 40, 100}) {
    SessionOptions options = Exact();
    options.chunk = chunk;
    Session session = Ablated(model_, options, Only({0, 3}, kAt, values));
    std::fill(after.begin(), after.end(), std::numeric_limits<float>::quiet_NaN());
    ASSERT_TRUE(session.AppendLogits(SomeIds(kTokens), after).ok());
    for (std::int64_t t = 0; t < kTokens; ++t) {
      const bool same = std::equal(before.begin() + t * vocab, before.begin() + (t + 1) * vocab,
                                   after.begin() + t * vocab);
      EXPECT_EQ(same, t < kAt) << "token " << t << ", chunk " << chunk;
    }
  }
  // The same positions, decoded one by one, have the patch's values and no others.
  Session session = Ablated(model_, Exact(), Only({0, 3}, kAt, values));
  LogitsAfter(session, SomeIds(kAt));
  for (std::int64_t t = kAt; t < kAt + 4; ++t) {
    const std::vector<float> output = Outputs(session, SomeIds(1)).at({0, 3});
    EXPECT_EQ(output == std::vector<float>(static_cast<std::size_t>(width()), 0.7F), t < kAt + 2);
  }
}

TEST_F(Patched, AnEditOfThePatchedHeadGivesWay) {
  const std::vector<float> values(static_cast<std::size_t>(30 * width()), 0.25F);
  Ablation both = Only({1, 0}, 0, values);
  both.edits = Parse(model_, "1.k0").edits;  // no query reads the KV head, which is not stored
  Session session = Ablated(model_, Exact(), both);
  const std::map<HeadId, std::vector<float>> outputs = Outputs(session, SomeIds(40));
  const std::size_t patched = values.size();
  EXPECT_EQ(std::vector<float>(outputs.at({1, 0}).begin(), outputs.at({1, 0}).begin() + patched),
            values);
  EXPECT_THAT(std::vector<float>(outputs.at({1, 0}).begin() + patched, outputs.at({1, 0}).end()),
              ::testing::Each(0.0F));
  EXPECT_THAT(outputs.at({1, 1}), ::testing::Each(0.0F));
  EXPECT_EQ(session.cache().usage().head_bytes[1][0], 0);
}

TEST_F(Patched, MeasuredPatchesAreWhatASessionCaptures) {
  SessionOptions options = Exact();
  options.k_type = options.v_type = KvType::kF16;
  Session source = *Session::Create(model_, options);
  const std::map<HeadId, std::vector<float>> outputs = Outputs(source, SomeIds(64, 50));
  HeadTextOptions text;
  text.math = MathMode::kExact;
  const auto sources = ParsePatchSources("0.1@3-8:20,2.k2@63,1.4", model_.config());
  ASSERT_TRUE(sources.ok()) << sources.status().message();
  const auto patches = MeasurePatches(model_, SomeIds(64, 50), *sources, text);
  ASSERT_TRUE(patches.ok()) << patches.status().message();
  ASSERT_EQ(patches->size(), 4U);
  const auto rows = [&](HeadId head, std::int64_t first, std::int64_t count) {
    const auto begin = outputs.at(head).begin() + first * width();
    return std::vector<float>(begin, begin + count * width());
  };
  EXPECT_EQ((*patches)[0], (HeadPatch{{0, 1}, 20, rows({0, 1}, 3, 6)}));
  EXPECT_EQ((*patches)[1], (HeadPatch{{1, 4}, 0, rows({1, 4}, 0, 64)}));
  EXPECT_EQ((*patches)[2], (HeadPatch{{2, 4}, 63, rows({2, 4}, 63, 1)}));
  EXPECT_EQ((*patches)[3], (HeadPatch{{2, 5}, 63, rows({2, 5}, 63, 1)}));
  EXPECT_THAT(MeasurePatches(model_, SomeIds(60), *sources, text).status().message(),
              HasSubstr("positions 63..63 of head 2.4; expected some of 0..59"));
}

TEST_F(Patched, SourcesAreParsedOrRefused) {
  const auto parse = [&](const char* text) { return ParsePatchSources(text, model_.config()); };
  const std::vector<PatchSource> expected = {{{1, 0}, 7, 7, -1}, {{1, 1}, 7, 7, -1}};
  EXPECT_EQ(*parse("1.0-1@7"), expected);
  EXPECT_EQ(parse("1.*")->size(), kHeads);
  const std::pair<const char*, const char*> kBad[] = {
      {"", "item \"\"; expected LAYER.HEAD"},
      {"1.0@", "item \"1.0@\"; expected a position after @"},
      {"1.0@5-3", "expected a position after @"},
      {"1.0@5:", "expected a position after @"},
      {"1.0@5:-1", "expected a position after @"},
      {"3.0", "ParsePatchSources: item \"3.0\": layer = 3; expected 0..2"},
      {"0.6@1", "head = 6 of layer 0; expected 0..5"},
      {"0.1=0.5", "item \"0.1=0.5\"; expected no =EDIT"},
  };
  for (const auto& [text, message] : kBad)
    EXPECT_THAT(parse(text).status().message(), HasSubstr(message)) << text;
}

TEST_F(Patched, BadPatchesAreRefusedBeforeAnythingChanges) {
  const auto size = static_cast<std::size_t>(width());
  const std::vector<float> row(size, 1.0F);
  EXPECT_THAT(Refusal(Only({3, 0}, 0, row)), HasSubstr("patch: layer = 3; expected 0..2"));
  EXPECT_THAT(Refusal(Only({0, -1}, 0, row)), HasSubstr("head = -1 of layer 0; expected 0..5"));
  EXPECT_THAT(Refusal(Only({0, 1}, -1, row)), HasSubstr("begins at position -1; expected 0.."));
  EXPECT_THAT(Refusal(Only({0, 1}, INT64_MAX, row)), HasSubstr("begins at position 9223372036"));
  EXPECT_THAT(Refusal(Only({0, 1}, 0, {})), HasSubstr("has 0 values; expected a multiple of"));
  EXPECT_THAT(Refusal(Only({0, 1}, 0, std::vector<float>(size + 1))),
              HasSubstr("head_dim_v = " + std::to_string(width())));
  std::vector<float> bad = row;
  bad.back() = std::numeric_limits<float>::infinity();
  EXPECT_THAT(Refusal(Only({0, 1}, 0, bad)), HasSubstr("= inf; expected a finite number"));
  Ablation twice = Only({0, 1}, 4, row);
  twice.patches.push_back({{0, 1}, 3, std::vector<float>(2 * size)});
  EXPECT_THAT(Refusal(twice), HasSubstr("head 0.1 is patched twice at position 4"));
}

TEST_F(Patched, FilesAndGenerationsKnowTheirPatches) {
  const TempDir folder;
  const std::vector<float> row(static_cast<std::size_t>(width()), 0.5F);
  const Ablation patch = Only({1, 1}, 30, row), other = Only({1, 1}, 31, row);
  SessionOptions options = Exact();
  options.prefix_bytes = 1 << 20;
  GenerateOptions generate;
  generate.max_tokens = 8;
  Session session = *Session::Create(model_, options);
  ASSERT_TRUE(session.Generate(SomeIds(120), generate).ok());  // keeps the prompt without the patch
  ASSERT_TRUE(session.SetAblation(patch, HeldTokens::kDrop).ok());
  Session fresh = Ablated(model_, Exact(), patch);
  EXPECT_EQ(session.Generate(SomeIds(120), generate)->ids,
            fresh.Generate(SomeIds(120), generate)->ids);
  ASSERT_TRUE(session.Save(folder.File("session")).ok());
  Session same = Ablated(model_, Exact(), patch);
  ASSERT_TRUE(same.Restore(folder.File("session")).ok());
  EXPECT_EQ(LogitsAfter(same, SomeIds(1)), LogitsAfter(session, SomeIds(1)));
  for (const Ablation& wrong : {other, Ablation()}) {
    Session refused = Ablated(model_, Exact(), wrong);
    EXPECT_EQ(refused.Restore(folder.File("session")).code(), StatusCode::kInvalidArgument);
  }
}

TEST_F(Patched, LossesAreThoseOfASession) {
  HeadTextOptions options;
  options.math = MathMode::kExact;
  const std::vector<float> rows(static_cast<std::size_t>(5 * width()), -0.4F);
  const auto loss = MeasureAblation(model_, SomeIds(50), Only({0, 0}, 10, rows), options);
  ASSERT_TRUE(loss.ok()) << loss.status().message();
  SessionOptions session_options = Exact();
  session_options.k_type = session_options.v_type = KvType::kF16;
  Session session = Ablated(model_, session_options, Only({0, 0}, 10, rows));
  std::vector<double> nll(49);
  ASSERT_TRUE(session.Score(SomeIds(50), nll).ok());
  double sum = 0;
  for (const double value : nll) sum += value;
  EXPECT_NEAR(loss->after, sum / 49, 1e-9);
  EXPECT_GT(std::abs(loss->after - loss->before), 1e-4);
}

}  // namespace
}  // namespace manyhead
