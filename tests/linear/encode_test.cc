#include "runtime/linear/encode.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "runtime/linear/linear.h"

namespace manyhead {
namespace {

/// Numbers that are exact in f32, in blocks of different sizes and one of zeros.
std::vector<float> SomeNumbers() {
  std::vector<float> x;
  for (int i = 0; i < 32 * 64; ++i) {
    const float size = std::ldexp(1.0F, (i / 32) % 7 - 3);
    x.push_back(i / 32 == 5 ? 0.0F : static_cast<float>((i * 7919) % 2003 - 1001) / 512 * size);
  }
  return x;
}

std::vector<std::byte> Encoded(WeightType type, const std::vector<float>& x) {
  const WeightBlock block = WeightBlockOf(type);
  const auto count = static_cast<std::int64_t>(x.size());
  std::vector<std::byte> out(static_cast<std::size_t>(count / block.elements * block.bytes),
                             std::byte{0xEE});
  EncodeWeights(type, x.data(), count, out.data());
  return out;
}

std::uint64_t HashOf(const std::vector<std::byte>& bytes) {
  std::uint64_t value = 0xCBF29CE484222325;
  for (const std::byte byte : bytes)
    value = (value ^ std::to_integer<std::uint64_t>(byte)) * 0x100000001B3;
  return value;
}

// The hashes are those of gguf.quants.quantize (gguf 0.19) of the same numbers.
TEST(EncodeWeights, GivesTheBitsOfTheFormatsOwnCode) {
  const std::vector<float> x = SomeNumbers();
  EXPECT_EQ(HashOf(Encoded(WeightType::kQ8_0, x)), 0x61ada647fdb68888U);
  EXPECT_EQ(HashOf(Encoded(WeightType::kQ4_0, x)), 0x94770d494f027dc6U);
  EXPECT_EQ(HashOf(Encoded(WeightType::kF16, x)), 0x413c3eb1e3bf8667U);
  EXPECT_EQ(HashOf(Encoded(WeightType::kBf16, x)), 0xdc5ffd552aada52eU);
}

/// Returns true where no neighbour of the half `bits` is nearer to `x`, and a tie went to the even
/// one.
bool IsNearest(WeightType type, std::uint16_t bits, float x) {
  const auto value = [&](int step) {
    const auto near = static_cast<std::uint16_t>(bits + step);
    return static_cast<double>(LoadWeight(type, reinterpret_cast<const std::byte*>(&near), 0));
  };
  const double error = std::abs(value(0) - static_cast<double>(x));
  for (const int step : {-1, 1}) {
    if ((bits & 0x7FFF) == 0 && step < 0) continue;  // below zero is the other sign
    const double other = std::abs(value(step) - static_cast<double>(x));
    if (other < error || (other == error && (bits & 1) != 0)) return false;
  }
  return true;
}

TEST(EncodeWeights, RoundsHalvesToTheNearest) {
  std::mt19937 random(3);
  for (const WeightType type : {WeightType::kF16, WeightType::kBf16}) {
    for (int i = 0; i < 200000; ++i) {
      // Every exponent, with many ties: few bits of the mantissa are set.
      const auto word =
          static_cast<std::uint32_t>(random() & (i % 2 == 0 ? 0xFFFFFFFF : 0xFFFFF000));
      float x;
      std::memcpy(&x, &word, sizeof x);
      const float most = type == WeightType::kF16 ? 65000.0F : 3e38F;
      if (!std::isfinite(x) || std::abs(x) > most) continue;
      std::uint16_t bits;
      EncodeWeights(type, &x, 1, reinterpret_cast<std::byte*>(&bits));
      ASSERT_TRUE(IsNearest(type, bits, x)) << WeightTypeName(type) << " of " << x;
    }
  }
}

TEST(EncodeWeights, KeepsInfinitiesAndWhatIsNoNumber) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const WeightType type : {WeightType::kF16, WeightType::kBf16}) {
    for (const float x : {kInfinity, -kInfinity, 3.4e38F, 65520.0F}) {
      std::byte bits[2];
      EncodeWeights(type, &x, 1, bits);
      const float back = LoadWeight(type, bits, 0);
      EXPECT_EQ(std::signbit(back), std::signbit(x));
      if (type == WeightType::kF16 || std::abs(x) > 3.39e38F) {
        EXPECT_TRUE(std::isinf(back)) << x;
      }
    }
    const float nan = NAN;
    std::byte bits[2];
    EncodeWeights(type, &nan, 1, bits);
    EXPECT_TRUE(std::isnan(LoadWeight(type, bits, 0)));
  }
  std::vector<float> block(32, 1.0F);
  for (const float bad : {NAN, kInfinity, -kInfinity})
    for (const WeightType type : {WeightType::kQ8_0, WeightType::kQ4_0}) {
      block[7] = bad;
      EXPECT_FALSE(Encoded(type, block).empty());
    }
}

TEST(EncodeWeights, LoadsWhatItEncoded) {
  const std::vector<float> x = SomeNumbers();
  const auto count = static_cast<std::int64_t>(x.size());
  for (const WeightType type : {WeightType::kQ8_0, WeightType::kQ4_0, WeightType::kF32}) {
    const std::vector<std::byte> bytes = Encoded(type, x);
    std::vector<float> back(x.size());
    DequantizeRow({type, 1, count, bytes.data()}, Isa::kScalar, 0, back.data());
    for (std::size_t begin = 0; begin < x.size(); begin += 32) {
      float most = 0;
      for (std::size_t i = begin; i < begin + 32; ++i) most = std::max(most, std::abs(x[i]));
      // The error is at most half a step; Q4_0 lacks a quant at one end, where it is a whole step.
      // The scale in f16 adds 2^-11 of the largest number.
      const float steps = type == WeightType::kF32    ? 0
                          : type == WeightType::kQ8_0 ? 0.5F / 127
                                                      : 1.0F / 8;
      const float step = type == WeightType::kF32 ? 0 : most * (steps + 0x1p-11F) * 1.001F;
      for (std::size_t i = begin; i < begin + 32; ++i) EXPECT_NEAR(back[i], x[i], step) << i;
    }
  }
}

}  // namespace
}  // namespace manyhead
