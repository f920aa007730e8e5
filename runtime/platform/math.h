#pragma once

#include <concepts>
#include <type_traits>

namespace manyhead {

/// Returns n / by rounded up, for 0 <= n and 0 < by; never overflows.
template <std::integral T>
constexpr T CeilDiv(T n, std::type_identity_t<T> by) noexcept {
  return static_cast<T>(n / by + (n % by != 0 ? 1 : 0));
}

/// Returns the least multiple of `multiple` that is at least n, for 0 <= n and 0 < multiple. The
/// result fits T.
template <std::integral T>
constexpr T RoundUp(T n, std::type_identity_t<T> multiple) noexcept {
  return static_cast<T>(CeilDiv(n, multiple) * multiple);
}

}  // namespace manyhead
