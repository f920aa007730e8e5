// Tests head profiles against the rows that are captured in the same steps.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "manyhead/session.h"
#include "tests/heads/observed_decoder.h"
#include "tests/heads/tiny.h"

namespace manyhead::testing {
namespace {

using ::testing::HasSubstr;

/// Means over rows, by their definitions in double precision.
struct Means {
  double rows = 0, entropy = 0, sink = 0, recent = 0, mean = 0, median = 0, max = 0, norm = 0;

  void Add(const std::vector<double>& weights, const HeadProfileOptions& options, double output) {
    const auto position = std::ssize(weights) - 1;
    double total = 0, largest = 0, within = 0;
    for (std::int64_t s = 0; s <= position; ++s) {
      const double w = weights[s], distance = static_cast<double>(position - s);
      total += w;
      if (w > 0) entropy -= w * std::log(w);
      if (s < options.sink_tokens) sink += w;
      if (position - s < options.recent) recent += w;
      mean += w * distance;
      largest = std::max(largest, w);
    }
    if (total == 0) return;
    for (std::int64_t d = 0; within < 0.5; ++d) {
      within += weights[position - d];
      if (within >= 0.5) median += static_cast<double>(d);
    }
    max += largest;
    norm += output;
    rows += 1;
  }
};

/// |W_h a| by W_O as the file has it, with the norm after attention if there is one.
double OutputNorm(const TinyModel& tiny, const ObservedDecoder& decoder, HeadId id,
                  std::int64_t row) {
  const std::string block = "blk." + std::to_string(id.layer) + ".";
  const std::vector<float>& w = tiny.tensors.at(block + "attn_output.weight");
  const ObservedLayer& seen = decoder.last()[id.layer];
  const std::int64_t d = tiny.d_model, width = tiny.num_heads * tiny.head_dim;
  double square = 0, total = 0;
  for (std::int64_t r = 0; r < d; ++r) {
    double x = 0;
    for (std::int64_t c = id.head * tiny.head_dim; c < (id.head + 1) * tiny.head_dim; ++c)
      x += double{w[r * width + c]} * double{seen.attended[row * width + c]};
    if (tiny.gemma()) x *= double{tiny.tensors.at(block + "post_attention_norm.weight")[r]};
    square += x * x;
    const double p = seen.projected[row * d + r];
    total += p * p;
  }
  const double rms = std::sqrt(total / static_cast<double>(d) + 1e-6);
  return std::sqrt(square) / (tiny.gemma() ? rms : 1);
}

void CheckMeans(const TinyModel& tiny, const ObservedDecoder::Options& options,
                const HeadProfileOptions& wanted) {
  const Model model = LoadTiny(tiny);
  ObservedDecoder decoder(model, options);
  HeadProfile profile;
  decoder.Profile(&profile, wanted);
  std::map<HeadId, Means> expected;
  std::int64_t position = 0;
  for (const int count : {60, 1, 1, 33, 1, 1, 1, 1}) {
    decoder.Step(SomeIds(count, static_cast<unsigned>(position)));
    for (std::int64_t i = position; i < position + count; ++i) {
      if ((i + 1) % wanted.every != 0) continue;
      for (std::int64_t l = 0; l < tiny.layers; ++l)
        for (std::int64_t h = 0; h < tiny.num_heads; ++h)
          expected[{l, h}].Add(decoder.Weights({l, h}, i), wanted,
                               OutputNorm(tiny, decoder, {l, h}, i - position));
    }
    position += count;
  }
  EXPECT_EQ(profile.steps, 8);
  EXPECT_EQ(profile.tokens, position);
  for (const auto& [id, means] : expected) {
    SCOPED_TRACE("layer " + std::to_string(id.layer) + ", head " + std::to_string(id.head));
    const HeadStats& head = profile.heads[id.layer][id.head];
    ASSERT_EQ(head.rows, means.rows);
    const double n = std::max(1.0, means.rows);
    EXPECT_NEAR(head.entropy, means.entropy / n, 1e-4);
    EXPECT_NEAR(head.effective_tokens(), means.rows == 0 ? 0 : std::exp(means.entropy / n), 1e-2);
    EXPECT_NEAR(head.sink_mass, means.sink / n, 1e-5);
    EXPECT_NEAR(head.recent_mass, means.recent / n, 1e-5);
    EXPECT_NEAR(head.mean_distance, means.mean / n, 1e-3);
    EXPECT_NEAR(head.median_distance, means.median / n, 1e-3);
    EXPECT_NEAR(head.max_weight, means.max / n, 1e-5);
    EXPECT_NEAR(head.output_norm, means.norm / n, 1e-4 * (1 + means.norm / n));
  }
}

TEST(HeadProfile, MeansAreThoseOfTheRows) {
  for (const auto& [family, window] : {std::pair("llama", 0), std::pair("gemma3", 25)}) {
    SCOPED_TRACE(family);
    const TinyModel tiny = MakeTiny(family, window);
    CheckMeans(tiny, {}, {.every = 1, .sink_tokens = 3, .recent = 10});
    CheckMeans(tiny, {.threads = 1, .isa = Isa::kScalar}, {.every = 7});
    CheckMeans(tiny, {.k_type = KvType::kInt8, .kv_policy = "sink(3)+recent(20)"}, {.every = 5});
    CheckMeans(tiny,
               {.kv_policy = R"({"heads": [{"layers": [1], "kv_heads": [1], "policy": "off"}]})"},
               {.every = 4});
  }
}

TEST(HeadProfile, MeansDoNotDependOnThreads) {
  const Model model = LoadTiny(MakeTiny("llama", 0));
  std::vector<HeadProfile> profiles(3);
  for (int i = 0; i < 3; ++i) {
    SessionOptions options;
    options.context = 300;
    options.threads = 2 * i + 1;
    Session session = *Session::Create(model, options);
    ASSERT_TRUE(session.SetHeadProfile(&profiles[i], {.every = 3}).ok());
    ASSERT_TRUE(session.Append(SomeIds(280)).ok());
    for (std::size_t l = 0; l < 2; ++l)
      for (std::size_t h = 0; h < 6; ++h) {
        HeadStats a = profiles[i].heads[l][h], b = profiles[0].heads[l][h];
        EXPECT_GT(a.seconds, 0);
        EXPECT_EQ(a.rows, 93);
        EXPECT_EQ(a.entropy, b.entropy);
        EXPECT_EQ(a.mean_distance, b.mean_distance);
        EXPECT_EQ(a.output_norm, b.output_norm);
        EXPECT_EQ(a.kv_bytes, b.kv_bytes);
      }
  }
}

// Query heads 0 to 2 share KV head 0, which has 2 * 6 numbers for a token, in f16 or int8 and f32.
TEST(HeadProfile, BytesAreThoseThatAreSeen) {
  const Model model = LoadTiny(MakeTiny("gemma3", 25));  // layer 0 has the window
  SessionOptions options;
  options.context = 300;
  options.kv_policy =
      R"js({"heads": [{"layers": [1], "kv_heads": [0], "policy": "sink(3)+recent(20)", "k_type": "f32"},
                      {"layers": [1], "kv_heads": [1], "policy": "off"}]})js";
  Session session = *Session::Create(model, options);
  HeadProfile profile;
  ASSERT_TRUE(session.SetHeadProfile(&profile).ok());
  ASSERT_TRUE(session.Append(SomeIds(100)).ok());
  const HeadProfile prompt = profile;
  ASSERT_TRUE(session.Append(SomeIds(1)).ok());
  const auto bytes = [&](std::size_t layer, std::size_t head) {
    return std::pair(prompt.heads[layer][head].kv_bytes,
                     profile.heads[layer][head].kv_bytes - prompt.heads[layer][head].kv_bytes);
  };
  const double window = 6 * 2 + 16 * 2, mixed = 6 * 4 + 16 * 2;  // rows of V have 16 places
  const auto expect = [&](std::size_t layer, std::size_t head, double prompt_bytes,
                          double step_bytes) {
    EXPECT_NEAR(bytes(layer, head).first, prompt_bytes, 1e-9);
    EXPECT_NEAR(bytes(layer, head).second, step_bytes, 1e-9);
  };
  expect(0, 1, 100 * window / 3, 25 * window / 3);
  expect(0, 5, 100 * window / 3, 25 * window / 3);
  expect(1, 0, 100 * mixed / 3, 23 * mixed / 3);
  expect(1, 4, 0, 0);
  EXPECT_EQ(profile.heads[1][4].rows, 0);
  EXPECT_EQ(profile.heads[1][4].effective_tokens(), 0);
}

