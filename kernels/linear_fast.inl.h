#pragma once

#include "kernels/linear_blocks.inl.h"
#include "kernels/linear_kernels.h"

/// Computes the product with int8 activations: dot products of unsigned quants and signed
/// activations in integers, scaled once per block. The terms of a quant's offset and of a block's
/// minimum are sums over activations, which are computed beforehand.
///
/// Integer parts are exact: 2 * 63 * 127 fits the 16 bits of a pair of products, and so does
/// 2 * 128 * 127 of Q8_0; a block of 256 with 8-bit scales stays below 2^26.

namespace manyhead::kernels {
namespace {  // NOLINT(google-build-namespaces): one private copy per instruction set

inline constexpr int kFastRowsAtOnce = 4;

/// Rounds `kVectors` * 8 activations with one scale.
template <int kVectors>
MANYHEAD_INLINE void RoundBlock(const float* x, std::int8_t* q, float* scale) {
  const __m256i magnitude_bits = _mm256_set1_epi32(0x7fffffff);
  // As integers, NaN and infinity have the largest magnitudes, so one maximum finds them all.
  __m256i largest = _mm256_setzero_si256();
  for (int v = 0; v < kVectors; ++v)
    largest = _mm256_max_epi32(largest, _mm256_and_si256(magnitude_bits, Load256(x + 8 * v)));
  __m128i top =
      _mm_max_epi32(_mm256_castsi256_si128(largest), _mm256_extracti128_si256(largest, 1));
  top = _mm_max_epi32(top, _mm_shuffle_epi32(top, 0x4e));
  top = _mm_max_epi32(top, _mm_shuffle_epi32(top, 0xb1));
  const float magnitude = _mm_cvtss_f32(_mm_castsi128_ps(top));
  if (!(magnitude >= 0x1p-100F && magnitude <= __FLT_MAX__)) {
    *scale = _mm_cvtsi128_si32(top) >= 0x7f800000 ? __builtin_nanf("") : 0.0F;
    for (int v = 0; v < kVectors / 4; ++v)
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(q + 32 * v), _mm256_setzero_si256());
    return;
  }
  *scale = magnitude / 127;
  const __m256 inverse = _mm256_set1_ps(127 / magnitude);
  for (int v = 0; v < kVectors; v += 4) {
    const auto round = [&](int i) {
      return _mm256_cvtps_epi32(_mm256_mul_ps(inverse, _mm256_loadu_ps(x + 8 * (v + i))));
    };
    const __m256i packed = _mm256_packs_epi16(_mm256_packs_epi32(round(0), round(1)),
                                              _mm256_packs_epi32(round(2), round(3)));
    _mm256_storeu_si256(
        reinterpret_cast<__m256i*>(q + 8 * v),
        _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)));
  }
}

/// Computes the sums of the first and the second 16 of 32 int8 numbers.
inline void SumHalves(const std::int8_t* q, int* first, int* second) {
  const __m256i biased = _mm256_xor_si256(Load256(q), _mm256_set1_epi8(static_cast<char>(0x80)));
  const __m256i eights = _mm256_sad_epu8(biased, _mm256_setzero_si256());
  const __m256i halves = _mm256_add_epi64(eights, _mm256_srli_si256(eights, 8));
  *first = _mm_cvtsi128_si32(_mm256_castsi256_si128(halves)) - 16 * 128;
  *second = _mm_cvtsi128_si32(_mm256_extracti128_si256(halves, 1)) - 16 * 128;
}

void Quantize32(const float* x, std::int64_t n, const QuantizedRows& out, std::int64_t row) {
  std::int8_t* q = out.q + row * out.stride;
  float* scales = out.scales + row * (out.stride / 32);
  float* sums = out.scaled_sums + row * (out.stride / 32);
  for (std::int64_t b = 0; b < n / 32; ++b) {
    RoundBlock<4>(x + 32 * b, q + 32 * b, scales + b);
    int first, second;
    SumHalves(q + 32 * b, &first, &second);
    sums[b] = scales[b] * static_cast<float>(first + second);
    out.sums[row * (out.stride / 32) + b] = first + second;
  }
}

