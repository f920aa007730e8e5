#include <gtest/gtest.h>
#include <xmmintrin.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "manyhead/isa.h"
#include "runtime/cache/page_layout.h"
#include "runtime/platform/dispatch.h"
#include "tests/support/isas.h"
#include "tests/support/kv_reference.h"

namespace manyhead {
namespace {

using kernels::KvPageLayout;
using testing::PutKey;
using testing::PutValue;
using testing::StoredRows;

constexpr KvType kTypes[] = {KvType::kF32, KvType::kF16, KvType::kBf16, KvType::kInt8,
                             KvType::kInt4};
constexpr std::int64_t kHeadDims[] = {1, 3, 16, 17, 31, 32, 33, 40, 64, 80, 100, 128, 256};
constexpr unsigned char kPoison = 0xA5;

using Page = std::vector<unsigned char>;

std::byte* BytesOf(Page& page) { return reinterpret_cast<std::byte*>(page.data()); }

/// Normal numbers with the mean and deviation that a head's channels may have, by Box and Muller.
std::vector<float> NormalNumbers(std::int64_t n, std::uint32_t seed) {
  std::mt19937 bits(seed);
  const auto uniform = [&] { return (static_cast<double>(bits()) + 0.5) * 0x1p-32; };
  std::vector<float> x(static_cast<std::size_t>(n));
  for (float& value : x)
    value = static_cast<float>(std::sqrt(-2 * std::log(uniform())) *
                               std::cos(6.283185307179586 * uniform()));
  return x;
}

class KvQuant : public ::testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    MANYHEAD_SKIP_UNLESS_CPU_RUNS(GetParam());
    kernels_ = KernelsFor(GetParam()).kv;
  }

  /// Returns `row` as it reads back once stored, which is the same for keys and values.
  std::vector<float> Stored(KvType type, const std::vector<float>& row) {
    const auto n = static_cast<std::int64_t>(row.size());
    const KvPageLayout layout = MakeKvPageLayout({1, n, n}, type, type, 16);
    Page page(layout.page_bytes, kPoison);
    kernels_->store_rows(layout, BytesOf(page), 5, 1, row.data(), n, row.data(), n);
    std::vector<float> k(row.size()), v(row.size());
    kernels_->load_row(layout, BytesOf(page), 5, k.data(), v.data());
    EXPECT_EQ(std::memcmp(k.data(), v.data(), k.size() * sizeof(float)), 0);
    return k;
  }

  const kernels::KvKernels* kernels_ = nullptr;
};

/// Sets the nibbles beyond the last element of a token to 0: they share the token's bytes.
void ClearPadding(const KvPageLayout& layout, Page& page, std::int64_t slot) {
  const std::int64_t tile = slot / 16, lane = slot % 16;
  if (layout.k_type == KvType::kInt4 && layout.head_dim % 2 == 1)
    page[tile * layout.k_tile_bytes + layout.head_dim / 2 * 16 + lane] = 0;
  if (layout.v_type == KvType::kInt4) {
    const std::int64_t row = (layout.head_dim_v + 31) / 32 * 16;
    std::memset(&page[layout.v_offset_bytes + tile * layout.v_tile_bytes + lane * row], 0,
                static_cast<std::size_t>(row));
  }
}

struct Range {
  std::int64_t page_size, first, count;
};

/// A page and its input, as the kernels and as the reference see it.
struct Stores {
  Page page, expected;
  std::vector<float> k, v;
};

Stores StoreBoth(const kernels::KvKernels& kernels, const KvPageLayout& layout, const Range& range,
                 std::vector<float> k, std::vector<float> v) {
  Stores both{Page(layout.page_bytes, kPoison), Page(layout.page_bytes, kPoison), std::move(k),
              std::move(v)};
  // Guards between rows, and memory exactly as long as is read, for sanitizers.
  const std::int64_t D = layout.head_dim, Dv = layout.head_dim_v;
  std::vector<float> k_rows, v_rows;
  for (std::int64_t i = 0; i < range.count; ++i) {
    if (i > 0) k_rows.insert(k_rows.end(), 3, NAN);
    if (i > 0) v_rows.insert(v_rows.end(), 5, NAN);
    k_rows.insert(k_rows.end(), &both.k[i * D], &both.k[i * D] + D);
    v_rows.insert(v_rows.end(), &both.v[i * Dv], &both.v[i * Dv] + Dv);
  }
  k_rows.shrink_to_fit();
  v_rows.shrink_to_fit();
  kernels.store_rows(layout, BytesOf(both.page), range.first, range.count, k_rows.data(), D + 3,
                     v_rows.data(), Dv + 5);
  for (std::int64_t i = 0; i < range.count; ++i) {
    ClearPadding(layout, both.expected, range.first + i);
    PutKey(layout, BytesOf(both.expected), range.first + i, &both.k[i * D]);
    PutValue(layout, BytesOf(both.expected), range.first + i, &both.v[i * Dv]);
  }
  return both;
}

