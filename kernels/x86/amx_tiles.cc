#include <immintrin.h>

#include "kernels/kernel_table.h"
#include "kernels/x86/tile_config.inl.h"

/// Computes products in tiles of bf16 with f32 sums.
///
/// A step loads two tiles of weights and two of activations, 4 KiB, for four products of 16 cycles
/// each: 512 multiply-adds a cycle against 64 bytes of loads, so a strip's weights should come from
/// L1 and the activations from L2.

namespace manyhead::kernels::amx {
namespace {  // NOLINT(google-build-namespaces)

constexpr std::int64_t kTileElements = kTileRows * kTileCols;

constexpr TileConfig kConfig = ConfigFor(64);

void Begin() { _tile_loadconfig(&kConfig); }

void End() { _tile_release(); }

/// Exchanges lane j of rows[i] with lane i of rows[j], lanes of 32 bits.
void Transpose(__m512i (&rows)[16]) {
  __m512i pairs[16];
  for (int i = 0; i < 16; i += 2) {
    pairs[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
    pairs[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    rows[i] = _mm512_unpacklo_epi64(pairs[i], pairs[i + 2]);
    rows[i + 1] = _mm512_unpackhi_epi64(pairs[i], pairs[i + 2]);
    rows[i + 2] = _mm512_unpacklo_epi64(pairs[i + 1], pairs[i + 3]);
    rows[i + 3] = _mm512_unpackhi_epi64(pairs[i + 1], pairs[i + 3]);
  }
  // Now rows[4 q + c], 128-bit lane l, holds column 4 l + c of the rows 4 q .. 4 q + 3.
  for (int c = 0; c < 4; ++c) {
    const __m512i a = _mm512_shuffle_i32x4(rows[c], rows[4 + c], 0x88);
    const __m512i b = _mm512_shuffle_i32x4(rows[8 + c], rows[12 + c], 0x88);
    const __m512i d = _mm512_shuffle_i32x4(rows[c], rows[4 + c], 0xdd);
    const __m512i e = _mm512_shuffle_i32x4(rows[8 + c], rows[12 + c], 0xdd);
    pairs[c] = _mm512_shuffle_i32x4(a, b, 0x88);
    pairs[4 + c] = _mm512_shuffle_i32x4(d, e, 0x88);
    pairs[8 + c] = _mm512_shuffle_i32x4(a, b, 0xdd);
    pairs[12 + c] = _mm512_shuffle_i32x4(d, e, 0xdd);
  }
  for (int i = 0; i < 16; ++i) rows[i] = pairs[i];
}

/// Loads 32 f32, the first n of them from memory, as bf16.
__m512i LoadBf16(const float* p, std::int64_t n) {
  const auto lanes = [](std::int64_t count) {
    return static_cast<__mmask16>(count >= 16 ? 0xffff : count <= 0 ? 0 : (1 << count) - 1);
  };
  const __m512 low = _mm512_maskz_loadu_ps(lanes(n), p);
  const __m512 high = _mm512_maskz_loadu_ps(lanes(n - 16), p + (n > 16 ? 16 : 0));
  return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));
}

void Pack(const float* x, std::int64_t stride, std::int64_t rows, std::int64_t cols,
          std::uint16_t* out) {
  for (std::int64_t c = 0; c < cols; c += kTileCols, out += kTileElements) {
    __m512i tile[kTileRows];
    for (std::int64_t r = 0; r < kTileRows; ++r) {
      tile[r] = r < rows ? LoadBf16(x + r * stride + c, cols - c) : _mm512_setzero_si512();
    }
    Transpose(tile);
    for (std::int64_t r = 0; r < kTileRows; ++r) _mm512_storeu_si512(out + r * kTileCols, tile[r]);
  }
}

void Narrow(const float* x, std::int64_t n, std::uint16_t* out) {
  for (std::int64_t i = 0; i < n; i += 16) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i),
                        reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(_mm512_loadu_ps(x + i))));
  }
}

