#pragma once

#include <cstdint>
#include <initializer_list>

namespace manyhead {

/// Computes sums and products of numbers that a file or a user chose, and records whether any
/// exceeded 2^63 - 1; results after that are meaningless.
class CheckedMath {
 public:
  std::int64_t Product(std::initializer_list<std::int64_t> factors) noexcept {
    std::int64_t product = 1;
    for (const std::int64_t factor : factors)
      overflow_ |= __builtin_mul_overflow(product, factor, &product);
    return product;
  }
  void Add(std::int64_t& sum, std::int64_t value) noexcept {
    overflow_ |= __builtin_add_overflow(sum, value, &sum);
  }
  bool overflow() const noexcept { return overflow_; }

 private:
  bool overflow_ = false;
};

}  // namespace manyhead