// Each code and scale where kv_layout.h puts it, and no other byte of the page changed.
TEST_P(KvQuant, WritesRowsWhereTheLayoutSays) {
  for (const KvType k_type : kTypes) {
    for (const KvType v_type : kTypes) {
      for (const std::int64_t D : kHeadDims) {
        const std::int64_t Dv = kHeadDims[(D + 5) % std::size(kHeadDims)];
        for (const Range& range : {Range{16, 0, 16}, Range{48, 3, 40}, Range{32, 31, 1}}) {
          SCOPED_TRACE(::testing::Message() << "D " << D << " Dv " << Dv << " first " << range.first
                                            << " count " << range.count << " k "
                                            << KvTypeName(k_type) << " v " << KvTypeName(v_type));
          const KvPageLayout layout = MakeKvPageLayout({1, D, Dv}, k_type, v_type, range.page_size);
          const Stores both = StoreBoth(*kernels_, layout, range, NormalNumbers(range.count * D, 1),
                                        NormalNumbers(range.count * Dv, 2));
          ASSERT_EQ(both.page, both.expected);

          Page page = both.page;
          std::vector<float> k_row(D + 1, NAN), v_row(Dv + 1, NAN);
          const std::vector<float> k = StoredRows(k_type, both.k, D);
          const std::vector<float> v = StoredRows(v_type, both.v, Dv);
          for (std::int64_t i = 0; i < range.count; ++i) {
            kernels_->load_row(layout, BytesOf(page), range.first + i, k_row.data(), v_row.data());
            ASSERT_TRUE(std::equal(k_row.begin(), k_row.end() - 1, &k[i * D]));
            ASSERT_TRUE(std::equal(v_row.begin(), v_row.end() - 1, &v[i * Dv]));
          }
          ASSERT_TRUE(std::isnan(k_row.back()) && std::isnan(v_row.back()));
        }
      }
    }
  }
}

// A token's bytes do not depend on how it came: in any order, alone or with a tile.
TEST_P(KvQuant, RowsAloneEqualTiles) {
  for (const KvType type : kTypes) {
    for (const std::int64_t D : kHeadDims) {
      const KvPageLayout layout = MakeKvPageLayout({1, D, D}, type, type, 32);
      const std::vector<float> k = NormalNumbers(32 * D, 3), v = NormalNumbers(32 * D, 4);
      Page whole(layout.page_bytes, kPoison), alone = whole, parts = whole;
      kernels_->store_rows(layout, BytesOf(whole), 0, 32, k.data(), D, v.data(), D);
      for (std::int64_t i = 0; i < 32; ++i) {
        const std::int64_t s = i * 13 % 32;
        kernels_->store_rows(layout, BytesOf(alone), s, 1, &k[s * D], D, &v[s * D], D);
      }
      for (const auto& [first, count] : {std::pair{20, 12}, std::pair{7, 13}, std::pair{0, 7}})
        kernels_->store_rows(layout, BytesOf(parts), first, count, &k[first * D], D, &v[first * D],
                             D);
      EXPECT_EQ(alone, whole) << KvTypeName(type) << " D " << D;
      EXPECT_EQ(parts, whole) << KvTypeName(type) << " D " << D;
    }
  }
}

// Random bit patterns, NaN, infinities and denormals among them, and ranges of every size: the
// bytes are those of the reference, hence equal on every instruction set, whether denormals are
// flushed, as threads of a region do, or not.
TEST_P(KvQuant, KeepsEveryBitOfAnyNumbers) {
  std::mt19937 engine(7);
  const auto random = [&] { return static_cast<std::uint32_t>(engine()); };
  const auto from_bits = [](std::uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
  };
  for (int round = 0; round < 40; ++round) {
    const std::int64_t D = kHeadDims[random() % std::size(kHeadDims)], count = 19;
    std::vector<float> x(count * D);
    for (std::int64_t i = 0; i < count; ++i) {
      // Exponents of a row within a band of its own; sometimes any bits at all.
      const std::uint32_t base = random() % 250, width = 1 + random() % 6, offset = random() % 4;
      for (std::int64_t d = 0; d < D; ++d) {
        std::uint32_t bits = random();
        if (offset != 0) bits = (bits & 0x807FFFFFU) | (base + bits / 8 % width) << 23;
        x[i * D + d] = from_bits(bits);
        if (random() % 16 == 0) x[i * D + d] = random() % 2 ? 0.0F : -0.0F;
      }
    }
    for (const KvType type : {KvType::kInt8, KvType::kInt4}) {
      const KvPageLayout layout = MakeKvPageLayout({1, D, D}, type, type, 32);
      const unsigned saved = _mm_getcsr();
      for (const unsigned mode : {saved, saved | 0x8040U}) {
        _mm_setcsr(mode);
        Page page(layout.page_bytes, kPoison);
        kernels_->store_rows(layout, BytesOf(page), 5, count, x.data(), D, x.data(), D);
        _mm_setcsr(saved);
        const Stores both = StoreBoth(*kernels_, layout, {32, 5, count}, x, x);
        ASSERT_EQ(both.page, both.expected) << KvTypeName(type) << " D " << D << " round " << round;
        ASSERT_EQ(page, both.expected) << "mode " << mode;
      }
    }
  }
}

