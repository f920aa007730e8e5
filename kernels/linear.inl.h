#pragma once

#include "kernels/linear_exact.inl.h"
#include "kernels/linear_fast.inl.h"
#include "manyhead/types.h"

/// Makes the table of one instruction set. `R` and `X` are its integer and float policies.

namespace manyhead::kernels {
namespace {  // NOLINT(google-build-namespaces): one private copy per instruction set

template <class X, class Groups>
constexpr LinearTypeKernels Plain() {
  return {&Widen<X, Groups>, &MatvecExact<X, Groups>, &MatvecExact<X, Groups>,
          ActivationBlock::kF32};
}

template <class R, class X, class Block>
constexpr LinearTypeKernels Small() {
  using Groups = SmallGroups<X, Block>;
  return {&Widen<X, Groups>, &MatvecExact<X, Groups>, &MatvecFast<R, Block, SmallFastRows>,
          ActivationBlock::kQ32};
}

template <class R, class X, class Block>
constexpr LinearTypeKernels Super() {
  using Groups = SuperGroups<X, Block>;
  return {&Widen<X, Groups>, &MatvecExact<X, Groups>, &MatvecFast<R, Block, SuperFastRows>,
          ActivationBlock::kQ256};
}

template <class R, class X>
constexpr LinearKernels MakeLinearKernels() {
  LinearKernels table = {};
  const auto at = [&table](WeightType type) -> LinearTypeKernels& {
    return table.types[static_cast<int>(type)];
  };
  at(WeightType::kF32) = Plain<X, PlainGroups<X, ElementF32>>();
  at(WeightType::kF16) = Plain<X, PlainGroups<X, ElementF16>>();
  at(WeightType::kBf16) = Plain<X, PlainGroups<X, ElementBf16>>();
  at(WeightType::kQ4_0) = Small<R, X, BlockQ4_0>();
  at(WeightType::kQ4_1) = Small<R, X, BlockQ4_1>();
  at(WeightType::kQ5_0) = Small<R, X, BlockQ5_0>();
  at(WeightType::kQ5_1) = Small<R, X, BlockQ5_1>();
  at(WeightType::kQ8_0) = Small<R, X, BlockQ8_0>();
  at(WeightType::kQ2_K) = Super<R, X, BlockQ2_K>();
  at(WeightType::kQ3_K) = Super<R, X, BlockQ3_K>();
  at(WeightType::kQ4_K) = Super<R, X, BlockQ4_K>();
  at(WeightType::kQ5_K) = Super<R, X, BlockQ5_K>();
  at(WeightType::kQ6_K) = Super<R, X, BlockQ6_K>();
  table.quantize_32 = &Quantize32;
  table.quantize_256 = &Quantize256;
  return table;
}

}  // namespace
}  // namespace manyhead::kernels
