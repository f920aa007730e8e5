#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "manyhead/export.h"

/// The letters for dimensions in all comments and names:
///   B requests, T query tokens (q_len), S key/value tokens (kv_len), H num_heads, K num_kv_heads,
///   G = H / K, D head_dim, P pages, N page_size.
/// Shapes are written outermost first, e.g. [S, K, D]. Sizes, lengths and strides are std::int64_t
/// in tokens or elements; the name of a size in bytes ends in `_bytes`.

namespace MANYHEAD_API manyhead {

/// A token of a model's vocabulary.
using TokenId = std::int32_t;

/// Says how the numbers of one K or V head are stored.
///
/// Accuracy bound of the error of a stored x, and the root mean square error relative to that of
///          the numbers, as measured on normally distributed heads of 64, 128 and 256 elements:
///
///   f16    |x| 2^-11 (2^-25 below 2^-14); infinite beyond 65504   2.1e-4
///   bf16   |x| 2^-8                                               1.7e-3
///   int8   m / 254, m the largest magnitude of the head           5.7e-3, 6.4e-3, 6.9e-3
///   int4   (max - min + |min| 2^-10) / 30 of 32 elements, times   7.7e-2
///          1 + 2^-10 (plus 2^-24); NaN beyond 65504
///
/// An element that is not finite makes its whole int8 head, or its int4 group, NaN.
enum class KvType : std::uint8_t {
  kF32,   ///< 4 bytes, no loss
  kF16,   ///< IEEE binary16
  kBf16,  ///< the upper half of an f32
  kInt8,  ///< symmetric, one f32 scale per token and head
  kInt4,  ///< asymmetric, an f16 scale and minimum per 32 elements of a token and head
};

/// Returns "f32", "f16", "bf16", "int8" or "int4".
const char* KvTypeName(KvType type) noexcept;
/// Parses a name that KvTypeName returns; returns nothing for any other name.
std::optional<KvType> ParseKvType(std::string_view name) noexcept;

/// Says how a model's weights are stored; the values are GGUF's type ids, the layouts GGUF's
/// blocks.
enum class WeightType : std::uint8_t {
  kF32 = 0,    ///< 1 number in 4 bytes
  kF16 = 1,    ///< 1 in 2
  kQ4_0 = 2,   ///< 32 in 18: 4 bits and a scale
  kQ4_1 = 3,   ///< 32 in 20: 4 bits, scale and minimum
  kQ5_0 = 6,   ///< 32 in 22: 5 bits and a scale
  kQ5_1 = 7,   ///< 32 in 24: 5 bits, scale and minimum
  kQ8_0 = 8,   ///< 32 in 34: 8 bits and a scale
  kQ2_K = 10,  ///< 256 in 84: 2 bits, scales and minima of 16
  kQ3_K = 11,  ///< 256 in 110: 3 bits, scales of 16
  kQ4_K = 12,  ///< 256 in 144: 4 bits, scales and minima of 32
  kQ5_K = 13,  ///< 256 in 176: 5 bits, scales and minima of 32
  kQ6_K = 14,  ///< 256 in 210: 6 bits, scales of 16
  kBf16 = 30,  ///< 1 in 2
};

/// The size of one block of a weight type: `elements` numbers in `bytes` bytes.
struct WeightBlock {
  std::int64_t elements = 1;  ///< numbers in one block
  std::int64_t bytes = 0;     ///< bytes of one block
};

/// Returns "F32", "Q4_K", ...
const char* WeightTypeName(WeightType type) noexcept;
/// Returns the block of a type that this library can read; nothing for every other GGUF type id.
std::optional<WeightBlock> FindWeightBlock(std::uint32_t gguf_type_id) noexcept;
/// Returns the block of `type`.
WeightBlock WeightBlockOf(WeightType type) noexcept;

/// Selects the arithmetic of products with low-bit weights.
enum class MathMode : std::uint8_t {
  kExact,  ///< weights as stored, f32 activations
  /// Activations are rounded to int8, or weights and activations to bf16, as RowRole in kinds.h
  /// says. Two int8 numbers, together about 16 bits, stand for each activation of a sequence's
  /// first token and of the first 64 tokens of a prompt; with low-bit weights that are not packed
  /// the first token takes activations in f32 instead.
  kFast,
};

}  // namespace manyhead
