#pragma once

#include "kernels/attention_scores.inl.h"
#include "kernels/attention_values.inl.h"

/// Makes the table of the two matrix products of attention for one type of keys and values.

namespace manyhead::kernels {
namespace {  // NOLINT(google-build-namespaces)

template <class V, class T>
constexpr AttentionProducts MakeAttentionProducts() {
  AttentionProducts products{};
  products.score = &ScoreBlock<V, T>;
  products.add = &AddBlock<V, T>;
  return products;
}

}  // namespace
}  // namespace manyhead::kernels
