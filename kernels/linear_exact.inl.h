#pragma once

#include "kernels/linear_blocks.inl.h"
#include "kernels/linear_kernels.h"

/// Widens weights to f32, and multiplies the widened weights in registers.
///
/// A widened weight is exact: d has 11 bits, a scale 7, a quant 6, which fit f32's 24.
/// `X` is a float policy of linear_simd.inl.h.
///
/// Cost: widening a group of 32 takes about four instructions per vector and each activation row
/// one more FMA, so kRowsAtOnce rows are handled while the weights are in registers.

namespace manyhead::kernels {
namespace {  // NOLINT(google-build-namespaces): one private copy per instruction set

inline constexpr int kRowsAtOnce = 4;

inline float HalfAt(const std::uint8_t* p) { return _cvtsh_ss(LoadU16(p)); }

struct ElementF32 {
  static constexpr int kBytes = 4;
  template <class X>
  static typename X::Float Load(const std::uint8_t* p) {
    return X::LoadF32(p);
  }
};

struct ElementF16 {
  static constexpr int kBytes = 2;
  template <class X>
  static typename X::Float Load(const std::uint8_t* p) {
    return X::LoadF16(p);
  }
};

struct ElementBf16 {
  static constexpr int kBytes = 2;
  template <class X>
  static typename X::Float Load(const std::uint8_t* p) {
    return X::LoadBf16(p);
  }
};

/// Reads numbers that are stored one by one, two vectors at a time.
template <class X, class Element>
struct PlainGroups {
  static constexpr int kGroup = 2 * X::kLanes, kVectors = 2, kBytes = Element::kBytes * kGroup;

  static void Load(const std::uint8_t* p, typename X::Float (&w)[kVectors]) {
    w[0] = Element::template Load<X>(p);
    w[1] = Element::template Load<X>(p + kBytes / 2);
  }

  template <class Fn>
  static MANYHEAD_INLINE void ForEachGroup(const std::uint8_t* p, std::int64_t n, Fn&& fn) {
    std::int64_t c = 0;
    for (; c + kGroup <= n; c += kGroup, p += kBytes) {
      typename X::Float w[kVectors];
      Load(p, w);
      fn(c, kGroup, w);
    }
    if (c == n) return;
    std::uint8_t rest[kBytes] = {};
    __builtin_memcpy(rest, p, static_cast<std::size_t>((n - c) * Element::kBytes));
    typename X::Float w[kVectors];
    Load(rest, w);
    fn(c, static_cast<int>(n - c), w);
  }
};

/// Reads blocks of 32.
template <class X, class Block>
struct SmallGroups {
  static constexpr int kGroup = 32, kVectors = kGroup / X::kLanes;

  template <class Fn>
  static MANYHEAD_INLINE void ForEachGroup(const std::uint8_t* p, std::int64_t n, Fn&& fn) {
    for (std::int64_t c = 0; c < n; c += kGroup, p += Block::kBytes) {
      typename X::Float w[kVectors];
      X::Widen(OneRow::Sub8(Block::template Quants<OneRow>(p, 0), OneRow::Set8(Block::kOffset)), w);
      const typename X::Float d = X::Set(HalfAt(p));
      Unroll<kVectors>([&]<int v>() MANYHEAD_INLINE_LAMBDA {
        if constexpr (Block::kHasMin)
          w[v] = X::Fma(w[v], d, X::Set(HalfAt(p + 2)));
        else
          w[v] = X::Mul(w[v], d);
      });
      fn(c, kGroup, w);
    }
  }
};

/// Reads blocks of 256.
template <class X, class Block>
struct SuperGroups {
  static constexpr int kGroup = 32, kVectors = kGroup / X::kLanes;

  /// Computes eight 16-bit numbers times `factor`.
  static void Scale(__m128i numbers, float factor, float* out) {
    _mm256_storeu_ps(out, _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(numbers)),
                                        _mm256_set1_ps(factor)));
  }

  struct Header {
    float scales[16];   // even sub-blocks, then odd ones
    float offsets[16];  // -dmin * min, likewise
  };

  static MANYHEAD_INLINE Header Read(const std::uint8_t* p) {
    Header header;
    const SubBlockScales<OneRow> s = Block::template Scales<OneRow>(p, 0);
    const float d = HalfAt(p + Block::kScaleAt);
    Scale(_mm256_castsi256_si128(s.scales), d, header.scales);
    Scale(_mm256_extracti128_si256(s.scales, 1), d, header.scales + 8);
    if constexpr (Block::kHasMin) {
      const float minus_dmin = -HalfAt(p + Block::kMinAt);
      Scale(_mm256_castsi256_si128(s.mins), minus_dmin, header.offsets);
      Scale(_mm256_extracti128_si256(s.mins, 1), minus_dmin, header.offsets + 8);
    }
    return header;
  }

