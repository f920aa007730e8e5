#pragma once

#include <cstdint>

#include "kernels/linear_kernels.h"
#include "manyhead/types.h"

/// Computes products with low-bit weights in plain C++: every block is unpacked to quants and
/// scales, one element after another. It defines what the vector kernels compute, and runs on any
/// x86-64.

namespace manyhead::kernels {
namespace {  // NOLINT(google-build-namespaces): one private copy per instruction set

inline constexpr int kMaxBlock = 256;

/// weight[i] = scales[i / kSubBlock] * (quants[i] - kOffset) - mins[i / kSubBlock].
struct Unpacked {
  std::int16_t quants[kMaxBlock];  ///< before the offset is subtracted
  float scales[16];
  float mins[16];  ///< only in types that have them
};

std::uint32_t Word(const std::uint8_t* p) {
  std::uint32_t bits;
  __builtin_memcpy(&bits, p, sizeof bits);
  return bits;
}

float FromBits(std::uint32_t bits) {
  float value;
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
}

float HalfToFloat(const std::uint8_t* p) {
  const std::uint32_t bits = p[0] | std::uint32_t{p[1]} << 8;
  const std::uint32_t sign = (bits & 0x8000) << 16, exponent = bits >> 10 & 31,
                      mantissa = bits & 0x3ff;
  if (exponent == 31)  // NaN becomes quiet, as in the hardware's conversion
    return FromBits(sign | 0x7f800000 | mantissa << 13 | (mantissa != 0 ? 0x400000 : 0));
  if (exponent != 0) return FromBits(sign | (exponent + 112) << 23 | mantissa << 13);
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24F;
  return sign != 0 ? -magnitude : magnitude;
}

int Nibble(const std::uint8_t* p, int i) { return i < 16 ? p[i] & 15 : p[i - 16] >> 4; }
int Bit(const std::uint8_t* p, int i) { return p[i / 8] >> (i % 8) & 1; }

struct ScalarQ4_0 {
  static constexpr int kElements = 32, kSubBlock = 32, kBytes = 18, kOffset = 8;
  static constexpr bool kHasMin = false;
  static void Unpack(const std::uint8_t* p, Unpacked* out) {
    out->scales[0] = HalfToFloat(p);
    for (int i = 0; i < 32; ++i) out->quants[i] = static_cast<std::int16_t>(Nibble(p + 2, i));
  }
};

struct ScalarQ4_1 {
  static constexpr int kElements = 32, kSubBlock = 32, kBytes = 20, kOffset = 0;
  static constexpr bool kHasMin = true;
  static void Unpack(const std::uint8_t* p, Unpacked* out) {
    out->scales[0] = HalfToFloat(p);
    out->mins[0] = -HalfToFloat(p + 2);
    for (int i = 0; i < 32; ++i) out->quants[i] = static_cast<std::int16_t>(Nibble(p + 4, i));
  }
};

struct ScalarQ5_0 {
  static constexpr int kElements = 32, kSubBlock = 32, kBytes = 22, kOffset = 16;
  static constexpr bool kHasMin = false;
  static void Unpack(const std::uint8_t* p, Unpacked* out) {
    out->scales[0] = HalfToFloat(p);
    for (int i = 0; i < 32; ++i)
      out->quants[i] = static_cast<std::int16_t>(Nibble(p + 6, i) + 16 * Bit(p + 2, i));
  }
};

struct ScalarQ5_1 {
  static constexpr int kElements = 32, kSubBlock = 32, kBytes = 24, kOffset = 0;
  static constexpr bool kHasMin = true;
  static void Unpack(const std::uint8_t* p, Unpacked* out) {
    out->scales[0] = HalfToFloat(p);
    out->mins[0] = -HalfToFloat(p + 2);
    for (int i = 0; i < 32; ++i)
      out->quants[i] = static_cast<std::int16_t>(Nibble(p + 8, i) + 16 * Bit(p + 4, i));
  }
};

struct ScalarQ8_0 {
  static constexpr int kElements = 32, kSubBlock = 32, kBytes = 34, kOffset = 0;
  static constexpr bool kHasMin = false;
  static void Unpack(const std::uint8_t* p, Unpacked* out) {
    out->scales[0] = HalfToFloat(p);
    for (int i = 0; i < 32; ++i) out->quants[i] = static_cast<std::int8_t>(p[2 + i]);
  }
};

struct ScalarQ2_K {
  static constexpr int kElements = 256, kSubBlock = 16, kBytes = 84, kOffset = 0;
  static constexpr bool kHasMin = true;
  static void Unpack(const std::uint8_t* p, Unpacked* out) {
    const float d = HalfToFloat(p + 80), dmin = HalfToFloat(p + 82);
    for (int s = 0; s < 16; ++s) {
      out->scales[s] = d * static_cast<float>(p[s] & 15);
      out->mins[s] = dmin * static_cast<float>(p[s] >> 4);
    }
    for (int i = 0; i < 256; ++i)
      out->quants[i] = p[16 + 32 * (i / 128) + i % 32] >> (2 * (i / 32 % 4)) & 3;
  }
};

struct ScalarQ3_K {
  static constexpr int kElements = 256, kSubBlock = 16, kBytes = 110, kOffset = 4;
  static constexpr bool kHasMin = false;
  static void Unpack(const std::uint8_t* p, Unpacked* out) {
    const float d = HalfToFloat(p + 108);
    for (int s = 0; s < 16; ++s) {
      const int low = p[96 + s % 8] >> (4 * (s / 8)) & 15;
      const int high = p[104 + s % 4] >> (2 * (s / 4)) & 3;
      out->scales[s] = d * static_cast<float>((low | high << 4) - 32);
    }
    for (int i = 0; i < 256; ++i) {
      const int low = p[32 + 32 * (i / 128) + i % 32] >> (2 * (i / 32 % 4)) & 3;
      const int third = p[i % 32] >> (i / 32) & 1;
      out->quants[i] = static_cast<std::int16_t>(low | third << 2);
    }
  }
};

/// Unpacks the eight 6-bit scales and mins of Q4_K and Q5_K.
void UnpackScalesOfEight(const std::uint8_t* p, Unpacked* out) {
  const float d = HalfToFloat(p), dmin = HalfToFloat(p + 2);
  const std::uint8_t* packed = p + 4;
  for (int s = 0; s < 8; ++s) {
    int scale = packed[s % 4] & 63, min = packed[4 + s % 4] & 63;
    if (s >= 4) {
      scale = (packed[8 + s % 4] & 15) | packed[s % 4] >> 6 << 4;
      min = packed[8 + s % 4] >> 4 | packed[4 + s % 4] >> 6 << 4;
    }
    out->scales[s] = d * static_cast<float>(scale);
    out->mins[s] = dmin * static_cast<float>(min);
  }
}

struct ScalarQ4_K {
  static constexpr int kElements = 256, kSubBlock = 32, kBytes = 144, kOffset = 0;
  static constexpr bool kHasMin = true;
  static void Unpack(const std::uint8_t* p, Unpacked* out) {
    UnpackScalesOfEight(p, out);
    for (int i = 0; i < 256; ++i)
      out->quants[i] = p[16 + 32 * (i / 64) + i % 32] >> (4 * (i / 32 % 2)) & 15;
  }
};

struct ScalarQ5_K {
  static constexpr int kElements = 256, kSubBlock = 32, kBytes = 176, kOffset = 0;
  static constexpr bool kHasMin = true;
  static void Unpack(const std::uint8_t* p, Unpacked* out) {
    UnpackScalesOfEight(p, out);
    for (int i = 0; i < 256; ++i) {
      const int low = p[48 + 32 * (i / 64) + i % 32] >> (4 * (i / 32 % 2)) & 15;
      const int fifth = p[16 + i % 32] >> (i / 32) & 1;
      out->quants[i] = static_cast<std::int16_t>(low | fifth << 4);
    }
  }
};

struct ScalarQ6_K {
  static constexpr int kElements = 256, kSubBlock = 16, kBytes = 210, kOffset = 32;
  static constexpr bool kHasMin = false;
  static void Unpack(const std::uint8_t* p, Unpacked* out) {
    const float d = HalfToFloat(p + 208);
    for (int s = 0; s < 16; ++s) {
      out->scales[s] = d * static_cast<float>(static_cast<std::int8_t>(p[192 + s]));
    }
    for (int i = 0; i < 256; ++i) {
      const int half = i / 128, part = i / 32 % 4;
      const int low = p[64 * half + 32 * (part % 2) + i % 32] >> (4 * (part / 2)) & 15;
      const int high = p[128 + 32 * half + i % 32] >> (2 * part) & 3;
      out->quants[i] = static_cast<std::int16_t>(low | high << 4);
    }
  }
};

struct ScalarF32 {
  static constexpr int kBytes = 4;
  static float Load(const std::uint8_t* p) { return FromBits(Word(p)); }
};

struct ScalarF16 {
  static constexpr int kBytes = 2;
  static float Load(const std::uint8_t* p) { return HalfToFloat(p); }
};

struct ScalarBf16 {
  static constexpr int kBytes = 2;
  static float Load(const std::uint8_t* p) {
    return FromBits((p[0] | std::uint32_t{p[1]} << 8) << 16);
  }
};

template <class Element>
void WidenPlain(const std::byte* blocks, std::int64_t n, float* out) {
  const auto* p = reinterpret_cast<const std::uint8_t*>(blocks);
  for (std::int64_t i = 0; i < n; ++i) out[i] = Element::Load(p + i * Element::kBytes);
}

template <class Block>
void WidenBlock(const std::uint8_t* p, float* out) {
  Unpacked block;
  Block::Unpack(p, &block);
  for (int i = 0; i < Block::kElements; ++i) {
    const int s = i / Block::kSubBlock;
    out[i] = block.scales[s] * static_cast<float>(block.quants[i] - Block::kOffset);
    if constexpr (Block::kHasMin) out[i] -= block.mins[s];
  }
}

template <class Block>
void WidenBlocks(const std::byte* blocks, std::int64_t n, float* out) {
  const auto* p = reinterpret_cast<const std::uint8_t*>(blocks);
  for (std::int64_t c = 0; c < n; c += Block::kElements, p += Block::kBytes)
    WidenBlock<Block>(p, out + c);
}

float BiasAt(const MatvecTask& task, std::int64_t r) {
  return task.bias == nullptr ? 0.0F : task.bias[r];
}

template <class Element>
void MatvecPlain(const MatvecTask& task) {
  for (std::int64_t r = 0; r < task.rows; ++r) {
    const auto* p = reinterpret_cast<const std::uint8_t*>(task.weights) + r * task.row_bytes;
    for (std::int64_t m = 0; m < task.M; ++m) {
      float sum = 0;
      for (std::int64_t c = 0; c < task.cols; ++c)
        sum += Element::Load(p + c * Element::kBytes) * task.x[m * task.x_stride + c];
      task.y[m * task.y_stride + r] = sum + BiasAt(task, r);
    }
  }
}

template <class Block>
float DotExact(const MatvecTask& task, const std::uint8_t* p, std::int64_t m) {
  float sum = 0;
  for (std::int64_t c = 0; c < task.cols; c += Block::kElements, p += Block::kBytes) {
    float weights[Block::kElements];
    WidenBlock<Block>(p, weights);
    for (int i = 0; i < Block::kElements; ++i)
      sum += weights[i] * task.x[m * task.x_stride + c + i];
  }
  return sum;
}

/// Computes integer dot products of sub-blocks, scaled and added up in f32.
template <class Block>
float DotFast(const MatvecTask& task, const std::uint8_t* p, std::int64_t m) {
  const QuantizedRows& xq = task.xq;
  float sum = 0;
  for (std::int64_t c = 0; c < task.cols; c += Block::kElements, p += Block::kBytes) {
    Unpacked block;
    Block::Unpack(p, &block);
    const float x_scale = xq.scales[m * (xq.stride / 32) + c / Block::kElements];
    for (int s = 0; s < Block::kElements / Block::kSubBlock; ++s) {
      int dot = 0, x_sum = 0;
      for (int i = s * Block::kSubBlock; i < (s + 1) * Block::kSubBlock; ++i) {
        const int q = xq.q[m * xq.stride + c + i];
        dot += q * (block.quants[i] - Block::kOffset);
        x_sum += q;
      }
      sum += block.scales[s] * (x_scale * static_cast<float>(dot));
      if constexpr (Block::kHasMin) sum -= block.mins[s] * (x_scale * static_cast<float>(x_sum));
    }
  }
  return sum;
}

template <class Block, bool kFast>
void MatvecBlocks(const MatvecTask& task) {
  for (std::int64_t r = 0; r < task.rows; ++r) {
    const auto* p = reinterpret_cast<const std::uint8_t*>(task.weights) + r * task.row_bytes;
    for (std::int64_t m = 0; m < task.M; ++m)
      task.y[m * task.y_stride + r] =
          (kFast ? DotFast<Block>(task, p, m) : DotExact<Block>(task, p, m)) + BiasAt(task, r);
  }
}

/// Rounds `n` activations with one scale.
void RoundBlock(const float* x, int n, std::int8_t* q, float* scale) {
  float magnitude = 0;
  bool finite = true;
  for (int i = 0; i < n; ++i) {
    const float a = __builtin_fabsf(x[i]);
    finite = finite && a <= __FLT_MAX__;
    magnitude = a > magnitude ? a : magnitude;
  }
  if (!finite || magnitude < 0x1p-100F) {
    *scale = finite ? 0.0F : __builtin_nanf("");
    for (int i = 0; i < n; ++i) q[i] = 0;
    return;
  }
  *scale = magnitude / 127;
  const float inverse = 127 / magnitude;
  for (int i = 0; i < n; ++i) q[i] = static_cast<std::int8_t>(__builtin_lrintf(inverse * x[i]));
}

void Quantize32(const float* x, std::int64_t n, const QuantizedRows& out, std::int64_t row) {
  for (std::int64_t b = 0; b < n / 32; ++b) {
    std::int8_t* q = out.q + row * out.stride + 32 * b;
    const std::int64_t at = row * (out.stride / 32) + b;
    RoundBlock(x + 32 * b, 32, q, out.scales + at);
    int sum = 0;
    for (int i = 0; i < 32; ++i) sum += q[i];
    out.scaled_sums[at] = out.scales[at] * static_cast<float>(sum);
  }
}

void Quantize256(const float* x, std::int64_t n, const QuantizedRows& out, std::int64_t row) {
  for (std::int64_t b = 0; b < n / 256; ++b) {
    std::int8_t* q = out.q + row * out.stride + 256 * b;
    RoundBlock(x + 256 * b, 256, q, out.scales + row * (out.stride / 32) + b);
    for (int s = 0; s < 16; ++s) {
      int sum = 0;
      for (int i = 0; i < 16; ++i) sum += q[16 * s + i];
      out.half_sums[row * (out.stride / 16) + 16 * b + 8 * (s % 2) + s / 2] =
          static_cast<std::int16_t>(sum);
    }
  }
}

template <class Element>
constexpr LinearTypeKernels PlainKernels() {
  return {&WidenPlain<Element>, &MatvecPlain<Element>, &MatvecPlain<Element>,
          ActivationBlock::kF32};
}

template <class Block>
constexpr LinearTypeKernels BlockKernels() {
  return {&WidenBlocks<Block>, &MatvecBlocks<Block, false>, &MatvecBlocks<Block, true>,
          Block::kElements == 32 ? ActivationBlock::kQ32 : ActivationBlock::kQ256};
}

constexpr LinearKernels MakeScalarLinearKernels() {
  LinearKernels table = {};
  const auto at = [&table](WeightType type) -> LinearTypeKernels& {
    return table.types[static_cast<int>(type)];
  };
  at(WeightType::kF32) = PlainKernels<ScalarF32>();
  at(WeightType::kF16) = PlainKernels<ScalarF16>();
  at(WeightType::kBf16) = PlainKernels<ScalarBf16>();
  at(WeightType::kQ4_0) = BlockKernels<ScalarQ4_0>();
  at(WeightType::kQ4_1) = BlockKernels<ScalarQ4_1>();
  at(WeightType::kQ5_0) = BlockKernels<ScalarQ5_0>();
  at(WeightType::kQ5_1) = BlockKernels<ScalarQ5_1>();
  at(WeightType::kQ8_0) = BlockKernels<ScalarQ8_0>();
  at(WeightType::kQ2_K) = BlockKernels<ScalarQ2_K>();
  at(WeightType::kQ3_K) = BlockKernels<ScalarQ3_K>();
  at(WeightType::kQ4_K) = BlockKernels<ScalarQ4_K>();
  at(WeightType::kQ5_K) = BlockKernels<ScalarQ5_K>();
  at(WeightType::kQ6_K) = BlockKernels<ScalarQ6_K>();
  table.quantize_32 = &Quantize32;
  table.quantize_256 = &Quantize256;
  return table;
}

}  // namespace
}  // namespace manyhead::kernels
