#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/kv_layout.h"
#include "manyhead/kv_cache.h"
#include "manyhead/types.h"

/// Converts keys and values to each KV type, and places them as kernels/kv_layout.h says, by
/// separate code in double precision. Every step that the format rounds to f32 or f16 is rounded
/// here as well, so that quantised values agree bit for bit.

namespace manyhead::testing {

/// x rounded to what `type`, one of f32, f16 and bf16, can hold.
float RoundTo(KvType type, float x);

/// The bits of a value that f16 or bf16 holds exactly; NaN and infinities too.
std::uint16_t Encode(KvType type, float x);

/// One row of a head as int8 (one group, whose scale is f32) or int4 (groups of 32, f16).
struct QuantizedRow {
  struct Group {
    float scale = 0;
    float min = 0;  ///< only used in int4
  };
  std::vector<Group> groups;
  std::vector<int> codes;  ///< [D]
};

QuantizedRow QuantizeRow(KvType type, const float* x, std::int64_t n);

/// The numbers that rows of `n` elements each are after being stored as `type`.
std::vector<float> StoredRows(KvType type, const std::vector<float>& x, std::int64_t n);

/// Puts one token's key or value into a page, and touches nothing else: not even the other half of
/// a byte.
void PutKey(const kernels::KvPageLayout& layout, std::byte* page, std::int64_t slot,
            const float* k);
void PutValue(const kernels::KvPageLayout& layout, std::byte* page, std::int64_t slot,
              const float* v);

/// Fills the pages of one layer of a cache, from rows of any numbers. Slots of tokens that are not
/// stored, and lanes beyond head_dim_v, get `poison`; of int8 and int4, such slots' scales do and
/// their codes are arbitrary.
void PackPages(KvCache& cache, SequenceId sequence, std::int64_t layer, std::int64_t num_kv_heads,
               const std::vector<float>& k_SKD, const std::vector<float>& v_SKD, float poison);

}  // namespace manyhead::testing
