#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/kv_layout.h"
#include "kernels/simd.inl.h"

/// Converts rows to int8 and int4, and stores them in a page.
///
/// Every step is one f32 operation that no instruction set may fuse or reorder (a product followed
/// only by rounding, maxima), so that all of them store the same bits. A row is read twice from
/// cache, for its range and for its quantised values; these are written in blocks of 16 bytes per
/// token, which a whole tile of keys transposes in registers.

namespace manyhead::kernels {
namespace {  // one private copy per instruction set  NOLINT(google-build-namespaces)

constexpr int kCodeBlock = 16;  ///< quantised bytes of one token that are made at a time
constexpr int kGroupVectors = static_cast<int>(kKvGroup) / Simd::kLanes;
constexpr std::uint16_t kF16Nan = 0x7e00;

/// Returns the largest f16 that is <= x, for |x| <= 65504.
MANYHEAD_INLINE F16 NarrowDown(float x) {
#ifdef __AVX2__
  return F16{_cvtss_sh(x, _MM_FROUND_TO_NEG_INF)};
#else
  F16 half;
  Narrow(x, &half);
  if (Widen(half) <= x) return half;
  return F16{static_cast<std::uint16_t>(x < 0 ? half.bits + 1 : half.bits - 1)};
#endif
}

/// Returns the least f16 that is >= x, for 0 <= x < 65504.
MANYHEAD_INLINE F16 NarrowUp(float x) {
#ifdef __AVX2__
  return F16{_cvtss_sh(x, _MM_FROUND_TO_POS_INF)};
#else
  F16 half;
  Narrow(x, &half);
  return F16{static_cast<std::uint16_t>(Widen(half) < x ? half.bits + 1 : half.bits)};
#endif
}

/// Stores the low bytes of whole numbers in [-128, 255].
MANYHEAD_INLINE void StoreBytes(Simd::F x, std::uint8_t* to) {
#if defined(__AVX512F__)
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(x)));
#elif defined(__AVX2__)
  const __m256i bytes = _mm256_shuffle_epi8(_mm256_cvtps_epi32(x), _mm256_set1_epi32(0x0c080400));
  const __m256i halves =
      _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 0, 4, 0, 4, 0, 4));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm256_castsi256_si128(halves));
#else
  for (int i = 0; i < Simd::kLanes; ++i) to[i] = static_cast<std::uint8_t>(static_cast<int>(x[i]));
#endif
}

/// Replaces denormals by 0, as MXCSR may already have done, so that they are 0 in every mode; -0
/// becomes 0 too, since either of two zeros may win a maximum.
MANYHEAD_INLINE float FlushDenormal(float x) { return x > -0x1p-126F && x < 0x1p-126F ? 0.0F : x; }

/// The conversion of a row to int8: x = scale * q.
struct Int8Scale {
  float scale;
  float inverse;  ///< q = x * inverse, rounded
};

/// Returns the scale of a row. A row of zeros becomes zeros. The scale of tiny rows stays a normal
/// number and its inverse finite, which costs at most 2^-118 / 254, and turns denormal elements
/// into 0 whether or not MXCSR flushes them; the scale of huge rows keeps 127 * scale finite.
inline Int8Scale ScaleOfRow(const float* x, std::int64_t n) {
  Simd::F max = Simd::Set(0x1p-118F), zeros = Simd::Zero();
  for (std::int64_t i = 0; i < n; i += Simd::kLanes) {
    const std::int64_t left = n - i;
    const Simd::F y =
        left >= Simd::kLanes ? Simd::Load(x + i) : Simd::LoadTail(x + i, static_cast<int>(left));
    max = Simd::Max(Simd::Max(y, Simd::Zero() - y), max);
    zeros = Simd::Fma(y, Simd::Zero(), zeros);  // NaN from the first element on that is not finite
  }
  if (Simd::ReduceAdd(zeros) != 0) return {FloatOf(0x7fc00000U), 0};
  const float bound = Simd::ReduceMax(Simd::Min(max, Simd::Set(0x1.fffffp+127F)));
  return {bound / 127, 127 / bound};
}

