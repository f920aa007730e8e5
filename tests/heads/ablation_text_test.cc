#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "manyhead/ablation.h"

namespace manyhead {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// Two layers of 4 heads that share 2 KV heads, and one of 2 heads with one each.
ModelConfig Config() {
  ModelConfig config;
  config.layers = {{.num_heads = 4, .num_kv_heads = 2, .head_dim = 8, .head_dim_v = 8},
                   {.num_heads = 4, .num_kv_heads = 2, .head_dim = 8, .head_dim_v = 8},
                   {.num_heads = 2, .num_kv_heads = 2, .head_dim = 8, .head_dim_v = 8}};
  return config;
}

HeadEdit Scale(std::int64_t layer, std::int64_t head, float scale = 0) {
  return {{layer, head}, HeadEditKind::kScale, scale};
}

HeadEdit MeanOf(std::int64_t layer, std::int64_t head) {
  return {{layer, head}, HeadEditKind::kMean, 0};
}

std::vector<HeadEdit> Edits(const char* text) {
  const Result<Ablation> ablation = ParseAblation(text, Config());
  EXPECT_TRUE(ablation.ok()) << ablation.status().message();
  return ablation.ok() ? ablation->edits : std::vector<HeadEdit>();
}

std::string Refusal(const std::string& text) {
  const Result<Ablation> ablation = ParseAblation(text, Config());
  EXPECT_EQ(ablation.status().code(), StatusCode::kInvalidArgument) << text;
  return ablation.status().message();
}

TEST(AblationText, TheFormOfTheCommandLine) {
  EXPECT_THAT(Edits("1.3"), ElementsAre(Scale(1, 3)));
  EXPECT_THAT(Edits(" 0.1,2.0=-0.5\n"), ElementsAre(Scale(0, 1), Scale(2, 0, -0.5F)));
  EXPECT_THAT(Edits("0.1=zero,0.2=1e-2"), ElementsAre(Scale(0, 1), Scale(0, 2, 0.01F)));
  EXPECT_THAT(Edits("0-1.2-3=mean"),
              ElementsAre(MeanOf(0, 2), MeanOf(0, 3), MeanOf(1, 2), MeanOf(1, 3)));
  EXPECT_THAT(Edits("2.*=0.5"), ElementsAre(Scale(2, 0, 0.5F), Scale(2, 1, 0.5F)));
  EXPECT_THAT(Edits("*.1=2"), ElementsAre(Scale(0, 1, 2), Scale(1, 1, 2), Scale(2, 1, 2)));
  EXPECT_THAT(Edits("1.k1"), ElementsAre(Scale(1, 2), Scale(1, 3)));
  EXPECT_THAT(Edits("2.k0-1=mean"), ElementsAre(MeanOf(2, 0), MeanOf(2, 1)));
}

TEST(AblationText, KeepSwitchesOffWhatNoItemNames) {
  EXPECT_THAT(Edits("1.2=keep"), ElementsAre(Scale(1, 0), Scale(1, 1), Scale(1, 3)));
  EXPECT_THAT(Edits("0.1=0.5,0.k1=keep"), ElementsAre(Scale(0, 1, 0.5F), Scale(0, 0)));
  EXPECT_THAT(Edits("1.*=keep"), IsEmpty());
}

TEST(AblationText, Json) {
  EXPECT_THAT(Edits(R"([{"layers": [0, "1-2"], "heads": [1], "edit": 0.5}])"),
              ElementsAre(Scale(0, 1, 0.5F), Scale(1, 1, 0.5F), Scale(2, 1, 0.5F)));
  EXPECT_THAT(Edits(R"([{"layers": [1], "kv_heads": [0]}])"),
              ElementsAre(Scale(1, 0), Scale(1, 1)));
  EXPECT_THAT(Edits(R"([{"layers": [2], "edit": "mean"}])"),
              ElementsAre(MeanOf(2, 0), MeanOf(2, 1)));
  EXPECT_THAT(Edits(R"([{"layers": [2], "heads": ["0"], "edit": "keep"}])"),
              ElementsAre(Scale(2, 1)));
  EXPECT_THAT(Edits("[]"), IsEmpty());
}

TEST(AblationText, WhatIsWrittenReadsBack) {
  for (const char* text : {"1.3", "0.*=0.1,1.0,2.1=mean", "2.0=keep,0.1=-3.25e-7"}) {
    Ablation ablation;
    ablation.edits = Edits(text);
    const std::string json = FormatAblation(ablation);
    EXPECT_EQ(Edits(json.c_str()), ablation.edits) << json;
  }
}

TEST(AblationText, RefusalsNameTheItemAndTheRange) {
  EXPECT_THAT(Refusal(""), HasSubstr("the text is empty; expected edits such as 3.1,4.*=0.5"));
  EXPECT_THAT(Refusal("3.0"), HasSubstr("item \"3.0\": layer = 3; expected 0..2"));
  EXPECT_THAT(Refusal("1-4.0"), HasSubstr("layer = 4; expected 0..2"));
  EXPECT_THAT(Refusal("*.2"), HasSubstr("head = 2 of layer 2; expected 0..1"));
  EXPECT_THAT(Refusal("0.k2"), HasSubstr("KV head = 2 of layer 0; expected 0..1"));
  EXPECT_THAT(Refusal("0.1,0.*=0.5"), HasSubstr("head 0.1 is named by two items; expected one"));
  EXPECT_THAT(Refusal("0.1=inf"),
              HasSubstr("expected a finite number, zero, mean or keep after ="));
  EXPECT_THAT(Refusal("0.1=1e39"), HasSubstr("expected a finite number"));
  EXPECT_THAT(Refusal("0.1=0.5x"), HasSubstr("expected a finite number"));
  EXPECT_THAT(Refusal("7"), HasSubstr("item \"7\"; expected LAYER.HEAD"));
  EXPECT_THAT(Refusal("0.1,"), HasSubstr("item \"\"; expected LAYER.HEAD"));
  EXPECT_THAT(Refusal("-1.0"), HasSubstr("expected a layer, a range"));
  EXPECT_THAT(Refusal("0.3-1"), HasSubstr("expected a head, a range"));
  EXPECT_THAT(Refusal("0.99999999999999999999"), HasSubstr("expected a head, a range"));
  EXPECT_THAT(Refusal("1.*"),
              HasSubstr("layer 1 would have 4 of its 4 heads off; expected at most 3"));
  EXPECT_THAT(Refusal("{\"a\": 1}"), HasSubstr("expected a list of edits"));
  EXPECT_THAT(Refusal("[1"), HasSubstr("the text is no valid JSON"));
  constexpr std::size_t kDeep = 1 << 20;  // a recursive walk would run out of stack
  EXPECT_THAT(Refusal("[{\"layers\": " + std::string(kDeep, '[') + std::string(kDeep, ']') + "}]"),
              HasSubstr("the text is nested more than 64 deep"));
  EXPECT_THAT(Refusal(R"([{"layers": [0], "layers": [1]}])"),
              HasSubstr("the text has the key \"layers\" twice"));
  EXPECT_LT(Refusal(std::string(40000, 'x')).size(), 400U);
  EXPECT_THAT(Refusal("[3]"), HasSubstr("edits[0] = 3; expected an object"));
  EXPECT_THAT(Refusal(R"([{"layer": [0]}])"), HasSubstr("edits[0] has the key \"layer\""));
  EXPECT_THAT(Refusal(R"([{"heads": [0], "kv_heads": [0]}])"), HasSubstr("expected one of them"));
  EXPECT_THAT(Refusal(R"([{"layers": 0}])"), HasSubstr("edits[0].layers = 0; expected a list"));
  EXPECT_THAT(Refusal(R"([{"layers": ["x"]}])"), HasSubstr("edits[0].layers has \"x\"; expected"));
  EXPECT_THAT(Refusal(R"([{"layers": [0.5]}])"), HasSubstr("edits[0].layers has 0.5; expected"));
  EXPECT_THAT(Refusal(R"([{"edit": [0]}])"), HasSubstr("edits[0].edit = [0]; expected"));
}

TEST(Ablation, KeepOnly) {
  const std::vector<HeadId> heads = {{1, 3}, {2, 0}, {1, 0}};
  const Result<Ablation> ablation = KeepOnly(Config(), heads);
  ASSERT_TRUE(ablation.ok());
  EXPECT_THAT(ablation->edits, ElementsAre(Scale(1, 1), Scale(1, 2), Scale(2, 1)));
  const std::vector<HeadId> wrong = {{2, 2}};
  EXPECT_THAT(KeepOnly(Config(), wrong).status().message(),
              HasSubstr("KeepOnly: head = 2 of layer 2; expected 0..1"));
}

TEST(Ablation, ChecksNameTheEdit) {
  const auto refusal = [](const Ablation& ablation) {
    const Status status = CheckAblation(Config(), ablation);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    return status.message();
  };
  EXPECT_TRUE(CheckAblation(Config(), {{Scale(0, 0), Scale(0, 1), Scale(0, 2)}}).ok());
  EXPECT_THAT(refusal({{Scale(-1, 0)}}), HasSubstr("layer = -1; expected 0..2"));
  EXPECT_THAT(refusal({{Scale(0, 4)}}), HasSubstr("head = 4 of layer 0; expected 0..3"));
  EXPECT_THAT(refusal({{Scale(0, 1), Scale(0, 1, 1)}}),
              HasSubstr("head 0.1 is edited twice; expected once"));
  EXPECT_THAT(refusal({{Scale(0, 1, std::numeric_limits<float>::quiet_NaN())}}),
              HasSubstr("scale = nan of head 0.1; expected a finite number"));
  EXPECT_THAT(refusal({{Scale(2, 0), Scale(2, 1)}}),
              HasSubstr("layer 2 would have 2 of its 2 heads off; expected at most 1"));
  EXPECT_THAT(refusal({{MeanOf(1, 0)}}), HasSubstr("means[1] has 0 numbers, expected 32"));
  EXPECT_THAT(refusal({{MeanOf(1, 0)}, {{}, std::vector<float>(31)}}),
              HasSubstr("means[1] has 31 numbers, expected 32"));
  EXPECT_TRUE(CheckAblation(Config(), {{MeanOf(1, 0)}, {{}, std::vector<float>(32)}}).ok());
  EXPECT_THAT(refusal({{{{0, 0}, static_cast<HeadEditKind>(2), 0}}}), HasSubstr("kind = 2"));
}

// A head that gives its mean needs no keys, one that is scaled does.
TEST(Ablation, KvHeadsThatNobodyReads) {
  const Ablation ablation = {
      {Scale(0, 0), Scale(0, 1), Scale(1, 2), MeanOf(1, 3), Scale(2, 0, 0.5F)}};
  const std::vector<std::vector<bool>> unread = UnreadKvHeads(Config(), ablation);
  EXPECT_THAT(unread, ElementsAre(ElementsAre(true, false), ElementsAre(false, true),
                                  ElementsAre(false, false)));
  EXPECT_THAT(
      UnreadKvHeads(Config(), {{Scale(0, 0), Scale(1, 3)}}),
      ElementsAre(ElementsAre(false, false), ElementsAre(false, false), ElementsAre(false, false)));
}

}  // namespace
}  // namespace manyhead
