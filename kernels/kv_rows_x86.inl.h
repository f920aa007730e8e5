#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/kv_rows.inl.h"

/// The vector part of kv_rows.inl.h, for AVX2 and AVX-512 alike: eight lanes. Storing a token
/// touches 2 * D floats per head once, thousands of times less work than the projections that made
/// it, so wider vectors would not be noticed.

namespace manyhead::kernels {
namespace {  // one private copy per instruction set  NOLINT(google-build-namespaces)

inline void StoreLanes(__m256 value, float* to) { _mm256_storeu_ps(to, value); }

inline void StoreLanes(__m256 value, F16* to) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                   _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

inline void StoreLanes(__m256 value, Bf16* to) {
  const __m256i bits = _mm256_castps_si256(value);
  const __m256i upper = _mm256_srli_epi32(bits, 16);
  const __m256i odd = _mm256_and_si256(upper, _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_srli_epi32(
      _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF))), 16);
  const __m256i quiet_nan = _mm256_or_si256(upper, _mm256_set1_epi32(0x40));
  const __m256 is_nan = _mm256_cmp_ps(value, value, _CMP_UNORD_Q);
  const __m256i words = _mm256_blendv_epi8(rounded, quiet_nan, _mm256_castps_si256(is_nan));
  const __m256i packed = _mm256_packus_epi32(words, words);  // within each half of 128 bits
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                   _mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0b1000)));
}

/// m[i] lane j <-> m[j] lane i.
inline void Transpose8x8(__m256 (&m)[8]) {
  __m256 pairs[8], quads[8];
  for (int i = 0; i < 8; i += 2) {
    pairs[i] = _mm256_unpacklo_ps(m[i], m[i + 1]);
    pairs[i + 1] = _mm256_unpackhi_ps(m[i], m[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    quads[i] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], _MM_SHUFFLE(1, 0, 1, 0));
    quads[i + 1] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], _MM_SHUFFLE(3, 2, 3, 2));
    quads[i + 2] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], _MM_SHUFFLE(1, 0, 1, 0));
    quads[i + 3] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], _MM_SHUFFLE(3, 2, 3, 2));
  }
  for (int i = 0; i < 4; ++i) {
    m[i] = _mm256_permute2f128_ps(quads[i], quads[i + 4], 0x20);
    m[i + 4] = _mm256_permute2f128_ps(quads[i], quads[i + 4], 0x31);
  }
}

struct X86 {
  static constexpr std::int64_t kLanes = 8;

  template <class T>
  static void NarrowRow(const float* from, std::int64_t n, T* to) {
    std::int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) StoreLanes(_mm256_loadu_ps(from + i), to + i);
    for (; i < n; ++i) Narrow(from[i], to + i);
  }

  template <class T>
  static void StoreTile(const float* k, std::int64_t k_stride, std::int64_t d, T* tile) {
    std::int64_t c = 0;
    for (; c + kLanes <= d; c += kLanes) {
      for (std::int64_t t = 0; t < kKvTile; t += kLanes) {
        __m256 block[kLanes];
        for (std::int64_t i = 0; i < kLanes; ++i)
          block[i] = _mm256_loadu_ps(k + (t + i) * k_stride + c);
        Transpose8x8(block);
        for (std::int64_t i = 0; i < kLanes; ++i)
          StoreLanes(block[i], tile + (c + i) * kKvTile + t);
      }
    }
    for (; c < d; ++c)
      for (std::int64_t t = 0; t < kKvTile; ++t)
        Narrow(k[t * k_stride + c], tile + c * kKvTile + t);
  }
};

}  // namespace
}  // namespace manyhead::kernels