/// Quantises n <= 16 elements to int8.
inline void Int8Codes(const float* x, std::int64_t n, const Int8Scale& scale, std::uint8_t* codes) {
  if (scale.inverse == 0) {
    std::memset(codes, 0, kCodeBlock);
    return;
  }
  float padded[kCodeBlock] = {};
  if (n < kCodeBlock) {
    std::memcpy(padded, x, static_cast<std::size_t>(n) * sizeof(float));
    x = padded;
  }
  const Simd::F inverse = Simd::Set(scale.inverse);
  for (int i = 0; i < kCodeBlock; i += Simd::kLanes)
    StoreBytes(Simd::Round(Simd::Load(x + i) * inverse), codes + i);
}

/// A group of up to 32 elements as int4: x = scale * q + min.
struct Int4Group {
  F16 scale;
  F16 min;
  Simd::F codes[kGroupVectors];
};

/// Quantises a group. The minimum is rounded down and the scale up, so that each element lies
/// between two quantised values: the error is at most half a scale, however f16 rounds them.
inline Int4Group QuantizeGroup(const float* x, std::int64_t n) {
  float padded[kKvGroup];
  if (n < kKvGroup) {
    for (std::int64_t i = 0; i < kKvGroup; ++i) padded[i] = x[i < n ? i : 0];
    x = padded;
  }
  Simd::F y[kGroupVectors];
  for (int i = 0; i < kGroupVectors; ++i) y[i] = Simd::Load(x + i * Simd::kLanes);
  Simd::F high = y[0], negated_low = Simd::Zero() - y[0], zeros = y[0] * Simd::Zero();
  for (int i = 1; i < kGroupVectors; ++i) {
    high = Simd::Max(y[i], high);
    negated_low = Simd::Max(Simd::Zero() - y[i], negated_low);
    zeros = Simd::Fma(y[i], Simd::Zero(), zeros);
  }
  const float max = Simd::ReduceMax(high), min = -Simd::ReduceMax(negated_low);
  Int4Group group;
  if (Simd::ReduceAdd(zeros) != 0 || min < -65504.0F || max > 65504.0F) {
    group.scale.bits = group.min.bits = kF16Nan;
    for (Simd::F& codes : group.codes) codes = Simd::Zero();
    return group;
  }
  group.min = NarrowDown(FlushDenormal(min));
  const float low = Widen(group.min);
  group.scale = NarrowUp(FlushDenormal((max - low) / 15));
  const float step = Widen(group.scale);
  const Simd::F offset = Simd::Set(low), inverse = Simd::Set(step > 0 ? 1 / step : 0);
  for (int i = 0; i < kGroupVectors; ++i) group.codes[i] = Simd::Round((y[i] - offset) * inverse);
  if (n < kKvGroup) {  // padding nibbles are 0
    for (int i = 0; i < kGroupVectors; ++i) {
      const std::int64_t left = n - i * Simd::kLanes;
      const int lanes = static_cast<int>(left < 0 ? 0 : left > Simd::kLanes ? Simd::kLanes : left);
      group.codes[i] = Simd::Select(Simd::FirstLanes(lanes), group.codes[i], Simd::Zero());
    }
  }
  return group;
}

/// Packs two values a byte, 2i low and 2i + 1 high, the order of keys.
inline void PackNeighbours(const Simd::F (&codes)[kGroupVectors], std::uint8_t* bytes) {
  std::uint8_t single[kKvGroup];
  for (int i = 0; i < kGroupVectors; ++i) StoreBytes(codes[i], single + i * Simd::kLanes);
#ifdef __AVX2__
  const __m128i weights = _mm_set1_epi16(0x1001);
  const __m128i* pairs = reinterpret_cast<const __m128i*>(single);
  const __m128i low = _mm_maddubs_epi16(_mm_loadu_si128(pairs), weights);
  const __m128i high = _mm_maddubs_epi16(_mm_loadu_si128(pairs + 1), weights);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(bytes), _mm_packus_epi16(low, high));
#else
  for (int i = 0; i < kCodeBlock; ++i)
    bytes[i] = static_cast<std::uint8_t>(single[2 * i] | single[2 * i + 1] << 4);
#endif
}

/// Packs two values a byte, i low and i + 16 high, the order of values.
inline void PackHalves(const Simd::F (&codes)[kGroupVectors], std::uint8_t* bytes) {
  for (int i = 0; i < kGroupVectors / 2; ++i)
    StoreBytes(Simd::Fma(codes[i + kGroupVectors / 2], Simd::Set(16), codes[i]),
               bytes + i * Simd::kLanes);
}