/// Multiplies two tiles of weights with two blocks of activations. Tiles 0 to 3 hold the sums.
void MultiplyPair(const TileTask& task, const std::uint16_t* x, float* sums) {
  constexpr std::int64_t kX = 64;  // bytes of a row of a tile of activations
  const std::int64_t w = task.cols * 2, c = task.sums_stride * 4;
  float* lower = sums + kTileRows * task.sums_stride;
  if (task.accumulate) {
    _tile_loadd(0, sums, c);
    _tile_loadd(1, sums + kTileRows, c);
    _tile_loadd(2, lower, c);
    _tile_loadd(3, lower + kTileRows, c);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  const std::uint16_t *a = task.weights, *b = a + kTileRows * task.cols, *y = x + task.block_stride;
  for (std::int64_t k = 0; k < task.cols; k += kTileCols) {
    _tile_loadd(4, a + k, w);
    _tile_loadd(6, x, kX);
    _tile_loadd(7, y, kX);
    _tile_loadd(5, b + k, w);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
    x += kTileElements;
    y += kTileElements;
  }
  _tile_stored(0, sums, c);
  _tile_stored(1, sums + kTileRows, c);
  _tile_stored(2, lower, c);
  _tile_stored(3, lower + kTileRows, c);
}

/// Does the same for one block of activations.
void MultiplyOne(const TileTask& task, const std::uint16_t* x, float* sums) {
  constexpr std::int64_t kX = 64;
  const std::int64_t w = task.cols * 2, c = task.sums_stride * 4;
  float* lower = sums + kTileRows * task.sums_stride;
  if (task.accumulate) {
    _tile_loadd(0, sums, c);
    _tile_loadd(2, lower, c);
  } else {
    _tile_zero(0);
    _tile_zero(2);
  }
  const std::uint16_t *a = task.weights, *b = a + kTileRows * task.cols;
  for (std::int64_t k = 0; k < task.cols; k += kTileCols, x += kTileElements) {
    _tile_loadd(4, a + k, w);
    _tile_loadd(5, b + k, w);
    _tile_loadd(6, x, kX);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(2, 5, 6);
  }
  _tile_stored(0, sums, c);
  _tile_stored(2, lower, c);
}

void Multiply(const TileTask& task) {
  const std::uint16_t* x = task.activations;
  std::int64_t block = 0;
  for (; block + 2 <= task.blocks; block += 2, x += 2 * task.block_stride) {
    MultiplyPair(task, x, task.sums + block * kTileRows);
  }
  if (block < task.blocks) MultiplyOne(task, x, task.sums + block * kTileRows);
}

void Store(const float* sums, std::int64_t sums_stride, std::int64_t count, std::int64_t rows,
           const float* bias, float* y, std::int64_t y_stride) {
  for (std::int64_t r = 0; r < count; r += kTileRows) {
    const std::int64_t left = count - r < kTileRows ? count - r : kTileRows;
    const auto lanes = static_cast<__mmask16>((1U << left) - 1U);
    const __m512 add =
        bias == nullptr ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(lanes, bias + r);
    for (std::int64_t m = 0; m < rows; m += kTileRows) {
      __m512i tile[kTileRows];
      for (std::int64_t i = 0; i < kTileRows; ++i) {
        tile[i] = _mm512_loadu_si512(sums + (r + i) * sums_stride + m);
      }
      Transpose(tile);
      for (std::int64_t i = 0; i < kTileRows && m + i < rows; ++i) {
        _mm512_mask_storeu_ps(y + (m + i) * y_stride + r, lanes,
                              _mm512_add_ps(_mm512_castsi512_ps(tile[i]), add));
      }
    }
  }
}

}  // namespace

constinit const TileKernels kTiles = {&Begin, &End, &Pack, &Narrow, &Multiply, &Store};

}  // namespace manyhead::kernels::amx