TEST(HeadProfile, ChangesNoResultAndCanBeTurnedOff) {
  const Model model = LoadTiny(MakeTiny("gemma3", 25));
  SessionOptions options;
  options.context = 300;
  Session plain = *Session::Create(model, options), profiled = *Session::Create(model, options);
  HeadProfile profile;
  ASSERT_TRUE(profiled.SetHeadProfile(&profile, {.every = 1}).ok());
  const auto logits = [](Session& session, int count) {
    const auto last = session.Append(SomeIds(count));
    EXPECT_TRUE(last.ok());
    return std::vector<float>(last->begin(), last->end());
  };
  EXPECT_EQ(logits(profiled, 120), logits(plain, 120));
  EXPECT_EQ(logits(profiled, 1), logits(plain, 1));
  EXPECT_EQ(profile.steps, 2);
  ASSERT_TRUE(profiled.SetHeadProfile(nullptr).ok());
  EXPECT_EQ(logits(profiled, 1), logits(plain, 1));
  EXPECT_EQ(profile.steps, 2);
}

TEST(HeadProfile, StepsAreTimedAsAttention) {
  const Model model = LoadTiny(MakeTiny("llama", 0));
  SessionOptions options;
  options.context = 2000;
  options.threads = 1;
  Session session = *Session::Create(model, options);
  ASSERT_TRUE(session.Append(SomeIds(1500)).ok());
  HeadProfile heads;
  double share = 0;
  // Where others want the CPU, it may be gone between the two clocks.
  for (int attempt = 0; attempt < 50 && share <= 0.5; ++attempt) {
    ASSERT_TRUE(session.Truncate(1500).ok());
    StepProfile phases;
    ASSERT_TRUE(session.SetHeadProfile(&heads).ok());
    session.SetProfile(&phases);
    for (int i = 0; i < 100; ++i) ASSERT_TRUE(session.Append(SomeIds(1)).ok());
    session.SetProfile(nullptr);
    double seconds = 0;
    for (const auto& layer : heads.heads)
      for (const HeadStats& head : layer) seconds += head.seconds;
    EXPECT_LE(seconds, phases[StepPhase::kAttention].seconds);
    EXPECT_EQ(heads.heads[0][0].seconds, heads.heads[0][2].seconds) << "of one KV head";
    share = seconds / phases[StepPhase::kAttention].seconds;
  }
  EXPECT_GT(share, 0.5);
}

TEST(HeadProfile, WrongOptionsNameTheRange) {
  const Model model = LoadTiny(MakeTiny("llama", 0));
  Session session = *Session::Create(model, {.context = 64});
  HeadProfile profile;
  for (const auto& [options, message] :
       {std::pair(HeadProfileOptions{.every = 0}, "every = 0; expected 1 or more"),
        std::pair(HeadProfileOptions{.sink_tokens = -1}, "sink_tokens = -1; expected 0 or more"),
        std::pair(HeadProfileOptions{.recent = 0}, "recent = 0; expected 1 or more")}) {
    const Status status = session.SetHeadProfile(&profile, options);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr(std::string("Session::SetHeadProfile: ") + message));
  }
}

}  // namespace
}  // namespace manyhead::testing