void Quantize256(const float* x, std::int64_t n, const QuantizedRows& out, std::int64_t row) {
  std::int8_t* q = out.q + row * out.stride;
  float* scales = out.scales + row * (out.stride / 32);
  std::int16_t* sums = out.half_sums + row * (out.stride / 16);
  std::int16_t* pairs = out.pair_sums + row * (out.stride / 16);
  std::int16_t* wide = out.wide_sums + row * (out.stride / 32);
  for (std::int64_t b = 0; b < n / 256; ++b) {
    RoundBlock<32>(x + 256 * b, q + 256 * b, scales + b);
    for (int g = 0; g < 8; ++g) {
      int first, second;
      SumHalves(q + 256 * b + 32 * g, &first, &second);
      sums[16 * b + g] = static_cast<std::int16_t>(first);
      sums[16 * b + 8 + g] = static_cast<std::int16_t>(second);
      // Sums 4 w to 4 w + 3 are stored in the order 0 2 1 3, the order of a dword's even and odd
      // bytes.
      const int at = 2 * g - g % 2;
      pairs[16 * b + at] = static_cast<std::int16_t>(first);
      pairs[16 * b + at + 2] = static_cast<std::int16_t>(second);
      wide[8 * b + g / 4 * 4 + g % 4 / 2 + g % 2 * 2] = static_cast<std::int16_t>(first + second);
    }
  }
}

/// Writes the sums of R::kRows weight rows, or as many as exist, for activation row m.
template <class R>
void StoreOutputs(const MatvecTask& task, std::int64_t r, std::int64_t m, typename R::Float sum) {
  float sums[R::kRows];
  R::Sums(sum, sums);
  for (int i = 0; i < R::kRows && r + i < task.rows; ++i) {
    const float bias = task.bias == nullptr ? 0.0F : task.bias[r + i];
    task.y[m * task.y_stride + r + i] = sums[i] + bias;
  }
}

/// Prefetches each row ahead of the hardware, which stops at each 4 KiB page.
template <class R>
MANYHEAD_INLINE void PrefetchWeights(const std::uint8_t* p, std::int64_t row_bytes) {
  Unroll<R::kRows>([&]<int r>() MANYHEAD_INLINE_LAMBDA {
    _mm_prefetch(reinterpret_cast<const char*>(p + r * row_bytes) + 1024, _MM_HINT_T0);
  });
}

/// Multiplies kRows weight rows in blocks of 32 with activation rows [m0, m0 + kM).
template <class R, class Block, int kM>
struct SmallFastRows {
  static void Run(const MatvecTask& task, std::int64_t r, std::int64_t m0) {
    using Float = typename R::Float;
    using Int = typename R::Int;
    const std::uint8_t* p =
        reinterpret_cast<const std::uint8_t*>(task.weights) + r * task.row_bytes;
    const std::int64_t row_bytes = r + 1 < task.rows ? task.row_bytes : 0;
    const std::int64_t stride = task.xq.stride;
    const std::int8_t* xq = task.xq.q + m0 * stride;
    const float* xd = task.xq.scales + m0 * (stride / 32);
    const float* xs = task.xq.scaled_sums + m0 * (stride / 32);
    Float sums[kM], offsets[kM];
    Unroll<kM>([&]<int m>() MANYHEAD_INLINE_LAMBDA { sums[m] = offsets[m] = R::ZeroFloat(); });
    for (std::int64_t b = 0; b < task.cols / 32; ++b, p += Block::kBytes) {
      PrefetchWeights<R>(p, row_bytes);
      const Int q = Block::template Quants<R>(p, row_bytes);
      const Int unsigned_q = Block::kSigned ? R::Abs8(q) : q;
      const Float d = R::LoadHalf(p, row_bytes);
      Unroll<kM>([&]<int m>() MANYHEAD_INLINE_LAMBDA {
        const Int x = R::Same(xq + m * stride + 32 * b);
        const Int pairs = R::MulPairs8(unsigned_q, Block::kSigned ? R::FlipSign8(x, q) : x);
        const Float dot = R::ToFloat(R::MulPairs16(pairs, R::Set16(1)));
        sums[m] = R::Fma(dot, R::Mul(d, R::Set(xd[m * (stride / 32) + b])), sums[m]);
        if constexpr (Block::kHasMin)
          offsets[m] =
              R::Fma(R::LoadHalf(p + 2, row_bytes), R::Set(xs[m * (stride / 32) + b]), offsets[m]);
        else if constexpr (Block::kOffset != 0)
          offsets[m] = R::Fma(d, R::Set(xs[m * (stride / 32) + b]), offsets[m]);
      });
    }
    constexpr float kFactor = Block::kHasMin ? 1 : -Block::kOffset;
    Unroll<kM>([&]<int m>() MANYHEAD_INLINE_LAMBDA {
      if constexpr (kFactor != 0) sums[m] = R::Fma(offsets[m], R::FirstLane(kFactor), sums[m]);
      StoreOutputs<R>(task, r, m0 + m, sums[m]);
    });
  }
};