// Groups of nothing but zeros of both signs and denormals: the scale and minimum are +0, flushed or
// not, whichever element a vector's maximum came from.
TEST_P(KvQuant, KeepsEveryBitOfZerosAndDenormals) {
  const float numbers[] = {0.0F, -0.0F, 1e-40F, -1e-40F, 1e-45F, -1e-45F, FLT_MIN, -FLT_MIN};
  std::mt19937 engine(11);
  for (std::size_t kinds = 1; kinds <= std::size(numbers); ++kinds) {
    for (std::size_t first = 0; first < std::size(numbers); ++first) {
      std::vector<float> x(16 * 70);
      for (float& value : x) value = numbers[(first + engine() % kinds) % std::size(numbers)];
      for (const KvType type : {KvType::kInt8, KvType::kInt4}) {
        const KvPageLayout layout = MakeKvPageLayout({1, 70, 70}, type, type, 16);
        const Stores both = StoreBoth(*kernels_, layout, {16, 0, 16}, x, x);
        ASSERT_EQ(both.page, both.expected) << KvTypeName(type) << " first " << first;
        const unsigned saved = _mm_getcsr();
        _mm_setcsr(saved | 0x8040U);
        Page page(layout.page_bytes, kPoison);
        kernels_->store_rows(layout, BytesOf(page), 0, 16, x.data(), 70, x.data(), 70);
        _mm_setcsr(saved);
        ASSERT_EQ(page, both.expected) << KvTypeName(type) << " first " << first;
      }
    }
  }
}

TEST_P(KvQuant, NotFiniteReadsBackAsNan) {
  for (const float bad : {NAN, -NAN, HUGE_VALF, -HUGE_VALF}) {
    for (const std::int64_t at : {0, 3, 31, 32, 63, 64, 69}) {
      std::vector<float> row = NormalNumbers(70, 5);
      row[at] = bad;
      for (const float x : Stored(KvType::kInt8, row)) EXPECT_TRUE(std::isnan(x));
      const std::vector<float> int4 = Stored(KvType::kInt4, row);
      for (std::int64_t d = 0; d < 70; ++d)
        EXPECT_EQ(std::isnan(int4[d]), d / 32 == at / 32) << bad << " at " << at << ": " << d;
    }
  }
}

TEST_P(KvQuant, HoldsWhatF16CannotOnlyInInt8) {
  std::vector<float> row = {1.0F, -2.0F, 65504.0F, 3.0F};
  EXPECT_NEAR(Stored(KvType::kInt4, row)[2], 65504.0F, 65506.0F / 30);
  for (const float big :
       {std::nextafter(65504.0F, HUGE_VALF), -65505.0F, 1e9F, FLT_MAX, -FLT_MAX}) {
    row[2] = big;
    for (const float x : Stored(KvType::kInt4, row)) EXPECT_TRUE(std::isnan(x)) << big;
    const std::vector<float> int8 = Stored(KvType::kInt8, row);
    EXPECT_NEAR(int8[2] / big, 1, 1e-6) << big;
    EXPECT_EQ(int8[0], 0);
  }
}

TEST_P(KvQuant, ZerosAndConstantsAreExact) {
  for (const std::int64_t D : kHeadDims) {
    for (const KvType type : {KvType::kInt8, KvType::kInt4})
      for (const float zero : {0.0F, -0.0F})
        for (const float x : Stored(type, std::vector<float>(D, zero)))
          EXPECT_TRUE(x == 0 && !std::signbit(x));
    for (const float c : {1.0F, -3.5F, 6.1e-5F, -65504.0F}) {
      for (const float x : Stored(KvType::kInt8, std::vector<float>(D, c)))
        EXPECT_NEAR(x / c, 1, 0x1p-22);
      // Between f16 numbers, the scale makes up for the minimum.
      for (const float x : Stored(KvType::kInt4, std::vector<float>(D, c)))
        EXPECT_NEAR(x, c, std::max(std::fabs(c) * 0x1p-19F, 0x1p-25F));
    }
  }
}

