#include "runtime/linear/pack.h"

#include <emmintrin.h>

#include <algorithm>
#include <cstring>
#include <span>

#include "runtime/linear/linear_impl.h"
#include "runtime/platform/dcheck.h"
#include "runtime/platform/math.h"

namespace manyhead {
namespace {

using kernels::kPackedRows;

enum class FieldKind : std::uint8_t {
  kHalves,  ///< 16-bit numbers
  kWords,   ///< anything, moved four bytes at a time
  kFifths,  ///< a bit for each of 32 columns
};

/// A part of a type's block.
struct Field {
  int offset;
  int bytes;
  FieldKind kind;
};

std::span<const Field> FieldsOf(WeightType type) noexcept {
  using enum FieldKind;
  static constexpr Field kQ4_0[] = {{0, 2, kHalves}, {2, 16, kWords}};
  static constexpr Field kQ4_1[] = {{0, 4, kHalves}, {4, 16, kWords}};
  static constexpr Field kQ5_0[] = {{0, 2, kHalves}, {2, 4, kFifths}, {6, 16, kWords}};
  static constexpr Field kQ5_1[] = {{0, 4, kHalves}, {4, 4, kFifths}, {8, 16, kWords}};
  static constexpr Field kQ8_0[] = {{0, 2, kHalves}, {2, 32, kWords}};
  static constexpr Field kQ2_K[] = {{0, 80, kWords}, {80, 4, kHalves}};
  static constexpr Field kQ3_K[] = {{0, 108, kWords}, {108, 2, kHalves}};
  static constexpr Field kQ4_K[] = {{0, 4, kHalves}, {4, 140, kWords}};
  static constexpr Field kQ5_K[] = {{0, 4, kHalves}, {4, 172, kWords}};
  static constexpr Field kQ6_K[] = {{0, 208, kWords}, {208, 2, kHalves}};
  switch (type) {
    case WeightType::kQ4_0:
      return kQ4_0;
    case WeightType::kQ4_1:
      return kQ4_1;
    case WeightType::kQ5_0:
      return kQ5_0;
    case WeightType::kQ5_1:
      return kQ5_1;
    case WeightType::kQ8_0:
      return kQ8_0;
    case WeightType::kQ2_K:
      return kQ2_K;
    case WeightType::kQ3_K:
      return kQ3_K;
    case WeightType::kQ4_K:
      return kQ4_K;
    case WeightType::kQ5_K:
      return kQ5_K;
    case WeightType::kQ6_K:
      return kQ6_K;
    default:
      return {};
  }
}

std::uint32_t LoadWord(const std::byte* p) noexcept {
  std::uint32_t word;
  std::memcpy(&word, p, sizeof word);
  return word;
}

void StoreWord(std::byte* p, std::uint32_t word) noexcept { std::memcpy(p, &word, sizeof word); }

/// Gathers bits 0, 4, .. 28 of `word` side by side; the inverse follows.
std::uint32_t GatherFourths(std::uint32_t word) noexcept {
  word &= 0x11111111;
  word = (word | word >> 3) & 0x03030303;
  word = (word | word >> 6) & 0x000f000f;
  return (word | word >> 12) & 0xff;
}

std::uint32_t SpreadFourths(std::uint32_t byte) noexcept {
  byte = (byte | byte << 12) & 0x000f000f;
  byte = (byte | byte << 6) & 0x03030303;
  return (byte | byte << 3) & 0x11111111;
}

/// Moves bit 4 i + k to bit i of byte k; the inverse follows.
inline std::uint32_t PackFifths(std::uint32_t word) noexcept {
  std::uint32_t packed = 0;
  for (int k = 0; k < 4; ++k) packed |= GatherFourths(word >> k) << (8 * k);
  return packed;
}

inline std::uint32_t UnpackFifths(std::uint32_t packed) noexcept {
  std::uint32_t word = 0;
  for (int k = 0; k < 4; ++k) word |= SpreadFourths(packed >> (8 * k) & 0xff) << k;
  return word;
}

/// The positions of pieces: the piece of row r and index i lies at data + r * row + i * next.
template <class Byte>
struct Grid {
  Byte* data;
  std::int64_t row, next;
  Byte* At(std::int64_t r, std::int64_t i) const noexcept { return data + r * row + i * next; }
};

/// Transposes four words at each of four places `from_step` apart into columns at `to`.
void TransposeFour(const std::byte* from, std::int64_t from_step, std::byte* to,
                   std::int64_t to_step) noexcept {
  __m128i in[4];
  for (int i = 0; i < 4; ++i)
    in[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i * from_step));
  const __m128i low01 = _mm_unpacklo_epi32(in[0], in[1]), low23 = _mm_unpacklo_epi32(in[2], in[3]);
  const __m128i top01 = _mm_unpackhi_epi32(in[0], in[1]), top23 = _mm_unpackhi_epi32(in[2], in[3]);
  const __m128i out[4] = {_mm_unpacklo_epi64(low01, low23), _mm_unpackhi_epi64(low01, low23),
                          _mm_unpacklo_epi64(top01, top23), _mm_unpackhi_epi64(top01, top23)};
  for (int i = 0; i < 4; ++i)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i * to_step), out[i]);
}

