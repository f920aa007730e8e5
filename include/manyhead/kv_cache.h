#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "manyhead/isa.h"
#include "manyhead/status.h"
#include "manyhead/types.h"

namespace manyhead {

enum class SequenceId : std::int32_t {};

/// The key/value heads of one layer.
struct KvLayerShape {
  std::int64_t num_kv_heads = 0;  ///< K
  std::int64_t head_dim = 0;      ///< D of keys, 1..1024
  std::int64_t head_dim_v = 0;    ///< of values, 1..1024; 0 selects head_dim
};

struct KvCacheParams {
  std::vector<KvLayerShape> layers;
  KvType k_type = KvType::kF16;
  KvType v_type = KvType::kF16;
  std::int64_t page_size = 0;  ///< N, tokens of a page, a multiple of 16; 0 selects 64
  /// Hard cap on the bytes of all pages, at least one page for each KV head of each layer. Only
  /// pages in use take memory, so a large cap costs nothing but address space.
  std::int64_t capacity_bytes = 0;
  std::int64_t max_tokens = 0;  ///< most tokens of one sequence, at least 1
  std::optional<Isa> isa;       ///< of the packing kernels; default SelectIsa()
};

/// Bytes of pages held, by layer and KV head; the sum is what is allocated from the pool.
struct KvUsage {
  std::int64_t capacity_bytes = 0;
  std::int64_t used_bytes = 0;
  std::vector<std::vector<std::int64_t>> head_bytes;  ///< [layer][KV head]
};

/// Keys and values of many sequences in pages; a page belongs to one (sequence, layer, KV head).
///
/// A step appends tokens in three parts: Reserve room for them on every layer (the only part that
/// can fail), Write each layer's rows, and they count as soon as Reserve has returned. All
/// validation comes before any change: after an error the cache is as it was, and smaller requests
/// still work. Pages that Truncate or FreeSequence give back leave the process's memory at once and
/// serve every layer, whatever its page size.
///
/// Errors   kInvalidArgument, naming the argument and both values; Create also kUnsupported for an
///          instruction set this CPU lacks or address space the system refuses. Running out of
///          memory for page tables throws bad_alloc, with nothing changed.
/// Threads  one thread changes a cache at a time; reading is concurrent.
class KvCache {
 public:
  /// `params()` of the result has the defaults filled in.
  static Result<KvCache> Create(const KvCacheParams& params);
  KvCache(KvCache&&) noexcept;
  KvCache& operator=(KvCache&&) noexcept;
  ~KvCache();

  Result<SequenceId> CreateSequence();
  /// Gives back every page of `sequence`; its id is invalid from then on.
  Status FreeSequence(SequenceId sequence);

  /// Grows `sequence` by `count` tokens on every layer and head, whose rows are then to be written.
  /// Errors   kOutOfPages when the pool or max_tokens does not suffice, naming both values.
  Status Reserve(SequenceId sequence, std::int64_t count);

  /// Drops every token from position `length` on, and the pages that hold none of the rest.
  Status Truncate(SequenceId sequence, std::int64_t length);

  /// Stores the reserved rows [position, position + count) of one layer: k [count, K, D], v [count,
  /// K, Dv], f32, token strides `k_stride` and `v_stride` in elements (0 = dense).
  ///
  /// Accuracy that of the cache's types (see KvType), rounded to nearest even; the same bits on
  ///          every instruction set.
  Status Write(SequenceId sequence, std::int64_t layer, std::int64_t position, std::int64_t count,
               const float* k, const float* v, std::int64_t k_stride = 0,
               std::int64_t v_stride = 0);

  /// Reads one stored row back as f32: k [D], v [Dv]; either may be null.
  Status Read(SequenceId sequence, std::int64_t layer, std::int64_t head, std::int64_t position,
              float* k, float* v) const;

  /// Tokens of `sequence`; -1 for an unknown id.
  std::int64_t length(SequenceId sequence) const noexcept;
  const KvCacheParams& params() const noexcept;
  KvUsage usage() const;
  /// Of one sequence.
  Result<KvUsage> usage(SequenceId sequence) const;
  /// Bytes one token takes over all layers and heads: of the pages of page_size tokens, divided by
  /// page_size and rounded up.
  std::int64_t bytes_per_token() const noexcept;

  /// For other rooms of this library only: incomplete outside it.
  struct Impl;
  Impl& impl() noexcept { return *impl_; }
  const Impl& impl() const noexcept { return *impl_; }

 private:
  explicit KvCache(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

/// The least capacity_bytes that holds `sequences` sequences of `tokens` tokens each, both at least
/// 1; capacity_bytes and max_tokens of `params` are ignored.
Result<std::int64_t> KvCapacityBytes(const KvCacheParams& params, std::int64_t sequences,
                                     std::int64_t tokens);

}  // namespace manyhead