/// Computes tile[c * 16 + t] = codes[t][c].
inline void StoreCodeTile(const std::uint8_t (&codes)[kKvTile][kCodeBlock], std::int64_t columns,
                          std::uint8_t* tile) {
#ifdef __AVX2__
  // An element's row and column are four bits each; each round rotates the eight bits by one.
  __m128i m[kKvTile], shuffled[kKvTile];
  Unroll<kKvTile>([&]<int t>() MANYHEAD_INLINE_LAMBDA {
    m[t] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes[t]));
  });
  Unroll<2>([&]<int>() MANYHEAD_INLINE_LAMBDA {
    constexpr int kHalf = kKvTile / 2;
    Unroll<kHalf>([&]<int i>() MANYHEAD_INLINE_LAMBDA {
      shuffled[2 * i] = _mm_unpacklo_epi8(m[i], m[i + kHalf]);
      shuffled[2 * i + 1] = _mm_unpackhi_epi8(m[i], m[i + kHalf]);
    });
    Unroll<kHalf>([&]<int i>() MANYHEAD_INLINE_LAMBDA {
      m[2 * i] = _mm_unpacklo_epi8(shuffled[i], shuffled[i + kHalf]);
      m[2 * i + 1] = _mm_unpackhi_epi8(shuffled[i], shuffled[i + kHalf]);
    });
  });
  Unroll<kKvTile>([&]<int c>() MANYHEAD_INLINE_LAMBDA {
    if (c < columns) _mm_storeu_si128(reinterpret_cast<__m128i*>(tile + c * kKvTile), m[c]);
  });
#else
  for (std::int64_t c = 0; c < columns; ++c)
    for (std::int64_t t = 0; t < kKvTile; ++t) tile[c * kKvTile + t] = codes[t][c];
#endif
}

/// Stores the quantised values of `count` tokens in the lanes from `lane` on.
inline void StoreCodes(const std::uint8_t (&codes)[kKvTile][kCodeBlock], std::int64_t lane,
                       std::int64_t count, std::int64_t columns, std::uint8_t* tile) {
  if (count == kKvTile) return StoreCodeTile(codes, columns, tile);
  for (std::int64_t i = 0; i < count; ++i)
    for (std::int64_t c = 0; c < columns; ++c) tile[c * kKvTile + lane + i] = codes[i][c];
}

/// Stores the keys of the tokens [lane, lane + count) of a tile.
inline void StoreInt8Keys(const KvPageLayout& layout, std::byte* tile, std::int64_t lane,
                          std::int64_t count, const float* k, std::int64_t stride) {
  Int8Scale scales[kKvTile];
  float* stored = reinterpret_cast<float*>(tile + layout.k_scale_bytes) + lane;
  for (std::int64_t i = 0; i < count; ++i) {
    scales[i] = ScaleOfRow(k + i * stride, layout.head_dim);
    stored[i] = scales[i].scale;
  }
  std::uint8_t codes[kKvTile][kCodeBlock];
  std::uint8_t* to = reinterpret_cast<std::uint8_t*>(tile);
  for (std::int64_t d = 0; d < layout.head_dim; d += kCodeBlock) {
    const std::int64_t left = layout.head_dim - d, n = left < kCodeBlock ? left : kCodeBlock;
    for (std::int64_t i = 0; i < count; ++i) Int8Codes(k + i * stride + d, n, scales[i], codes[i]);
    StoreCodes(codes, lane, count, n, to + d * kKvTile);
  }
}

inline void StoreInt4Keys(const KvPageLayout& layout, std::byte* tile, std::int64_t lane,
                          std::int64_t count, const float* k, std::int64_t stride) {
  std::uint8_t codes[kKvTile][kCodeBlock];
  std::uint8_t* to = reinterpret_cast<std::uint8_t*>(tile);
  F16* scales = reinterpret_cast<F16*>(tile + layout.k_scale_bytes) + lane;
  for (std::int64_t d = 0; d < layout.head_dim; d += kKvGroup) {
    const std::int64_t left = layout.head_dim - d, n = left < kKvGroup ? left : kKvGroup;
    for (std::int64_t i = 0; i < count; ++i) {
      const Int4Group group = QuantizeGroup(k + i * stride + d, n);
      PackNeighbours(group.codes, codes[i]);
      scales[i] = group.scale;
      scales[kKvTile + i] = group.min;
    }
    StoreCodes(codes, lane, count, (n + 1) / 2, to + d / 2 * kKvTile);
    scales += 2 * kKvTile;
  }
}