/// Moves words between the two orders: in one the words of a row are neighbours, in the other the
/// words of all rows.
void MoveWords(const Grid<const std::byte>& from, const Grid<std::byte>& to, std::int64_t rows,
               std::int64_t words) noexcept {
  const std::int64_t from_step = from.next == 4 ? from.row : from.next;
  const std::int64_t to_step = to.next == 4 ? to.row : to.next;
  const std::int64_t tile_rows = rows / 4 * 4, tile_words = words / 4 * 4;
  for (std::int64_t w = 0; w < tile_words; w += 4)
    for (std::int64_t r = 0; r < tile_rows; r += 4)
      TransposeFour(from.At(r, w), from_step, to.At(r, w), to_step);
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t w = r < tile_rows ? tile_words : 0; w < words; ++w)
      std::memcpy(to.At(r, w), from.At(r, w), 4);
}

/// Moves one block of rows [first, first + rows) of a group. The packed side is the group's block,
/// the other side the block of the first row, with `stored_row` bytes to the next row.
template <bool kPack>
void MoveBlock(WeightType type, const std::byte* from, std::byte* to, std::int64_t stored_row,
               std::int64_t first, std::int64_t rows) noexcept {
  for (const Field& field : FieldsOf(type)) {
    const std::int64_t step = field.kind == FieldKind::kHalves ? 2 : 4;
    const std::int64_t packed = field.offset * kPackedRows + first * step;
    const std::int64_t side_by_side = step * kPackedRows;
    const Grid<const std::byte> in =
        kPack ? Grid<const std::byte>{from + field.offset, stored_row, step}
              : Grid<const std::byte>{from + packed, step, side_by_side};
    const Grid<std::byte> out = kPack ? Grid<std::byte>{to + packed, step, side_by_side}
                                      : Grid<std::byte>{to + field.offset, stored_row, step};
    if (field.kind == FieldKind::kWords) {
      MoveWords(in, out, rows, field.bytes / 4);
      continue;
    }
    if (field.kind == FieldKind::kFifths) {
      std::uint32_t words[kPackedRows] = {};
      for (std::int64_t r = 0; r < rows; ++r) words[r] = LoadWord(in.At(r, 0));
      // The loop covers all words, so that the compiler can vectorise it.
      for (std::uint32_t& word : words) word = (kPack ? PackFifths : UnpackFifths)(word);
      for (std::int64_t r = 0; r < rows; ++r) StoreWord(out.At(r, 0), words[r]);
      continue;
    }
    for (std::int64_t i = 0; i < field.bytes / step; ++i)
      for (std::int64_t r = 0; r < rows; ++r) std::memcpy(out.At(r, i), in.At(r, i), 2);
  }
}

}  // namespace

bool CanPack(const WeightView& weight) noexcept {
  return !weight.packed && weight.stride_bytes == 0 && !FieldsOf(weight.type).empty();
}

std::int64_t PackedGroups(const WeightView& weight) noexcept {
  return CeilDiv(weight.rows, kPackedRows);
}

std::int64_t PackedGroupBytes(const WeightView& weight) noexcept {
  return WeightRowBytes(weight) * kPackedRows;
}

void PackGroup(const WeightView& weight, std::int64_t group, std::byte* out) noexcept {
  const std::int64_t row_bytes = WeightRowBytes(weight), first = group * kPackedRows;
  const std::int64_t rows = std::min(kPackedRows, weight.rows - first);
  const std::byte* from = weight.data + first * row_bytes;
  if (rows < kPackedRows) std::fill_n(out, PackedGroupBytes(weight), std::byte{0});
  const std::int64_t block_bytes = WeightBlockOf(weight.type).bytes;
  for (std::int64_t b = 0; b < row_bytes; b += block_bytes)
    MoveBlock<true>(weight.type, from + b, out + b * kPackedRows, row_bytes, 0, rows);
}

void UnpackRows(const WeightView& weight, std::int64_t row, std::int64_t rows, std::int64_t first,
                std::int64_t cols, std::byte* out, std::int64_t out_stride) noexcept {
  MANYHEAD_DCHECK(weight.packed && row % kPackedRows + rows <= kPackedRows);
  const std::int64_t r = row % kPackedRows, block_bytes = WeightBlockOf(weight.type).bytes;
  const std::byte* from = weight.data + row / kPackedRows * linear::StrideBytes(weight) +
                          linear::BytesOf(weight.type, first) * kPackedRows;
  const std::int64_t bytes = linear::BytesOf(weight.type, cols);
  for (std::int64_t b = 0; b < bytes; b += block_bytes)
    MoveBlock<false>(weight.type, from + b * kPackedRows, out + b, out_stride, r, rows);
}

}  // namespace manyhead
