#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "manyhead/isa.h"
#include "runtime/cache/page_layout.h"
#include "runtime/platform/dispatch.h"

namespace manyhead {
namespace {

using kernels::KvPageLayout;

constexpr KvType kTypes[] = {KvType::kF32, KvType::kF16, KvType::kBf16};
constexpr unsigned char kPoison = 0xA5;

float FloatOf(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
std::uint32_t BitsOf(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

/// The value of a finite f16 or bf16 by its definition.
double ValueOf(KvType type, std::uint16_t bits) {
  const int fraction_bits = type == KvType::kF16 ? 10 : 7;
  const int bias = type == KvType::kF16 ? 15 : 127;
  const int exponent = (bits & 0x7FFF) >> fraction_bits;
  const int fraction = bits & ((1 << fraction_bits) - 1);
  const double magnitude =
      exponent == 0 ? std::ldexp(fraction, 1 - bias - fraction_bits)
                    : std::ldexp(fraction + (1 << fraction_bits), exponent - bias - fraction_bits);
  return bits & 0x8000 ? -magnitude : magnitude;
}
std::uint16_t Infinity(KvType type) { return type == KvType::kF16 ? 0x7C00 : 0x7F80; }

class KvRows : public ::testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    const std::vector<Isa> supported = SupportedIsas();
    if (std::find(supported.begin(), supported.end(), GetParam()) == supported.end())
      GTEST_SKIP() << "this CPU cannot run " << IsaName(GetParam());
    kernels_ = KernelsFor(GetParam()).kv;
  }

  /// The 16-bit patterns that `values` become, once through K tiles and once through V rows.
  std::vector<std::uint16_t> Convert(KvType type, std::vector<float> values) {
    constexpr std::int64_t kDim = 128;
    values.resize((values.size() + kDim - 1) / kDim * kDim);
    const KvPageLayout layout = MakeKvPageLayout({1, kDim, kDim}, type, type, 16);
    std::vector<std::uint16_t> result, page(layout.page_bytes / 2);
    for (std::size_t i = 0; i < values.size(); i += kDim) {
      kernels_->store_rows(layout, reinterpret_cast<std::byte*>(page.data()), 3, 1, &values[i],
                           kDim, &values[i], kDim);
      for (std::int64_t d = 0; d < kDim; ++d) {
        result.push_back(page[d * 16 + 3]);
        EXPECT_EQ(page[layout.v_offset_bytes / 2 + 3 * layout.v_row + d], result.back());
      }
    }
    return result;
  }

  const kernels::KvKernels* kernels_ = nullptr;
};

// Every pair of neighbouring numbers of the type, with the float values around their middle.
TEST_P(KvRows, RoundsToNearestEven) {
  for (KvType type : {KvType::kF16, KvType::kBf16}) {
    std::vector<float> inputs;
    std::vector<std::uint16_t> expected;
    for (std::uint16_t bits = 0; bits + 1 < Infinity(type); ++bits) {
      const std::uint16_t next = bits + 1;
      const float middle = static_cast<float>((ValueOf(type, bits) + ValueOf(type, next)) / 2);
      const std::uint16_t even = bits % 2 == 0 ? bits : next;
      const struct {
        float input;
        std::uint16_t output;
      } cases[] = {{static_cast<float>(ValueOf(type, bits)), bits},
                   {std::nextafter(middle, 0.0F), bits},
                   {middle, even},
                   {std::nextafter(middle, HUGE_VALF), next}};
      for (const auto& c : cases) {
        inputs.push_back(c.input);
        expected.push_back(c.output);
        inputs.push_back(-c.input);
        expected.push_back(c.output | 0x8000);
      }
    }
    const std::vector<std::uint16_t> stored = Convert(type, inputs);
    for (std::size_t i = 0; i < inputs.size(); ++i)
      ASSERT_EQ(stored[i], expected[i]) << KvTypeName(type) << " of " << inputs[i];
  }
}

TEST_P(KvRows, OverflowsToInfinityAndKeepsNan) {
  const float max = std::numeric_limits<float>::max();
  const std::vector<float> inputs = {65519.996F, 65520.0F,  -65520.0F,           1e30F,
                                     max,        HUGE_VALF, FloatOf(0x7F7F7FFF), 5.9e-8F,
                                     2.98e-8F};
  const std::vector<std::uint16_t> f16 = {0x7BFF, 0x7C00, 0xFC00, 0x7C00, 0x7C00,
                                          0x7C00, 0x7C00, 0x0001, 0x0000};
  const std::vector<std::uint16_t> bf16 = {0x4780, 0x4780, 0xC780, 0x714A, 0x7F80,
                                           0x7F80, 0x7F7F, 0x337D, 0x3300};
  const auto stored_f16 = Convert(KvType::kF16, inputs),
             stored_bf16 = Convert(KvType::kBf16, inputs);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    EXPECT_EQ(stored_f16[i], f16[i]) << inputs[i];
    EXPECT_EQ(stored_bf16[i], bf16[i]) << inputs[i];
  }
  // Payloads whose upper bits are all zero or all one turn into infinity or wrap when rounded.
  for (std::uint32_t nan : {0x7F800001U, 0x7FFFFFFFU, 0xFFFFFFFFU, 0x7FC00000U, 0xFF80FFFFU}) {
    for (KvType type : {KvType::kF16, KvType::kBf16}) {
      const std::uint16_t bits = Convert(type, {FloatOf(nan)})[0];
      EXPECT_GT(bits & 0x7FFF, Infinity(type)) << KvTypeName(type) << " of bits " << nan;
      EXPECT_EQ(bits >> 15, nan >> 31);
    }
  }
}

struct Shape {
  std::int64_t head_dim, head_dim_v, page_size, first, count;
};

float Element(std::int64_t token, std::int64_t d) {
  return static_cast<float>((token * 31 + d * 7) % 251 - 125);  // exact in every type
}

// Each element at the address that kv_layout.h gives, and no other byte of the page changed.
TEST_P(KvRows, WritesRowsWhereTheLayoutSays) {
  const Shape shapes[] = {{1, 1, 16, 0, 1},      {7, 3, 16, 15, 1},    {8, 8, 16, 0, 16},
                          {9, 17, 32, 0, 32},    {15, 16, 32, 5, 27},  {16, 15, 48, 1, 47},
                          {64, 64, 64, 0, 64},   {64, 128, 64, 63, 1}, {80, 80, 64, 17, 30},
                          {128, 64, 64, 30, 20}, {1024, 1, 16, 2, 14}, {97, 1024, 16, 0, 16},
                          {67, 63, 80, 16, 48}};
  for (const Shape& shape : shapes) {
    for (KvType k_type : kTypes) {
      for (KvType v_type : kTypes) {
        SCOPED_TRACE(::testing::Message()
                     << "D " << shape.head_dim << " Dv " << shape.head_dim_v << " first "
                     << shape.first << " count " << shape.count << " k " << KvTypeName(k_type)
                     << " v " << KvTypeName(v_type));
        const KvPageLayout layout = MakeKvPageLayout({1, shape.head_dim, shape.head_dim_v}, k_type,
                                                     v_type, shape.page_size);
        const std::int64_t k_stride = shape.head_dim + 5, v_stride = shape.head_dim_v + 11;
        std::vector<float> k(shape.count * k_stride, NAN), v(shape.count * v_stride, NAN);
        for (std::int64_t i = 0; i < shape.count; ++i) {
          for (std::int64_t d = 0; d < shape.head_dim; ++d)
            k[i * k_stride + d] = Element(shape.first + i, d);
          for (std::int64_t d = 0; d < shape.head_dim_v; ++d)
            v[i * v_stride + d] = -Element(shape.first + i, d);
        }
        // Exactly as long as is read, so that a sanitizer sees one element too many.
        k.resize((shape.count - 1) * k_stride + shape.head_dim);
        v.resize((shape.count - 1) * v_stride + shape.head_dim_v);
        k.shrink_to_fit();
        v.shrink_to_fit();
        std::vector<unsigned char> page(layout.page_bytes, kPoison), expected = page;
        kernels_->store_rows(layout, reinterpret_cast<std::byte*>(page.data()), shape.first,
                             shape.count, k.data(), k_stride, v.data(), v_stride);

        const auto put = [&](KvType type, std::int64_t base_bytes, std::int64_t index,
                             float value) {
          const std::uint32_t bits = BitsOf(value);
          if (type == KvType::kF32)
            return void(std::memcpy(&expected[base_bytes + index * 4], &bits, 4));
          std::uint16_t half = static_cast<std::uint16_t>(bits >> 16);
          if (type == KvType::kF16 && value != 0)  // whole numbers up to 125: exponent and fraction
            half = static_cast<std::uint16_t>((bits >> 16 & 0x8000) +
                                              (((bits & 0x7FFFFFFF) - (112U << 23)) >> 13));
          std::memcpy(&expected[base_bytes + index * 2], &half, 2);
        };
        for (std::int64_t i = 0; i < shape.count; ++i) {
          const std::int64_t s = shape.first + i;
          for (std::int64_t d = 0; d < shape.head_dim; ++d)
            put(k_type, 0, s / 16 * 16 * shape.head_dim + d * 16 + s % 16, Element(s, d));
          for (std::int64_t d = 0; d < shape.head_dim_v; ++d)
            put(v_type, layout.v_offset_bytes, s * layout.v_row + d, -Element(s, d));
        }
        ASSERT_EQ(page, expected);

        std::vector<float> k_row(shape.head_dim + 1, NAN), v_row(shape.head_dim_v + 1, NAN);
        for (std::int64_t s = shape.first; s < shape.first + shape.count; ++s) {
          kernels_->load_row(layout, reinterpret_cast<std::byte*>(page.data()), s, k_row.data(),
                             v_row.data());
          for (std::int64_t d = 0; d < shape.head_dim; ++d) ASSERT_EQ(k_row[d], Element(s, d));
          for (std::int64_t d = 0; d < shape.head_dim_v; ++d) ASSERT_EQ(v_row[d], -Element(s, d));
        }
        EXPECT_TRUE(std::isnan(k_row.back()) && std::isnan(v_row.back()));
      }
    }
  }
}

// Random bit patterns, NaN, infinities and denormals among them, in whole and in partial tiles.
TEST_P(KvRows, EqualsScalarBitForBit) {
  std::mt19937 random(7);
  for (const Shape& shape : {Shape{61, 83, 64, 0, 64}, Shape{128, 64, 64, 3, 50}}) {
    std::vector<float> k(shape.count * shape.head_dim), v(shape.count * shape.head_dim_v);
    for (float& x : k) x = FloatOf(static_cast<std::uint32_t>(random()));
    for (float& x : v) x = FloatOf(static_cast<std::uint32_t>(random()) & 0xBFFFFFFF);
    for (KvType type : kTypes) {
      const KvPageLayout layout =
          MakeKvPageLayout({1, shape.head_dim, shape.head_dim_v}, type, type, shape.page_size);
      std::vector<unsigned char> pages[2];
      const kernels::KvKernels* both[] = {kernels_, KernelsFor(Isa::kScalar).kv};
      for (int i = 0; i < 2; ++i) {
        pages[i].assign(layout.page_bytes, kPoison);
        both[i]->store_rows(layout, reinterpret_cast<std::byte*>(pages[i].data()), shape.first,
                            shape.count, k.data(), shape.head_dim, v.data(), shape.head_dim_v);
      }
      EXPECT_EQ(pages[0], pages[1]) << KvTypeName(type);
    }
  }
}

TEST_P(KvRows, ReadsEveryHalfAndBrainFloat) {
  constexpr std::int64_t kDim = 16;
  for (KvType type : {KvType::kF16, KvType::kBf16}) {
    const KvPageLayout layout = MakeKvPageLayout({1, kDim, kDim}, type, type, 16);
    std::vector<std::uint16_t> page(layout.page_bytes / 2);
    for (std::uint32_t first = 0; first < 0x10000; first += kDim) {
      for (std::uint32_t i = 0; i < kDim; ++i)
        page[layout.v_offset_bytes / 2 + i] = static_cast<std::uint16_t>(first + i);
      float row[kDim];
      kernels_->load_row(layout, reinterpret_cast<std::byte*>(page.data()), 0, nullptr, row);
      for (std::uint32_t i = 0; i < kDim; ++i) {
        const std::uint16_t bits = static_cast<std::uint16_t>(first + i);
        if ((bits & 0x7FFF) > Infinity(type)) {
          ASSERT_TRUE(std::isnan(row[i])) << bits;
        } else if ((bits & 0x7FFF) == Infinity(type)) {
          ASSERT_EQ(row[i], bits & 0x8000 ? -HUGE_VALF : HUGE_VALF);
        } else {
          ASSERT_EQ(row[i], static_cast<float>(ValueOf(type, bits))) << bits;
          ASSERT_EQ(std::signbit(row[i]), bits >> 15 == 1);
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, KvRows, ::testing::Values(Isa::kScalar, Isa::kAvx2, Isa::kAvx512),
                         [](const auto& test) { return std::string(IsaName(test.param)); });

}  // namespace
}  // namespace manyhead
