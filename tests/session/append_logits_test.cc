#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "manyhead/session.h"
#include "tests/model/load_tiny.h"

/// Logits after every token of a call, against double precision and against calls of one token.

namespace manyhead::testing {
namespace {

TEST(AppendLogits, AreThoseAfterEachToken) {
  TinyModel tiny;
  tiny.MakeWeights(5);
  const Model model = LoadTiny(tiny);
  const std::int64_t vocab = model.config().vocab_size;
  const std::vector<TokenId> ids = SomeIds(75);
  const std::vector<std::vector<double>> expected = tiny.Logits({ids.begin(), ids.end()});
  for (const std::int64_t chunk : {1, 33, 40, 512}) {
    SessionOptions options;
    options.k_type = options.v_type = KvType::kF32;
    options.context = 80;
    options.math = MathMode::kExact;
    options.chunk = chunk;
    Session session = *Session::Create(model, options);
    std::vector<float> rows(ids.size() * static_cast<std::size_t>(vocab),
                            std::numeric_limits<float>::quiet_NaN());
    const Status status = session.AppendLogits(ids, rows);
    ASSERT_TRUE(status.ok()) << status.message();
    for (std::size_t t = 0; t < ids.size(); ++t)
      for (std::int64_t i = 0; i < vocab; ++i)
        ASSERT_NEAR(rows[t * vocab + i], expected[t][i], 1e-4) << "token " << t << ", id " << i;
    EXPECT_EQ(std::vector<float>(session.logits().begin(), session.logits().end()),
              std::vector<float>(rows.end() - vocab, rows.end()));
    // Drafts in the decode role have the bits of decode steps.
    std::vector<float> drafts(static_cast<std::size_t>(3 * vocab));
    ASSERT_TRUE(session.AppendLogits(SomeIds(3), drafts, RowRole::kDecode).ok());
    ASSERT_TRUE(session.Truncate(75).ok());
    for (int t = 0; t < 3; ++t) {
      const auto logits = session.Append({SomeIds(3).data() + t, 1});
      ASSERT_TRUE(logits.ok());
      EXPECT_TRUE(std::equal(logits->begin(), logits->end(), drafts.begin() + t * vocab));
    }
  }
}

TEST(AppendLogits, ARefusedCallChangesNothing) {
  TinyModel tiny;
  tiny.MakeWeights(5);
  const Model model = LoadTiny(tiny);
  SessionOptions options;
  options.context = 8;
  Session session = *Session::Create(model, options);
  std::vector<float> rows(static_cast<std::size_t>(4 * model.config().vocab_size), -1.0F);
  const auto refuse = [&](std::span<const TokenId> ids, std::optional<RowRole> role = {}) {
    const Status status = session.AppendLogits(ids, rows, role);
    EXPECT_FALSE(status.ok());
    EXPECT_EQ(session.length(), 0);
    EXPECT_THAT(rows, ::testing::Each(-1.0F));
    return status.message();
  };
  EXPECT_THAT(refuse(SomeIds(3)), ::testing::HasSubstr("expected ids * vocab_size = "));
  EXPECT_THAT(refuse({}), ::testing::HasSubstr("0 tokens"));
  EXPECT_THAT(refuse(SomeIds(9)), ::testing::HasSubstr("exceed context = 8"));
  EXPECT_THAT(refuse(SomeIds(4), static_cast<RowRole>(2)), ::testing::HasSubstr("role = 2"));
}

}  // namespace
}  // namespace manyhead::testing
