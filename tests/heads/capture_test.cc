// Captured rows of attention weights against double precision, and which rows a session shows.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "manyhead/session.h"
#include "tests/heads/observed_decoder.h"
#include "tests/heads/tiny.h"
#include "tests/support/isas.h"

namespace manyhead::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Kept {
  HeadId head;
  std::int64_t position = 0;
  std::vector<float> weights;
  float lse = 0, sink_share = 0;
  std::vector<float> output{};

  friend bool operator==(const Kept&, const Kept&) = default;
};

std::function<void(const CapturedRow&)> Keep(std::vector<Kept>& rows) {
  return [&rows](const CapturedRow& row) {
    rows.push_back({row.head,
                    row.position,
                    {row.weights.begin(), row.weights.end()},
                    row.lse,
                    row.sink_share,
                    {row.output.begin(), row.output.end()}});
  };
}

double Sum(const std::vector<float>& weights) {
  double sum = 0;
  for (const float w : weights) sum += double{w};
  return sum;
}

/// Runs prefill chunks and decode steps, and compares each row with the reference.
void CheckRows(const Model& model, const ObservedDecoder::Options& options) {
  ObservedDecoder decoder(model, options);
  std::vector<Kept> rows;
  decoder.Capture({.on_row = Keep(rows)});
  std::int64_t position = 0;
  for (const int count : {60, 1, 33, 1, 1}) {
    rows.clear();
    decoder.Step(SomeIds(count, static_cast<unsigned>(position)));
    std::size_t next = 0;
    for (std::size_t l = 0; l < decoder.config().layers.size(); ++l) {
      const LayerConfig& layer = decoder.config().layers[l];
      const ObservedLayer& seen = decoder.last()[l];
      for (std::int64_t i = position; i < position + count; ++i)
        for (std::int64_t h = 0; h < layer.num_heads; ++h) {
          const Kept& row = rows.at(next++);
          ASSERT_EQ(row.head, (HeadId{static_cast<std::int64_t>(l), h}));
          ASSERT_EQ(row.position, i);
          ASSERT_EQ(row.lse, seen.lse[(i - position) * layer.num_heads + h]);
          ASSERT_EQ(row.sink_share, 0);
          ASSERT_TRUE(std::equal(
              row.output.begin(), row.output.end(),
              seen.attended.begin() + ((i - position) * layer.num_heads + h) * layer.head_dim_v));
          ASSERT_EQ(std::ssize(row.output), layer.head_dim_v);
          const std::vector<double> expected = decoder.Weights(row.head, i);
          ASSERT_EQ(row.weights.size(), expected.size());
          for (std::size_t s = 0; s < expected.size(); ++s)
            ASSERT_NEAR(row.weights[s], expected[s], 1e-6 + 1e-5 * expected[s])
                << "layer " << l << ", head " << h << ", position " << i << ", key " << s;
          ASSERT_NEAR(Sum(row.weights), row.lse == -HUGE_VALF ? 0 : 1, 1e-5);
          const std::vector<double> sum = decoder.Attended(row.head, expected);
          for (std::size_t d = 0; d < sum.size(); ++d)
            ASSERT_NEAR(
                seen.attended[((i - position) * layer.num_heads + h) * layer.head_dim_v + d],
                sum[d], 1e-4);
        }
    }
    EXPECT_EQ(next, rows.size());
    position += count;
  }
}

class HeadCaptureRows : public ::testing::TestWithParam<Isa> {};
INSTANTIATE_TEST_SUITE_P(EveryIsa, HeadCaptureRows, ::testing::ValuesIn(kEveryIsa), IsaTestName);

TEST_P(HeadCaptureRows, EqualDoublePrecision) {
  MANYHEAD_SKIP_UNLESS_CPU_RUNS(GetParam());
  const char* const kPolicies[] = {"", "sink(3)+recent(20)", "budget(64)+recent(20)",
                                   R"js({"heads": [{"kv_heads": [0], "policy": "window(17)"},
                       {"layers": [1], "kv_heads": [1], "policy": "off"}]})js"};
  const KvType types[] = {KvType::kF16, KvType::kInt8, KvType::kF32, KvType::kInt4};
  for (int i = 0; i < 4; ++i) {
    for (const auto& [family, window] : {std::pair("llama", 0), std::pair("gemma3", 25)}) {
      SCOPED_TRACE(std::string(family) + " " + kPolicies[i]);
      CheckRows(LoadTiny(MakeTiny(family, window)), {.threads = i % 3 + 1,
                                                     .k_type = types[i],
                                                     .v_type = types[3 - i],
                                                     .kv_policy = kPolicies[i],
                                                     .isa = GetParam()});
    }
  }
}

SessionOptions Options(int threads) {
  SessionOptions options;
  options.context = 200;
  options.chunk = 40;
  options.threads = threads;
  options.math = MathMode::kExact;
  return options;
}

std::vector<Kept> RowsOf(const Model& model, int threads, const CaptureOptions& wanted,
                         std::vector<float>* logits = nullptr) {
  Session session = *Session::Create(model, Options(threads));
  std::vector<Kept> rows;
  CaptureOptions options = wanted;
  options.on_row = Keep(rows);
  const Status status = session.SetCapture(&options);
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_TRUE(session.Append(SomeIds(90)).ok());  // steps of 40, 40 and 10 tokens
  const auto last = session.Append(SomeIds(1));
  EXPECT_TRUE(last.ok());
  if (logits != nullptr) logits->assign(last->begin(), last->end());
  return rows;
}

