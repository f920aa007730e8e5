#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tools/manyhead/bench_plan.h"
#include "tools/manyhead/bench_profile.h"
#include "tools/manyhead/json.h"
#include "tools/manyhead/nll_windows.h"
#include "tools/manyhead/output.h"
#include "tools/manyhead/parse.h"
#include "tools/manyhead/throughput.h"

namespace manyhead::cli {
namespace {

TEST(JsonValue, PrintsWhatWasSetInThatOrder) {
  Json json;
  EXPECT_EQ(json.dump(), "null");
  json["z"] = 1;
  json["a"] = {{"text", "a\"b\n\xff"}, {"none", nullptr}, {"yes", true}};
  json["list"] = {-1, 0.5, 1.0, std::numeric_limits<std::uint64_t>::max()};
  json["pairs"] = std::vector<std::pair<int, float>>{{3, 0.25F}, {4, -1.5F}};
  json["z"] = "again";
  json["empty"] = {Json::array(), Json::object(), std::numeric_limits<double>::quiet_NaN()};
  EXPECT_EQ(
      json.dump(),
      "{\"z\":\"again\",\"a\":{\"text\":\"a\\\"b\\n\xEF\xBF\xBD\",\"none\":null,\"yes\":true},"
      R"("list":[-1,0.5,1.0,18446744073709551615],"pairs":[[3,0.25],[4,-1.5]],)"
      R"("empty":[[],{},null]})");
  EXPECT_EQ(Json({{"a", {1, 2}}, {"b", Json::array()}}).dump(2),
            "{\n  \"a\": [\n    1,\n    2\n  ],\n  \"b\": []\n}");
}

TEST(JsonValue, IsReadBackAsItWasWritten) {
  const Json json = {{"n", -7}, {"x", 1e300}, {"s", "\u00e4"}, {"l", {true, nullptr, {1}}}};
  for (const int indent : {-1, 0, 3}) {
    const std::optional<Json> read = ParseJson(json.dump(indent));
    ASSERT_TRUE(read.has_value());
    EXPECT_EQ(*read, json);
    EXPECT_EQ(read->dump(), json.dump());
  }
  EXPECT_NE(*ParseJson(R"({"n":-7})"), *ParseJson(R"({"m":-7})"));
  EXPECT_EQ(*ParseJson("1"), Json(1.0));
  EXPECT_NE(*ParseJson("1"), *ParseJson("true"));
  for (const char* text : {"", "{", "[1,]", "{\"a\":1,}", "1 2", "nan", "'a'"})
    EXPECT_FALSE(ParseJson(text).has_value()) << text;
  EXPECT_TRUE(ParseJson(std::string(64, '[') + std::string(64, ']')).has_value());
  EXPECT_FALSE(ParseJson(std::string(66, '[') + std::string(66, ']')).has_value());
  EXPECT_FALSE(ParseJson(std::string(1'000'000, '[')).has_value());
}

TEST(JsonValue, ReadsAsZeroOrEmptyWhereItIsOfAnotherKind) {
  const Json json = {{"number", 2}, {"real", 1e300}, {"text", "3"}, {"list", {5, 6}}};
  EXPECT_EQ(json["number"].get<double>(), 2);
  EXPECT_EQ(json["real"].get<std::int64_t>(), 0);
  EXPECT_EQ(json["text"].get<std::int64_t>(), 0);
  EXPECT_EQ(json["number"].get<std::string>(), "");
  EXPECT_FALSE(json["number"].get<bool>());
  EXPECT_TRUE(json["missing"]["deeper"].is_null());
  EXPECT_FALSE(json.contains("missing"));
  EXPECT_EQ(json["list"][1].get<int>(), 6);
  EXPECT_TRUE(json["list"][2].is_null());
  Json merged = json;
  merged.update({{"number", 4}, {"more", 1}});
  EXPECT_EQ(merged.size(), 5);
  EXPECT_EQ(merged["number"].get<int>(), 4);
}

TEST(Parse, NumbersAreReadWholeOrNotAtAll) {
  EXPECT_EQ(ParseInt("010"), 10);  // decimal, not octal
  EXPECT_EQ(ParseInt("-3"), -3);
  for (const char* text : {"", " 1", "1 ", "0x10", "1e3", "9223372036854775808", "1,2", "+1"})
    EXPECT_EQ(ParseInt(text), std::nullopt) << text;
  EXPECT_EQ(ParseUnsigned("18446744073709551615"), std::numeric_limits<std::uint64_t>::max());
  EXPECT_EQ(ParseUnsigned("-1"), std::nullopt);
  EXPECT_EQ(ParseReal("0.25"), 0.25);
  for (const char* text : {"", "nan", "inf", "1e999", "1.5x", "0,5"})
    EXPECT_EQ(ParseReal(text), std::nullopt) << text;
}

TEST(Parse, KvTypesAreOneNameOrTwo) {
  for (const KvType k : {KvType::kF32, KvType::kF16, KvType::kBf16, KvType::kInt8, KvType::kInt4}) {
    EXPECT_EQ(ParseKvTypes(KvTypeName(k))->v, k);
    for (const KvType v : {KvType::kF16, KvType::kInt4}) {
      const std::string both = std::string(KvTypeName(k)) + "/" + KvTypeName(v);
      EXPECT_EQ(ParseKvTypes(both)->k, k);
      EXPECT_EQ(ParseKvTypes(both)->v, v);
      EXPECT_EQ(FormatKvTypes({k, v}), k == v ? KvTypeName(k) : both);
    }
  }
  for (const char* text :
       {"", "/", "f16/", "/f16", "f16/f16/f16", "q8", "f16,int8", "f16/ int8", "INT8", "f16 "})
    EXPECT_FALSE(ParseKvTypes(text).has_value()) << text;
}

TEST(Parse, BudgetsAreSharesOrBytes) {
  EXPECT_EQ(ParseByteBudget("40%")->fraction, 0.4);
  EXPECT_EQ(ParseByteBudget("40%")->bytes, 0);
  EXPECT_EQ(ParseByteBudget("12.5%")->fraction, 0.125);
  EXPECT_EQ(ParseByteBudget("1234")->bytes, 1234);
  EXPECT_EQ(ParseByteBudget("1234")->fraction, 0);
  EXPECT_EQ(ParseByteBudget("12K")->bytes, 12 << 10);
  EXPECT_EQ(ParseByteBudget("12k")->bytes, 12 << 10);
  EXPECT_EQ(ParseByteBudget("12M")->bytes, 12 << 20);
  EXPECT_EQ(ParseByteBudget("8589934591G")->bytes, std::int64_t{8589934591} << 30);
  for (const char* text : {"", "%", "K", "0", "0%", "-1", "-1%", "nan%", "inf%", "1e999%", "1.5M",
                           "12MB", "8589934592G", "9223372036854775808", " 1", "1 %"})
    EXPECT_FALSE(ParseByteBudget(text).has_value()) << text;
}

TEST(Parse, SizesHavePowersOf1024) {
  EXPECT_EQ(ParseSize("0"), 0);
  EXPECT_EQ(ParseSize("1k"), 1024);
  EXPECT_EQ(ParseSize("4K"), 4096);
  EXPECT_EQ(ParseSize("2m"), 2 << 20);
  EXPECT_EQ(ParseSize("2M"), 2 << 20);
  EXPECT_EQ(ParseSize("3g"), std::int64_t{3} << 30);
  EXPECT_EQ(ParseSize("-1k"), -1024);
  for (const char* text : {"", "k", "1kk", "1 k", "1.5k", "1t", "9007199254740992k", "0x1k"})
    EXPECT_EQ(ParseSize(text), std::nullopt) << text;
}

TEST(Parse, RatesAreDecimal) {
  EXPECT_EQ(ParseRate("80G"), 80e9);
  EXPECT_EQ(ParseRate("21.5G"), 21.5e9);
  EXPECT_EQ(ParseRate("1k"), 1e3);
  EXPECT_EQ(ParseRate("2T"), 2e12);
  EXPECT_EQ(ParseRate("1000"), 1000.0);
  for (const char* text : {"", "G", "0", "-1G", "80g", "80GB", "nan", "inf", "1e308T"})
    EXPECT_EQ(ParseRate(text), std::nullopt) << text;
}

TEST(Parse, IdsComeAsJsonListOrSeparatedBySpaceOrComma) {
  const std::vector<TokenId> expected = {2, 818, 5279};
  for (const char* text : {"[2, 818, 5279]", "2,818,5279", "2 818\n5279\n", " [2,818,5279] \n"}) {
    const auto ids = ParseIds(text);
    ASSERT_TRUE(ids.ok()) << text;
    EXPECT_EQ(*ids, expected) << text;
  }
  EXPECT_TRUE(ParseIds("")->empty());
  EXPECT_EQ(ParseIds("1,x2").status().message(), "token ids: 'x2' is no token id");
  for (const char* text : {"-1", "2147483648", "1.5", "[1", "1]", "[[1]]", "null"})
    EXPECT_FALSE(ParseIds(text).ok()) << text;
}

TEST(Output, EscapeLineKeepsOneLineAndNoControlBytes) {
  EXPECT_EQ(EscapeLine("a\nb\t\x1b[0m\x7f"), "a\\nb\\t\\x1b[0m\\x7f");
  EXPECT_EQ(EscapeLine("naïve"), "naïve");
}

TEST(Output, NumbersAndTablesAreAligned) {
  EXPECT_EQ(FormatBytes(640), "640 B");
  EXPECT_EQ(FormatBytes(1536), "1.50 KiB");
  EXPECT_EQ(FormatCount(268098176), "268M");
  EXPECT_EQ(FormatCount(1543714304), "1.54B");
  EXPECT_EQ(FormatCount(2.5e12), "2.50T");
  EXPECT_EQ(FormatTable({{"a", "b"}, {"long", "12"}}, 1), "a      b\nlong  12\n");
}

// huggingface/text-generation-inference#849: tokens are counted, not requests.
TEST(Throughput, CountsEveryTokenOfEveryRequest) {
  const Throughput throughput = ComputeThroughput(2, 512, 2'000'000'000);
  EXPECT_DOUBLE_EQ(throughput.tokens_per_second, 512.0);
  EXPECT_DOUBLE_EQ(throughput.requests_per_second, 1.0);
  EXPECT_EQ(ComputeThroughput(1, 5, 0).tokens_per_second, 0);
}

TEST(Throughput, OnlyTheJobIsTimed) {
  std::int64_t now = 0;
  int jobs = 0;
  const auto prepare = [&] {
    now += 1'000'000;  // never counted
    return true;
  };
  const auto job = [&] {
    now += 10 * ++jobs;
    return jobs < 4;  // the fourth is stopped: its time means nothing
  };
  const auto samples = TimeRepetitions(
      9, [&] { return now; }, prepare, job);
  EXPECT_EQ(samples, (std::vector<std::int64_t>{10, 20, 30}));
  EXPECT_EQ(jobs, 4);
}

TEST(Throughput, DeviationIsThatOfASample) {
  const std::vector<double> samples = {1, 2, 3, 4};
  const MeanAndDeviation result = ComputeMeanAndDeviation(samples);
  EXPECT_DOUBLE_EQ(result.mean, 2.5);
  EXPECT_DOUBLE_EQ(result.deviation.value(), std::sqrt(5.0 / 3.0));
  EXPECT_EQ(ComputeMeanAndDeviation(std::span(samples).first(1)).deviation, std::nullopt);
}

TEST(Throughput, ChecksumIsFnv1aOfTheBytes) {
  EXPECT_EQ(ChecksumIds({}), "cbf29ce484222325");
  const std::vector<TokenId> ids = {0x64636261};  // the bytes "abcd"
  EXPECT_EQ(ChecksumIds(ids), "fc179f83ee0724dd");
}

TEST(Throughput, ArgMaxTakesTheLowestOfEqualsAndRefusesNan) {
  std::vector<float> logits(5000, -1.0F);
  logits[4097] = logits[2050] = logits[2049] = 7;
  EXPECT_EQ(ArgMax(logits), 2049);
  logits[10] = NAN;
  EXPECT_EQ(ArgMax(logits), -1);
  EXPECT_EQ(ArgMax(std::vector<float>(3, -INFINITY)), 0);
  EXPECT_EQ(ArgMax({}), -1);
}

TEST(NllWindows, EveryTokenButTheFirstIsScoredOnceWithHalfAContextBeforeIt) {
  for (const bool with_bos : {false, true}) {
    for (const std::int64_t context : {4, 5, 8, 33}) {
      for (const std::int64_t tokens : {2, 3, 4, 5, 8, 9, 31, 100}) {
        std::int64_t next = 1;
        for (const NllWindow& window : NllWindows(tokens, context, with_bos)) {
          EXPECT_EQ(window.first_scored, next);
          EXPECT_GE(window.begin, 0);
          EXPECT_LE(window.end - window.begin + (window.add_bos ? 1 : 0), context);
          EXPECT_EQ(window.add_bos, with_bos && window.begin > 0);
          if (window.begin > 0) {
            EXPECT_GE(next - window.begin, context / 2 - 1);
          }
          EXPECT_GT(window.end, next - 1);
          next = window.end;
        }
        EXPECT_EQ(next, tokens) << "context " << context;
      }
    }
  }
}

TEST(Bench, PlansPromptAndDecodeRowsAtEachDepth) {
  std::string names;
  for (const BenchTest& test : PlanTests({512, 0}, {64}, {0, 4096})) names += TestName(test) + ";";
  EXPECT_EQ(names, "pp512;tg64;pp512 @ d4096;tg64 @ d4096;");
  names.clear();
  for (const BenchTest& test : PlanTests({0}, {8}, {2}, {{512, 128}}))
    names += TestName(test) + ";";
  EXPECT_EQ(names, "tg8 @ d2;pp512+tg128 @ d2;");
}

TEST(Bench, CacheBytesReadStopAtTheWindow) {
  ModelConfig config;
  config.layers.resize(2);
  config.layers[0].num_kv_heads = 2;
  config.layers[1].num_kv_heads = 1;
  config.layers[1].window = 3;
  // Lengths 3, 4, 5, 6: 18 tokens x 2 heads x 10 bytes and 12 tokens x 1 head x 100 bytes.
  EXPECT_EQ(KvReadBytesPerToken(config, {{{10}, {10}}, {{100}}}, {0, 4, 2}),
            (18 * 20 + 12 * 100) / 4);
  EXPECT_EQ(KvReadBytesPerToken(config, {{{10}, {10}}, {{100}}}, {512, 0, 2}), 0);
  EXPECT_EQ(KvReadBytesPerToken(config, {{{10}, {10}}, {{100}}}, {2, 4, 0}),
            (18 * 20 + 12 * 100) / 4)
      << "after a prompt of the test itself";
  // Among the heads of the first layer, one keeps 4 tokens, the other none.
  EXPECT_EQ(KvReadBytesPerToken(config, {{{10, 4}, {10, 0}}, {{100}}}, {0, 4, 2}),
            (15 * 10 + 12 * 100) / 4);
}

TEST(Bench, ProfileRowsArePerStepAndAddUpToItsTime) {
  ProfileResult result;
  result.profile.steps = 4;
  result.profile[StepPhase::kDown] = {.seconds = 6, .waiting_seconds = 2, .bytes = 40, .flops = 8};
  result.profile[StepPhase::kHead] = {.seconds = 1, .waiting_seconds = 1, .bytes = 4, .flops = 80};
  result.sampling_seconds = 2;
  result.seconds = 16;
  const std::vector<ProfileRow> rows =
      ProfileRows(result, {.bytes_per_second = 10, .flops_per_second = 20});
  ASSERT_EQ(rows.size(), kNumStepPhases + 3);
  double percent = 0;
  for (const ProfileRow& row : rows) percent += row.percent;
  EXPECT_DOUBLE_EQ(percent, 100);
  const ProfileRow& down = rows[static_cast<std::size_t>(StepPhase::kDown)];
  EXPECT_EQ(down.name, "down");
  EXPECT_DOUBLE_EQ(down.seconds, 1.5);
  EXPECT_DOUBLE_EQ(down.percent, 37.5);
  EXPECT_DOUBLE_EQ(down.bound_seconds, 1) << "10 bytes at 10 a second, 2 flops at 20";
  EXPECT_DOUBLE_EQ(down.of_bound, 0.5);
  const ProfileRow& head = rows[static_cast<std::size_t>(StepPhase::kHead)];
  EXPECT_DOUBLE_EQ(head.bound_seconds, 1) << "1 byte, 20 flops";
  EXPECT_DOUBLE_EQ(head.of_bound, 2);
  const ProfileRow* const last = rows.data() + kNumStepPhases;
  EXPECT_EQ(last[0].name, "sampling");
  EXPECT_DOUBLE_EQ(last[0].seconds, 0.5);
  EXPECT_EQ(last[1].name, "barriers");
  EXPECT_DOUBLE_EQ(last[1].seconds, 0.75);
  EXPECT_EQ(last[2].name, "everything else");
  EXPECT_DOUBLE_EQ(last[2].seconds, 4 - 0.5 - 2 - 0.5);
}

}  // namespace
}  // namespace manyhead::cli
