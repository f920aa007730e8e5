#include "runtime/linear/encode.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

namespace manyhead {
namespace {

constexpr std::int64_t kBlock = 32;  // elements of Q8_0 and Q4_0

/// Shifts `bits` right and rounds what falls off to the nearest, ties to even.
std::uint32_t ShiftRounded(std::uint32_t bits, int shift) {
  const std::uint32_t half = std::uint32_t{1} << (shift - 1), rest = bits & ((half << 1) - 1);
  const std::uint32_t kept = bits >> shift;
  return kept + (rest > half || (rest == half && (kept & 1) != 0) ? 1 : 0);
}

std::uint16_t ToHalf(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000);
  const std::uint32_t magnitude = bits & 0x7FFFFFFF;
  if (magnitude > 0x7F800000)  // not a number: quiet, with the bits that fit
    return static_cast<std::uint16_t>(sign | 0x7E00 | ((magnitude >> 13) & 0x1FF));
  if (magnitude >= 0x47800000) return sign | 0x7C00;  // from 65536 on
  if (magnitude >= 0x38800000)  // normal; rounding may carry into the exponent and to infinity
    return static_cast<std::uint16_t>(sign | ShiftRounded(magnitude - 0x38000000, 13));
  if (magnitude < 0x33000000) return sign;  // at most half of the smallest number, which is 2^-24
  const int exponent = static_cast<int>(magnitude >> 23);
  const std::uint32_t mantissa = (magnitude & 0x7FFFFF) | 0x800000;
  return static_cast<std::uint16_t>(sign | ShiftRounded(mantissa, 126 - exponent));
}

std::uint16_t ToBf16(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  if ((bits & 0x7FFFFFFF) > 0x7F800000) return static_cast<std::uint16_t>((bits >> 16) | 0x40);
  return static_cast<std::uint16_t>(ShiftRounded(bits, 16));
}

float FromHalf(std::uint16_t half) {
  const std::uint32_t sign = std::uint32_t{half} >> 15 << 31, exponent = half >> 10 & 31;
  const std::uint32_t mantissa = half & 0x3FF;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7F800000 | mantissa << 13);
  if (exponent != 0) return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24F;
  return sign != 0 ? -magnitude : magnitude;
}

void Store16(std::uint16_t value, std::byte* out) { std::memcpy(out, &value, sizeof value); }

/// `x` as an integer within [low, high]; what is no number becomes `low`.
int Clamped(float x, int low, int high) {
  if (!(x > static_cast<float>(low))) return low;
  return x < static_cast<float>(high) ? static_cast<int>(x) : high;
}

void EncodeQ8_0(const float* x, std::byte* out) {
  float largest = 0;
  for (std::int64_t i = 0; i < kBlock; ++i) largest = std::max(largest, std::abs(x[i]));
  const float scale = largest / 127, inverse = scale != 0 ? 1 / scale : 0;
  Store16(ToHalf(scale), out);
  for (std::int64_t i = 0; i < kBlock; ++i)
    out[2 + i] = static_cast<std::byte>(Clamped(std::round(x[i] * inverse), -128, 127));
}

void EncodeQ4_0(const float* x, std::byte* out) {
  float largest = 0;
  for (std::int64_t i = 0; i < kBlock; ++i)
    if (std::abs(x[i]) > std::abs(largest)) largest = x[i];
  const float scale = largest / -8, inverse = scale != 0 ? 1 / scale : 0;
  Store16(ToHalf(scale), out);
  const auto quant = [&](std::int64_t i) { return Clamped(x[i] * inverse + 8.5F, 0, 15); };
  for (std::int64_t i = 0; i < kBlock / 2; ++i)
    out[2 + i] = static_cast<std::byte>(quant(i) | quant(i + kBlock / 2) << 4);
}

}  // namespace

bool CanEncode(WeightType type) noexcept {
  return type == WeightType::kF32 || type == WeightType::kF16 || type == WeightType::kBf16 ||
         type == WeightType::kQ8_0 || type == WeightType::kQ4_0;
}

void EncodeWeights(WeightType type, const float* x, std::int64_t count, std::byte* out) noexcept {
  const WeightBlock block = WeightBlockOf(type);
  if (type == WeightType::kF32) {
    std::memcpy(out, x, static_cast<std::size_t>(count) * sizeof(float));
    return;
  }
  for (std::int64_t i = 0; i < count; i += block.elements, out += block.bytes) {
    switch (type) {
      case WeightType::kF16:
        Store16(ToHalf(x[i]), out);
        break;
      case WeightType::kBf16:
        Store16(ToBf16(x[i]), out);
        break;
      case WeightType::kQ8_0:
        EncodeQ8_0(x + i, out);
        break;
      case WeightType::kQ4_0:
        EncodeQ4_0(x + i, out);
        break;
      default:
        break;
    }
  }
}

float LoadWeight(WeightType type, const std::byte* data, std::int64_t index) noexcept {
  if (type == WeightType::kF32) {
    float value;
    std::memcpy(&value, data + index * 4, sizeof value);
    return value;
  }
  std::uint16_t bits;
  std::memcpy(&bits, data + index * 2, sizeof bits);
  return type == WeightType::kF16 ? FromHalf(bits)
                                  : std::bit_cast<float>(std::uint32_t{bits} << 16);
}

}  // namespace manyhead