// |x - x'| <= amax / 254, the rounding of one f32 product, and what keeps scales normal numbers.
TEST_P(KvQuant, Int8ErrorIsWithinHalfAScale) {
  for (const std::int64_t D : kHeadDims) {
    for (const float size : {1e-45F, 1e-40F, 1e-36F, 1e-30F, 1e-3F, 1.0F, 400.0F, 1e30F, 7e37F}) {
      std::vector<float> row = NormalNumbers(D, static_cast<std::uint32_t>(D));
      double max = 0;
      for (float& x : row) max = std::max(max, std::fabs(double{x *= size}));
      const std::vector<float> stored = Stored(KvType::kInt8, row);
      const double bound = std::max(max, 0x1p-118) / 254 * (1 + 1e-4);
      for (std::int64_t d = 0; d < D; ++d)
        ASSERT_LE(std::fabs(double{stored[d]} - double{row[d]}), bound) << "size " << size;
    }
  }
}

// |x - x'| <= s / 2, where 15 s is the range with its minimum rounded down to f16 and s rounded up
// to f16: at most (max - min + ulp(min)) / 30, plus 2^-10 of that or a denormal's 2^-24.
TEST_P(KvQuant, Int4ErrorIsWithinHalfAScale) {
  for (const std::int64_t D : kHeadDims) {
    for (const float size : {1e-40F, 1e-9F, 1e-6F, 1e-4F, 1e-2F, 1.0F, 400.0F, 1e4F}) {
      for (const float mean : {0.0F, 1.0F, -30.0F}) {
        std::vector<float> row = NormalNumbers(D, static_cast<std::uint32_t>(D));
        for (float& x : row) x = (x + mean) * size;
        const std::vector<float> stored = Stored(KvType::kInt4, row);
        for (std::int64_t d = 0; d < D; ++d) {
          const auto group = row.begin() + d / 32 * 32;
          const auto end = group + std::min<std::int64_t>(32, D - d / 32 * 32);
          const double min = *std::min_element(group, end), max = *std::max_element(group, end);
          if (std::fabs(min) > 65504 || std::fabs(max) > 65504) continue;
          const double ulp = std::max(std::fabs(min) * 0x1p-10, 0x1p-24);
          const double bound = (max - min + ulp) / 30 * (1 + 0x1p-10) + 0x1p-25;
          const double rounding = std::max(std::fabs(min), std::fabs(max)) * 0x1p-22;
          ASSERT_LE(std::fabs(double{stored[d]} - double{row[d]}), bound + rounding)
              << "size " << size << " mean " << mean;
        }
      }
    }
  }
}

// The table in manyhead/types.h: root mean square error over that of the numbers, for normally
// distributed heads of 64, 128 and 256 elements.
TEST_P(KvQuant, RelativeErrorsAreThoseDocumented) {
  const struct {
    KvType type;
    double error[3];
  } rows[] = {{KvType::kF32, {0, 0, 0}},
              {KvType::kF16, {2.1e-4, 2.1e-4, 2.1e-4}},
              {KvType::kBf16, {1.66e-3, 1.66e-3, 1.66e-3}},
              {KvType::kInt8, {5.7e-3, 6.4e-3, 6.9e-3}},
              {KvType::kInt4, {7.7e-2, 7.7e-2, 7.7e-2}}};
  const std::int64_t dims[] = {64, 128, 256};
  for (const auto& row : rows) {
    for (int i = 0; i < 3; ++i) {
      double error = 0, size = 0;
      for (std::uint32_t seed = 0; seed < 200; ++seed) {
        const std::vector<float> x = NormalNumbers(dims[i], seed);
        const std::vector<float> y = Stored(row.type, x);
        for (std::size_t d = 0; d < x.size(); ++d) {
          error += (double{y[d]} - double{x[d]}) * (double{y[d]} - double{x[d]});
          size += double{x[d]} * double{x[d]};
        }
      }
      const double relative = std::sqrt(error / size);
      EXPECT_NEAR(relative, row.error[i], row.error[i] * 0.02)
          << KvTypeName(row.type) << " D " << dims[i];
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, KvQuant, ::testing::ValuesIn(kEveryIsa), IsaTestName);

}  // namespace
}  // namespace manyhead
