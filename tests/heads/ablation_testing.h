#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "manyhead/ablation.h"
#include "manyhead/model.h"
#include "manyhead/session.h"
#include "tests/model/load_tiny.h"

namespace manyhead::testing {

inline SessionOptions Exact() {
  SessionOptions options;
  options.k_type = options.v_type = KvType::kF32;
  options.context = 400;
  options.math = MathMode::kExact;
  options.chunk = 40;
  options.threads = 2;
  return options;
}

inline std::vector<float> LogitsAfter(Session& session, std::span<const TokenId> ids) {
  const Result<std::span<const float>> logits = session.Append(ids);
  EXPECT_TRUE(logits.ok()) << logits.status().message();
  if (!logits.ok()) return {};
  return {logits->begin(), logits->end()};
}

inline Ablation Parse(const Model& model, const std::string& text) {
  const Result<Ablation> ablation = ParseAblation(text, model.config());
  EXPECT_TRUE(ablation.ok()) << ablation.status().message();
  return ablation.ok() ? *ablation : Ablation();
}

inline Session Ablated(const Model& model, const SessionOptions& options,
                       const Ablation& ablation) {
  Session session = *Session::Create(model, options);
  const Status status = session.SetAblation(ablation);
  EXPECT_TRUE(status.ok()) << status.message();
  return session;
}

/// The greatest difference of two rows of logits.
template <class T>
double Distance(const std::vector<float>& a, const std::vector<T>& b) {
  EXPECT_EQ(a.size(), b.size());
  double most = 0;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const double distance = std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    most = distance <= most ? most : distance;  // NaN shows
  }
  return most;
}

/// The columns of W_O that head `head` of `layer` has, times `factor`.
inline void ScaleOutput(TinyModel& tiny, std::int64_t layer, std::int64_t head, float factor) {
  std::vector<float>& w = tiny.tensors.at("blk." + std::to_string(layer) + ".attn_output.weight");
  const std::int64_t width = tiny.num_heads * tiny.head_dim;
  for (std::int64_t row = 0; row < tiny.d_model; ++row)
    for (std::int64_t i = 0; i < tiny.head_dim; ++i)
      w[static_cast<std::size_t>(row * width + head * tiny.head_dim + i)] *= factor;
}

}  // namespace manyhead::testing
