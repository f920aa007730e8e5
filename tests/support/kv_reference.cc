#include "tests/support/kv_reference.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "runtime/cache/kv_cache_impl.h"

namespace manyhead::testing {
namespace {

using kernels::KvPageLayout;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr std::int64_t kTile = 16, kGroup = 32;

struct Format {
  int mantissa_bits;
  int min_exponent;
  int max_exponent;
};

Format FormatOf(KvType type) {
  return type == KvType::kF16 ? Format{10, -14, 15} : Format{7, -126, 127};
}

/// The distance of neighbours around x.
double Spacing(KvType type, double x) {
  const Format format = FormatOf(type);
  const int exponent = x == 0 ? format.min_exponent : std::max(std::ilogb(x), format.min_exponent);
  return std::ldexp(1.0, exponent - format.mantissa_bits);
}

}  // namespace

std::uint16_t Encode(KvType type, float x) {
  const Format format = FormatOf(type);
  const unsigned sign = std::signbit(x) ? 0x8000U : 0U;
  const unsigned top = static_cast<unsigned>(format.max_exponent) * 2 + 1;  // all ones
  if (std::isnan(x)) return static_cast<std::uint16_t>((top * 2 + 1) << (format.mantissa_bits - 1));
  if (std::isinf(x)) return static_cast<std::uint16_t>(sign | top << format.mantissa_bits);
  if (x == 0) return static_cast<std::uint16_t>(sign);
  const int exponent = std::max(std::ilogb(x), format.min_exponent);
  const auto mantissa =
      static_cast<unsigned>(std::ldexp(std::fabs(double{x}), format.mantissa_bits - exponent));
  const auto biased = static_cast<unsigned>(exponent - format.min_exponent);
  // A normal number's leading one adds 1 to the exponent field.
  return static_cast<std::uint16_t>(sign | ((biased << format.mantissa_bits) + mantissa));
}

namespace {

void Put(KvType type, std::byte* base, std::int64_t index, float x) {
  if (type == KvType::kF32) {
    std::memcpy(base + index * 4, &x, 4);
  } else {
    const std::uint16_t bits = Encode(type, RoundTo(type, x));
    std::memcpy(base + index * 2, &bits, 2);
  }
}

void PutNibble(std::byte* to, bool high, int code) {
  const int kept = std::to_integer<int>(*to) & (high ? 0x0F : 0xF0);
  *to = static_cast<std::byte>(kept | (high ? code << 4 : code));
}

/// A double rounded to f32.
double F32(double x) { return static_cast<float>(x); }

/// The format has no denormal f32 numbers.
double FlushDenormal(double x) { return std::fabs(x) < 0x1p-126 ? 0 : x; }

bool IsQuantized(KvType type) { return type == KvType::kInt8 || type == KvType::kInt4; }

void QuantizeInt8(const float* x, std::int64_t n, QuantizedRow& row) {
  double max = 0;
  bool finite = true;
  for (std::int64_t i = 0; i < n; ++i) {
    finite = finite && std::isfinite(x[i]);
    max = std::max(max, std::fabs(double{x[i]}));
  }
  max = std::min(std::max(max, 0x1p-118), 0x1.fffffp+127);
  row.groups.push_back({finite ? static_cast<float>(max / 127) : kNan, 0});
  for (std::int64_t i = 0; i < n; ++i) {
    const double code = std::nearbyint(F32(double{x[i]} * F32(127 / max)));
    row.codes.push_back(finite ? static_cast<int>(code) : 0);
  }
}

void QuantizeInt4Group(const float* x, std::int64_t n, QuantizedRow& row) {
  const double min = FlushDenormal(*std::min_element(x, x + n)), max = *std::max_element(x, x + n);
  bool held = true;
  for (std::int64_t i = 0; i < n; ++i) held = held && std::fabs(x[i]) <= 65504;  // false of NaN
  if (!held) {
    row.groups.push_back({kNan, kNan});
    row.codes.insert(row.codes.end(), static_cast<std::size_t>(n), 0);
    return;
  }
  // Outwards, so that every element lies between the minimum and 15 scales above it.
  const double grid = Spacing(KvType::kF16, min), low = std::floor(min / grid) * grid + 0.0;
  const double step = FlushDenormal(F32(F32(max - low) / 15)),
               step_grid = Spacing(KvType::kF16, step);
  const double scale = std::ceil(step / step_grid) * step_grid;
  const double inverse = scale == 0 ? 0 : F32(1 / scale);
  row.groups.push_back({static_cast<float>(scale), static_cast<float>(low)});
  for (std::int64_t i = 0; i < n; ++i)
    row.codes.push_back(static_cast<int>(std::nearbyint(F32(F32(x[i] - low) * inverse))));
}

}  // namespace

float RoundTo(KvType type, float x) {
  if (type == KvType::kF32 || !std::isfinite(x) || x == 0) return x;
  const double ulp = Spacing(type, x), rounded = std::nearbyint(double{x} / ulp) * ulp;
  const double limit = std::ldexp(1.0, FormatOf(type).max_exponent + 1);
  return std::fabs(rounded) < limit ? static_cast<float>(rounded) : std::copysign(HUGE_VALF, x);
}

QuantizedRow QuantizeRow(KvType type, const float* x, std::int64_t n) {
  QuantizedRow row;
  if (type == KvType::kInt8) {
    QuantizeInt8(x, n, row);
  } else {
    for (std::int64_t i = 0; i < n; i += kGroup)
      QuantizeInt4Group(x + i, std::min(kGroup, n - i), row);
  }
  return row;
}

std::vector<float> StoredRows(KvType type, const std::vector<float>& x, std::int64_t n) {
  std::vector<float> stored = x;
  if (!IsQuantized(type)) {
    for (float& value : stored) value = RoundTo(type, value);
    return stored;
  }
  const std::int64_t group = type == KvType::kInt8 ? n : kGroup;
  for (std::size_t first = 0; first < x.size(); first += static_cast<std::size_t>(n)) {
    const QuantizedRow row = QuantizeRow(type, &x[first], n);
    for (std::int64_t i = 0; i < n; ++i) {
      const auto& [scale, min] = row.groups[i / group];
      stored[first + i] = static_cast<float>(double{scale} * row.codes[i] + double{min});
    }
  }
  return stored;
}

void PutKey(const KvPageLayout& layout, std::byte* page, std::int64_t slot, const float* k) {
  const std::int64_t D = layout.head_dim, t = slot % kTile;
  std::byte* tile = page + slot / kTile * layout.k_tile_bytes;
  if (!IsQuantized(layout.k_type)) {
    for (std::int64_t d = 0; d < D; ++d) Put(layout.k_type, tile, d * kTile + t, k[d]);
    return;
  }
  const QuantizedRow row = QuantizeRow(layout.k_type, k, D);
  std::byte* scales = tile + layout.k_scale_bytes;
  if (layout.k_type == KvType::kInt8) {
    Put(KvType::kF32, scales, t, row.groups[0].scale);
    for (std::int64_t d = 0; d < D; ++d) tile[d * kTile + t] = static_cast<std::byte>(row.codes[d]);
    return;
  }
  for (std::size_t g = 0; g < row.groups.size(); ++g) {
    Put(KvType::kF16, scales, static_cast<std::int64_t>(g) * 2 * kTile + t, row.groups[g].scale);
    Put(KvType::kF16, scales, (static_cast<std::int64_t>(g) * 2 + 1) * kTile + t,
        row.groups[g].min);
  }
  for (std::int64_t d = 0; d < D; ++d)
    PutNibble(tile + d / 2 * kTile + t, d % 2 == 1, row.codes[d]);
}

void PutValue(const KvPageLayout& layout, std::byte* page, std::int64_t slot, const float* v) {
  const std::int64_t Dv = layout.head_dim_v, t = slot % kTile;
  std::byte* tile = page + layout.v_offset_bytes + slot / kTile * layout.v_tile_bytes;
  if (!IsQuantized(layout.v_type)) {
    for (std::int64_t d = 0; d < Dv; ++d) Put(layout.v_type, tile, t * layout.v_row + d, v[d]);
    return;
  }
  const QuantizedRow row = QuantizeRow(layout.v_type, v, Dv);
  std::byte* scales = tile + layout.v_scale_bytes;
  if (layout.v_type == KvType::kInt8) {
    Put(KvType::kF32, scales, t, row.groups[0].scale);
    for (std::int64_t d = 0; d < Dv; ++d)
      tile[t * layout.v_row + d] = static_cast<std::byte>(row.codes[d]);
    return;
  }
  const auto groups = static_cast<std::int64_t>(row.groups.size());
  for (std::int64_t g = 0; g < groups; ++g) {
    Put(KvType::kF16, scales, (t * groups + g) * 2, row.groups[g].scale);
    Put(KvType::kF16, scales, (t * groups + g) * 2 + 1, row.groups[g].min);
  }
  for (std::int64_t d = 0; d < Dv; ++d)
    PutNibble(tile + (t * groups + d / kGroup) * kGroup / 2 + d % (kGroup / 2),
              d % kGroup >= kGroup / 2, row.codes[d]);
}

namespace {

/// Gives every slot of a page, and every padding lane, the value `poison`.
void Poison(const KvPageLayout& layout, std::byte* page, float poison) {
  // Codes that no row has: -128 as int8, a bit pattern as int4.
  std::memset(page, 0x80, static_cast<std::size_t>(layout.page_bytes));
  const auto fill = [&](KvType type, std::byte* tile, std::int64_t numbers,
                        std::int64_t scale_bytes, std::int64_t tile_bytes) {
    const KvType scale_type = type == KvType::kInt4 ? KvType::kF16 : KvType::kF32;
    std::byte* scales = tile + scale_bytes;
    if (IsQuantized(type)) numbers = (tile_bytes - scale_bytes) / (type == KvType::kInt4 ? 2 : 4);
    for (std::int64_t i = 0; i < numbers; ++i)
      IsQuantized(type) ? Put(scale_type, scales, i, poison) : Put(type, tile, i, poison);
  };
  for (std::int64_t tile = 0; tile < layout.page_size / kTile; ++tile) {
    fill(layout.k_type, page + tile * layout.k_tile_bytes, kTile * layout.head_dim,
         layout.k_scale_bytes, layout.k_tile_bytes);
    fill(layout.v_type, page + layout.v_offset_bytes + tile * layout.v_tile_bytes,
         kTile * layout.v_row, layout.v_scale_bytes, layout.v_tile_bytes);
  }
}

}  // namespace

void PackPages(KvCache& cache, SequenceId sequence, std::int64_t layer, std::int64_t num_kv_heads,
               const std::vector<float>& k_SKD, const std::vector<float>& v_SKD, float poison) {
  for (std::int64_t head = 0; head < num_kv_heads; ++head) {
    const kernels::KvHeadView view = cache.impl().HeadView(sequence, layer, head);
    const KvPageLayout& layout = *view.layout;
    for (std::int64_t s = 0; s < view.length; ++s) {
      std::byte* page = view.pages[s / layout.page_size];
      const std::int64_t slot = s % layout.page_size, row = s * num_kv_heads + head;
      if (slot == 0) Poison(layout, page, poison);
      PutKey(layout, page, slot, &k_SKD[row * layout.head_dim]);
      PutValue(layout, page, slot, &v_SKD[row * layout.head_dim_v]);
    }
  }
}

}  // namespace manyhead::testing
