#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "manyhead/session.h"

namespace manyhead::testing {

/// The tokens that the next call appends, and their role.
struct NextTokens {
  std::size_t count = 1;
  std::optional<RowRole> role = {};
};

/// Returns the largest difference of any logit of the model at `path` from the reference, in exact
/// arithmetic over a cache in f32. The tokens from `begin` on are appended as next(begin) says, and
/// the logits after each call are compared with expected(token), the reference after that token.
template <class Next, class Expected>
double WorstDifference(const std::string& path, std::span<const TokenId> ids, Isa isa, Next next,
                       Expected expected) {
  const Result<Model> model = Model::Load(path);
  EXPECT_TRUE(model.ok()) << model.status().message();
  if (!model.ok()) return NAN;
  SessionOptions options;
  options.context = static_cast<std::int64_t>(ids.size());
  options.k_type = options.v_type = KvType::kF32;
  options.math = MathMode::kExact;
  options.threads = 2;
  options.isa = isa;
  Result<Session> session = Session::Create(*model, options);
  EXPECT_TRUE(session.ok()) << session.status().message();
  if (!session.ok()) return NAN;
  double worst = 0;
  for (std::size_t begin = 0; begin < ids.size();) {
    const NextTokens tokens = next(begin);
    const auto logits = session->Append(ids.subspan(begin, tokens.count), tokens.role);
    EXPECT_TRUE(logits.ok()) << logits.status().message();
    if (!logits.ok()) return NAN;
    begin += tokens.count;
    const std::vector<double> reference = expected(begin - 1);
    EXPECT_EQ(logits->size(), reference.size());
    if (logits->size() != reference.size()) return NAN;
    for (std::size_t i = 0; i < reference.size(); ++i)
      worst = std::max(worst, std::abs(static_cast<double>((*logits)[i]) - reference[i]));
  }
  return worst;
}

}  // namespace manyhead::testing