/// Stores the value of one token of a tile.
inline void StoreInt8Value(const KvPageLayout& layout, std::byte* tile, std::int64_t lane,
                           const float* v) {
  const Int8Scale scale = ScaleOfRow(v, layout.head_dim_v);
  reinterpret_cast<float*>(tile + layout.v_scale_bytes)[lane] = scale.scale;
  std::uint8_t* to = reinterpret_cast<std::uint8_t*>(tile) + lane * layout.v_row;
  std::int64_t d = 0;
  for (; d + kCodeBlock <= layout.head_dim_v; d += kCodeBlock)
    Int8Codes(v + d, kCodeBlock, scale, to + d);
  if (const std::int64_t left = layout.head_dim_v - d; left > 0) {
    std::uint8_t codes[kCodeBlock];
    Int8Codes(v + d, left, scale, codes);
    std::memcpy(to + d, codes, static_cast<std::size_t>(left));
  }
}

inline void StoreInt4Value(const KvPageLayout& layout, std::byte* tile, std::int64_t lane,
                           const float* v) {
  const std::int64_t groups = (layout.head_dim_v + kKvGroup - 1) / kKvGroup;
  std::uint8_t* to = reinterpret_cast<std::uint8_t*>(tile) + lane * groups * kCodeBlock;
  F16* scales = reinterpret_cast<F16*>(tile + layout.v_scale_bytes) + lane * groups * 2;
  for (std::int64_t g = 0; g < groups; ++g) {
    const std::int64_t left = layout.head_dim_v - g * kKvGroup;
    const Int4Group group = QuantizeGroup(v + g * kKvGroup, left < kKvGroup ? left : kKvGroup);
    PackHalves(group.codes, to + g * kCodeBlock);
    scales[2 * g] = group.scale;
    scales[2 * g + 1] = group.min;
  }
}

/// Reads a row with plain code on every instruction set: it serves inspection, not attention.
inline void LoadInt8Row(const std::byte* codes, std::int64_t stride, float scale, std::int64_t n,
                        float* to) {
  for (std::int64_t i = 0; i < n; ++i)
    to[i] = scale * static_cast<float>(static_cast<std::int8_t>(codes[i * stride]));
}

/// Widens one int4 value. The product with its scale fits f32, so it is the same whether fused or
/// not.
MANYHEAD_INLINE float FromInt4(std::byte two, bool high, F16 scale, F16 min) {
  const int code = high ? std::to_integer<int>(two) >> 4 : std::to_integer<int>(two) & 15;
  return Widen(scale) * static_cast<float>(code) + Widen(min);
}

inline void LoadInt4Key(const KvPageLayout& layout, const std::byte* tile, std::int64_t lane,
                        float* k) {
  const F16* scales = reinterpret_cast<const F16*>(tile + layout.k_scale_bytes) + lane;
  for (std::int64_t d = 0; d < layout.head_dim; ++d) {
    const F16* group = scales + d / kKvGroup * 2 * kKvTile;
    k[d] = FromInt4(tile[d / 2 * kKvTile + lane], d % 2 == 1, group[0], group[kKvTile]);
  }
}

inline void LoadInt4Value(const KvPageLayout& layout, const std::byte* tile, std::int64_t lane,
                          float* v) {
  const std::int64_t groups = (layout.head_dim_v + kKvGroup - 1) / kKvGroup;
  const std::byte* codes = tile + lane * groups * kCodeBlock;
  const F16* scales = reinterpret_cast<const F16*>(tile + layout.v_scale_bytes) + lane * groups * 2;
  for (std::int64_t d = 0; d < layout.head_dim_v; ++d) {
    const std::int64_t g = d / kKvGroup, i = d % kKvGroup;
    v[d] = FromInt4(codes[g * kCodeBlock + i % kCodeBlock], i >= kCodeBlock, scales[2 * g],
                    scales[2 * g + 1]);
  }
}

}  // namespace
}  // namespace manyhead::kernels