TEST(HeadCapture, ChosenHeadsAndPositionsInOrder) {
  const Model model = LoadTiny(MakeTiny("llama", 0));
  const std::vector<Kept> rows = RowsOf(
      model, 2, {.heads = {{1, 5}, {0, 2}, {1, 0}, {1, 5}}, .first = 7, .last = 85, .every = 39});
  std::vector<std::string> order;
  for (const Kept& row : rows)
    order.push_back(std::to_string(row.head.layer) + "." + std::to_string(row.head.head) + "@" +
                    std::to_string(row.position));
  EXPECT_THAT(order, ElementsAre("0.2@7", "1.0@7", "1.5@7", "0.2@46", "1.0@46", "1.5@46", "0.2@85",
                                 "1.0@85", "1.5@85"));
  for (const Kept& row : rows) EXPECT_EQ(std::ssize(row.weights), row.position + 1);
}

TEST(HeadCapture, EveryPositionOfALongRange) {
  const Model model = LoadTiny(MakeTiny("llama", 0));
  const std::vector<Kept> rows = RowsOf(model, 3, {.heads = {{0, 1}}, .first = 33});
  ASSERT_EQ(rows.size(), 91 - 33);
  for (std::size_t i = 0; i < rows.size(); ++i)
    EXPECT_EQ(rows[i].position, 33 + static_cast<std::int64_t>(i));
}

TEST(HeadCapture, TheSameBitsForEveryThreadCount) {
  const Model model = LoadTiny(MakeTiny("gemma3", 25));
  const std::vector<Kept> one = RowsOf(model, 1, {});
  ASSERT_EQ(one.size(), 91 * 12);
  EXPECT_EQ(RowsOf(model, 2, {}), one);
  EXPECT_EQ(RowsOf(model, 5, {}), one);
}

// More rows than a batch holds: those of 1,000 positions over as many keys.
TEST(HeadCapture, RowsOfManyBatches) {
  const Model model = LoadTiny(MakeTiny("llama", 0));
  SessionOptions options = Options(2);
  options.context = options.chunk = 1000;
  Session session = *Session::Create(model, options);
  std::int64_t rows = 0;
  bool in_order = true, sums = true;
  const CaptureOptions all{.on_row = [&](const CapturedRow& row) {
    const std::int64_t index = rows++ % 6000;
    in_order = in_order && row.position == index / 6 && row.head.head == index % 6;
    double sum = 0;
    for (const float w : row.weights) sum += double{w};
    sums = sums && std::fabs(sum - 1) < 1e-5;
  }};
  ASSERT_TRUE(session.SetCapture(&all).ok());
  ASSERT_TRUE(session.Append(SomeIds(1000)).ok());
  EXPECT_EQ(rows, 12000);
  EXPECT_TRUE(in_order && sums);
}

TEST(HeadCapture, ChangesNoResultAndCanBeTurnedOff) {
  const Model model = LoadTiny(MakeTiny("llama", 0));
  Session plain = *Session::Create(model, Options(2));
  ASSERT_TRUE(plain.Append(SomeIds(90)).ok());
  const auto expected = plain.Append(SomeIds(1));
  std::vector<float> logits;
  RowsOf(model, 2, {}, &logits);
  EXPECT_EQ(logits, std::vector<float>(expected->begin(), expected->end()));

  int calls = 0;
  const CaptureOptions count{.on_row = [&calls](const CapturedRow&) { ++calls; }};
  ASSERT_TRUE(plain.SetCapture(&count).ok());
  const std::int64_t with = plain.scratch_bytes();
  ASSERT_TRUE(plain.Append(SomeIds(1)).ok());
  EXPECT_EQ(calls, 12);
  ASSERT_TRUE(plain.SetCapture(nullptr).ok());
  EXPECT_LT(plain.scratch_bytes(), with);
  ASSERT_TRUE(plain.Append(SomeIds(1)).ok());
  EXPECT_EQ(calls, 12);
}

TEST(HeadCapture, WrongOptionsNameTheRange) {
  const Model model = LoadTiny(MakeTiny("llama", 0));
  Session session = *Session::Create(model, Options(1));
  int calls = 0;
  const std::function<void(const CapturedRow&)> count = [&calls](const CapturedRow&) { ++calls; };
  CaptureOptions good{.heads = {{1, 1}}, .on_row = count};
  ASSERT_TRUE(session.SetCapture(&good).ok());
  const struct {
    CaptureOptions options;
    const char* message;
  } cases[] = {
      {{.heads = {{0, 0}, {2, 0}}, .on_row = count}, "heads[1].layer = 2; expected 0 to 1"},
      {{.heads = {{-1, 0}}, .on_row = count}, "heads[0].layer = -1; expected 0 to 1"},
      {{.heads = {{1, 6}}, .on_row = count}, "heads[0].head = 6; expected 0 to 5"},
      {{.first = 200, .on_row = count}, "first = 200; expected 0 to 199"},
      {{.first = 9, .last = 8, .on_row = count}, "last = 8; expected 9 to 199"},
      {{.last = 200, .on_row = count}, "last = 200; expected 0 to 199"},
      {{.every = 0, .on_row = count}, "every = 0; expected 1 to"},
      {{}, "on_row is empty"},
  };
  for (const auto& [options, message] : cases) {
    const Status status = session.SetCapture(&options);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << message;
    EXPECT_THAT(status.message(), HasSubstr(std::string("Session::SetCapture: ") + message));
  }
  ASSERT_TRUE(session.Append(SomeIds(1)).ok());
  EXPECT_EQ(calls, 1) << "what was set before stays";
}

}  // namespace
}  // namespace manyhead::testing