  template <int kIndex, class Fn>
  static MANYHEAD_INLINE void Group(const std::uint8_t* p, const Header& header, std::int64_t c,
                                    Fn& fn) {
    constexpr int kOffset = Block::kOffsetLog2 == 0 ? 0 : 1 << Block::kOffsetLog2;
    typename X::Float w[kVectors];
    X::Widen(OneRow::Sub8(Block::template Quants<OneRow, kIndex>(p, 0), OneRow::Set8(kOffset)), w);
    Unroll<kVectors>([&]<int v>() MANYHEAD_INLINE_LAMBDA {
      constexpr int kSubBlock = kIndex + (v < kVectors / 2 ? 0 : 8);
      if constexpr (Block::kHasMin)
        w[v] = X::Fma(w[v], X::Set(header.scales[kSubBlock]), X::Set(header.offsets[kSubBlock]));
      else
        w[v] = X::Mul(w[v], X::Set(header.scales[kSubBlock]));
    });
    fn(c + 32 * kIndex, kGroup, w);
  }

  template <class Fn>
  static MANYHEAD_INLINE void ForEachGroup(const std::uint8_t* p, std::int64_t n, Fn&& fn) {
    for (std::int64_t c = 0; c < n; c += 256, p += Block::kBytes) {
      const Header header = Read(p);
      Unroll<8>([&]<int kIndex>() MANYHEAD_INLINE_LAMBDA { Group<kIndex>(p, header, c, fn); });
    }
  }
};

template <class X, class Groups>
void Widen(const std::byte* blocks, std::int64_t n, float* out) {
  Groups::ForEachGroup(
      reinterpret_cast<const std::uint8_t*>(blocks), n,
      [out](std::int64_t c, int count, const typename X::Float(&w)[Groups::kVectors])
          MANYHEAD_INLINE_LAMBDA {
            if (count == Groups::kGroup) {
              Unroll<Groups::kVectors>(
                  [&]<int v>() MANYHEAD_INLINE_LAMBDA { X::Store(out + c + v * X::kLanes, w[v]); });
              return;
            }
            float rest[Groups::kGroup];
            for (int v = 0; v < Groups::kVectors; ++v) X::Store(rest + v * X::kLanes, w[v]);
            __builtin_memcpy(out + c, rest, static_cast<std::size_t>(count) * sizeof(float));
          });
}

/// Adds a group of weights times the same columns of kM activation rows. Each row has two sums,
/// because an FMA takes four cycles.
template <class X, int kM, int kVectors>
MANYHEAD_INLINE void AddProducts(const typename X::Float (&w)[kVectors], const float* x,
                                 std::int64_t x_stride, typename X::Float (&sums)[kM][2]) {
  Unroll<kM * kVectors>([&]<int i>() MANYHEAD_INLINE_LAMBDA {
    constexpr int m = i / kVectors, v = i % kVectors;
    sums[m][v % 2] = X::Fma(w[v], X::Load(x + m * x_stride + v * X::kLanes), sums[m][v % 2]);
  });
}

/// Multiplies one weight row with activation rows [m0, m0 + kM).
template <class X, class Groups, int kM>
void ExactRow(const MatvecTask& task, std::int64_t r, std::int64_t m0) {
  using Float = typename X::Float;
  const float* x = task.x + m0 * task.x_stride;
  Float sums[kM][2];
  Unroll<kM>([&]<int m>() MANYHEAD_INLINE_LAMBDA { sums[m][0] = sums[m][1] = X::Zero(); });
  Groups::ForEachGroup(
      reinterpret_cast<const std::uint8_t*>(task.weights) + r * task.row_bytes, task.cols,
      [&](std::int64_t c, int count, const Float(&w)[Groups::kVectors]) MANYHEAD_INLINE_LAMBDA {
        if (count == Groups::kGroup)
          return AddProducts<X, kM, Groups::kVectors>(w, x + c, task.x_stride, sums);
        float rest[kM][Groups::kGroup] = {};
        for (int m = 0; m < kM; ++m)
          __builtin_memcpy(rest[m], x + m * task.x_stride + c,
                           static_cast<std::size_t>(count) * sizeof(float));
        AddProducts<X, kM, Groups::kVectors>(w, rest[0], Groups::kGroup, sums);
      });
  Unroll<kM>([&]<int m>() MANYHEAD_INLINE_LAMBDA {
    const float bias = task.bias == nullptr ? 0.0F : task.bias[r];
    task.y[(m0 + m) * task.y_stride + r] = X::Sum(X::Add(sums[m][0], sums[m][1])) + bias;
  });
}

template <class X, class Groups>
void MatvecExact(const MatvecTask& task) {
  for (std::int64_t r = 0; r < task.rows; ++r) {
    std::int64_t m = 0;
    for (; m + kRowsAtOnce <= task.M; m += kRowsAtOnce)
      ExactRow<X, Groups, kRowsAtOnce>(task, r, m);
    if (task.M - m >= 2) {
      ExactRow<X, Groups, 2>(task, r, m);
      m += 2;
    }
    if (m < task.M) ExactRow<X, Groups, 1>(task, r, m);
  }
}

}  // namespace
}  // namespace manyhead::kernels