/// Multiplies kRows weight rows in blocks of 256 with activation rows [m0, m0 + kM).
template <class R, class Block, int kM>
struct SuperFastRows {
  using Float = typename R::Float;
  using Int = typename R::Int;

  template <int kGroup>
  static MANYHEAD_INLINE void AddGroup(const std::uint8_t* p, std::int64_t row_bytes, Int scales,
                                       const std::int8_t* xq, std::int64_t stride,
                                       Int (&sums)[kM]) {
    const Int q = Block::template Quants<R, kGroup>(p, row_bytes);
    const Int scale = R::Shuffle(scales, R::Set16(0x0100 + 0x0202 * kGroup));
    Unroll<kM>([&]<int m>() MANYHEAD_INLINE_LAMBDA {
      const Int pairs = R::MulPairs8(q, R::Same(xq + m * stride + 32 * kGroup));
      sums[m] = R::Add32(sums[m], R::MulPairs16(pairs, scale));
    });
  }

  static void Run(const MatvecTask& task, std::int64_t r, std::int64_t m0) {
    const std::uint8_t* p =
        reinterpret_cast<const std::uint8_t*>(task.weights) + r * task.row_bytes;
    const std::int64_t row_bytes = r + 1 < task.rows ? task.row_bytes : 0;
    const std::int64_t stride = task.xq.stride;
    const std::int8_t* xq = task.xq.q + m0 * stride;
    const float* xd = task.xq.scales + m0 * (stride / 32);
    const std::int16_t* xs = task.xq.half_sums + m0 * (stride / 16);
    Float sums[kM];
    Unroll<kM>([&]<int m>() MANYHEAD_INLINE_LAMBDA { sums[m] = R::ZeroFloat(); });
    for (std::int64_t b = 0; b < task.cols / 256; ++b, p += Block::kBytes, xq += 256) {
      PrefetchWeights<R>(p, row_bytes);
      PrefetchWeights<R>(p + 64, row_bytes);
      PrefetchWeights<R>(p + 128, row_bytes);
      const SubBlockScales<R> s = Block::template Scales<R>(p, row_bytes);
      Int dots[kM];
      Unroll<kM>([&]<int m>() MANYHEAD_INLINE_LAMBDA { dots[m] = R::Zero(); });
      Unroll<8>([&]<int kGroup>() MANYHEAD_INLINE_LAMBDA {
        AddGroup<kGroup>(p, row_bytes, s.scales, xq, stride, dots);
      });
      const Float d = R::LoadHalf(p + Block::kScaleAt, row_bytes);
      Unroll<kM>([&]<int m>() MANYHEAD_INLINE_LAMBDA {
        const Int x_sums = R::Same(xs + m * (stride / 16) + 16 * b);
        const Float x_scale = R::Set(xd[m * (stride / 32) + b]);
        if constexpr (Block::kHasMin) {
          const Float dmin = R::LoadHalf(p + Block::kMinAt, row_bytes);
          const Float mins = R::ToFloat(R::MulPairs16(s.mins, x_sums));
          sums[m] = R::Fma(R::ToFloat(dots[m]), R::Mul(d, x_scale), sums[m]);
          sums[m] = R::Fnma(mins, R::Mul(dmin, x_scale), sums[m]);
        } else {
          const Int offsets = R::MulPairs16(s.scales, x_sums);
          const Int dot = R::Sub32(dots[m], R::template ShiftLeft32<Block::kOffsetLog2>(offsets));
          sums[m] = R::Fma(R::ToFloat(dot), R::Mul(d, x_scale), sums[m]);
        }
      });
    }
    Unroll<kM>([&]<int m>() MANYHEAD_INLINE_LAMBDA { StoreOutputs<R>(task, r, m0 + m, sums[m]); });
  }
};

template <class R, class Block, template <class, class, int> class Rows>
void MatvecFast(const MatvecTask& task) {
  for (std::int64_t r = 0; r < task.rows; r += R::kRows) {
    std::int64_t m = 0;
    for (; m + kFastRowsAtOnce <= task.M; m += kFastRowsAtOnce)
      Rows<R, Block, kFastRowsAtOnce>::Run(task, r, m);
    if (task.M - m >= 2) {
      Rows<R, Block, 2>::Run(task, r, m);
      m += 2;
    }
    if (m < task.M) Rows<R, Block, 1>::Run(task, r, m);
  }
}

}  // namespace
}  // namespace manyhead::kernels
