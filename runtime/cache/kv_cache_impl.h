#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/kv_kernels.h"
#include "kernels/kv_layout.h"
#include "manyhead/kv_cache.h"
#include "runtime/cache/head_table.h"
#include "runtime/cache/page_pool.h"
#include "runtime/cache/snapshot_format.h"
#include "runtime/platform/team.h"

namespace manyhead {

/// Tokens [position, position + count) of a sequence, of which the first is row `row` of a matrix.
struct KvRows {
  SequenceId sequence{};
  std::int64_t position = 0;
  std::int64_t count = 0;
  std::int64_t row = 0;
};

/// The cache without its checks of arguments: ids, layers, heads and positions are the caller's
/// duty here, except where a function says otherwise.
///
/// An operation that takes memory runs in three parts: a Change is planned, which leaves everything
/// as it is; Admit compares it with the cap and allocates all it needs, or fails; what follows
/// cannot fail.
struct KvCache::Impl {
 public:
  /// `params` are resolved and in range.
  static Result<std::unique_ptr<Impl>> Create(KvCacheParams params);
  /// Bytes of tables that do not depend on the sequences.
  static std::int64_t FixedBytes(const KvCacheParams& params) noexcept;
  /// Bytes of the list of `sequences` sequences, and of one sequence without its heads' tables.
  static std::int64_t SlotBytes(std::int64_t sequences) noexcept;
  static std::int64_t SequenceBytes(std::int64_t heads) noexcept {
    return heads * static_cast<std::int64_t>(sizeof(HeadTable));
  }

  const KvCacheParams& params() const noexcept { return params_; }
  std::int64_t page_row_bytes() const noexcept { return page_row_bytes_; }
  const KvHead& Head(std::int64_t layer, std::int64_t head) const noexcept {
    return heads_[HeadIndex(layer, head)];
  }

  /// False for an id that was never given out or was freed.
  bool Has(SequenceId id) const noexcept {
    const Sequence* sequence = Find(id);
    return sequence != nullptr && !sequence->stored;
  }
  std::int64_t Length(SequenceId id) const noexcept { return Find(id)->length; }
  /// The first position whose query still finds all that its heads' policies let it see.
  std::int64_t FirstQuery(SequenceId id) const noexcept { return Find(id)->first_query; }

  /// The stored tokens of one head. Valid until the sequence changes.
  kernels::KvHeadView HeadView(SequenceId id, std::int64_t layer, std::int64_t head) const noexcept;
  bool Holds(SequenceId id, std::int64_t layer, std::int64_t head,
             std::int64_t position) const noexcept;

  /// Stores tokens of several sequences, already reserved and in pages of each sequence alone, in
  /// one layer: their rows of k [rows, K, D] and v [rows, K, Dv], token strides in elements. Every
  /// thread of a parallel region calls it with the same arguments; ends with a barrier.
  void WriteOn(Worker& worker, std::int64_t layer, std::span<const KvRows> tokens, const float* k,
               const float* v, std::int64_t k_stride, std::int64_t v_stride) noexcept;
  /// Of a token that is held.
  void ReadRow(SequenceId id, std::int64_t layer, std::int64_t head, std::int64_t position,
               float* k, float* v) const noexcept;
  /// Gives the sequence pages of its own for the rows [position, position + count) of `layer`.
  Status Unshare(SequenceId id, std::int64_t layer, std::int64_t position, std::int64_t count);

  Result<SequenceId> CreateSequence();
  void FreeSequence(SequenceId id) noexcept;
  Result<SequenceId> Fork(SequenceId id);
  /// count >= 0; 0 evicts only. `function` begins the message of an error.
  Status Reserve(SequenceId id, std::int64_t count, const char* function);
  /// 0 <= length <= Length(id). Whether it was exact.
  bool Truncate(SequenceId id, std::int64_t length) noexcept;
  std::int64_t ExactLength(SequenceId id, std::int64_t length) const noexcept;
  /// Length(id) <= begin <= end <= Length(source).
  Status Copy(SequenceId source, std::int64_t begin, std::int64_t end, SequenceId id);
  /// 0 <= begin <= end <= Length(id).
  Status Drop(SequenceId id, std::int64_t begin, std::int64_t end);

  /// Gives the head the policy `off`: whatever sequences hold of it goes at once, what is appended
  /// later is not stored.
  void TurnOff(std::int64_t layer, std::int64_t head) noexcept;

  std::vector<SequenceId> Sequences() const;
  Status Save(const std::string& path, std::span<const SequenceId> ids,
              const KvSnapshotInfo& info) const;
  Result<KvRestored> Restore(const std::string& path, const KvRestoreOptions& options);

  /// tokens.size() <= Length(id).
  Status StorePrefix(std::string_view key, std::span<const TokenId> tokens, SequenceId id);
  Result<std::optional<SequenceId>> ForkPrefix(std::string_view key,
                                               std::span<const TokenId> tokens);
  std::int64_t num_prefixes() const noexcept { return std::ssize(prefixes_); }
  /// Of those stored, the one that was longest not used; false if there is none.
  bool DropOldestPrefix() noexcept;
  /// Tests weaken the hashes of prefixes, to make all of them collide.
  std::uint64_t prefix_hash_mask = ~std::uint64_t{0};

  KvUsage Usage() const;
  KvUsage Usage(SequenceId id) const;
  std::vector<std::vector<KvHeadUsage>> HeadUsage(SequenceId id) const;

 private:
  struct Layer {
    std::int64_t num_kv_heads = 0;
    std::size_t first_head = 0;  ///< index of its head 0 among the heads of all layers
  };
  struct Sequence {
    std::int64_t length = 0;
    std::int64_t first_query = 0;
    bool stored = false;                 ///< of a prefix, and nobody's
    std::unique_ptr<HeadTable[]> heads;  ///< of all layers, in order; null = the slot is unused
  };
  struct Slot {
    std::uint32_t generation = 0;
    Sequence sequence;
  };
  /// A beginning of a text, whole pages, in a sequence of its own.
  struct StoredPrefix {
    std::string key;
    std::vector<TokenId> tokens;
    std::vector<std::uint64_t> hashes;  ///< of each page's tokens and all before
    SequenceId sequence{};

    /// Of the entry itself, in its list; the sequence's tables and pages count as any other's.
    std::int64_t bytes() const noexcept {
      return static_cast<std::int64_t>(2 * sizeof(void*) + sizeof(StoredPrefix) + key.size() +
                                       tokens.size() * sizeof(TokenId) +
                                       hashes.size() * sizeof(std::uint64_t));
    }
  };
  /// Room for more sequences.
  struct SlotRoom {
    std::vector<Slot> slots;  ///< of no capacity: as it is
    std::vector<std::uint32_t> free_slots;
  };
  /// A page of one head, and a table that holds it.
  struct PageHolder {
    std::byte* page = nullptr;
    const Sequence* sequence = nullptr;
    std::size_t index = 0;   ///< of the sequence among those that are saved
    std::int64_t place = 0;  ///< index in the table
  };
  class NewPages;
  class PageReader;
  /// A head's tables with more room.
  struct Grown {
    std::size_t head = 0;
    std::int64_t pages_room = 0;  ///< 0: as it is
    std::int64_t holes_room = 0;
    HeadTable table;
  };
  /// What an operation is going to take.
  struct Change {
    const char* function = nullptr;
    std::int64_t page_bytes = 0;  ///< may be negative
    std::int64_t table_bytes = 0;
    std::vector<Grown> grown;  ///< by head
  };

  Impl(KvCacheParams params, PagePool pool) noexcept;
  std::size_t HeadIndex(std::int64_t layer, std::int64_t head) const noexcept {
    return layers_[static_cast<std::size_t>(layer)].first_head + static_cast<std::size_t>(head);
  }
  /// Stores item `item` of some tokens: what one head has of them in one block of page_size tokens.
  void StoreItem(const KvRows& tokens, std::int64_t layer, std::int64_t item, const float* k,
                 const float* v, std::int64_t k_stride, std::int64_t v_stride) noexcept;
  const Sequence* Find(SequenceId id) const noexcept;
  Sequence* Find(SequenceId id) noexcept;

  Change Begin(const char* function) noexcept;
  /// `pages` more (or fewer) pages of a head.
  void PlanPages(Change& change, std::size_t head, std::int64_t pages) noexcept;
  /// A table of `table`, of a head, with room for so many entries.
  void PlanRoom(Change& change, std::size_t head, const HeadTable& table, std::int64_t pages,
                std::int64_t holes);
  /// Whether the cap allows it.
  Status CheckRoom(const Change& change) const;
  Status Admit(Change& change);
  /// Puts the grown tables of a change in place.
  void PutTables(Change& change, Sequence& sequence) noexcept;
  std::int64_t table_bytes() const noexcept {
    return fixed_bytes_ + slot_bytes_ + sequence_bytes_ + prefix_bytes_ + pool_.list_bytes();
  }

  std::byte* Take(std::size_t head) noexcept;
  void Give(std::size_t head, std::byte* page) noexcept;
  /// A page of the sequence's own with what `page` holds, which may be null.
  std::byte* TakeCopy(std::size_t head, std::byte* page) noexcept;
  bool IsOwn(std::size_t head, const std::byte* page) const noexcept {
    return page != nullptr && !pool_.IsShared(heads_[head].arena, page);
  }

  void PlanStep(Change& change, std::size_t head, HeadTable& table, std::int64_t length,
                std::int64_t count);
  /// Whether it evicted anything.
  bool EvictFrom(std::size_t head, HeadTable& table, std::int64_t length) noexcept;
  void GrowHead(std::size_t head, HeadTable& table, std::int64_t length,
                std::int64_t count) noexcept;
  bool NeedsOwnLast(std::size_t head, const HeadTable& table, std::int64_t length) const noexcept;
  Status TooLong(const char* function, std::int64_t length, std::int64_t count) const;
  bool JoinsPage(const HeadTable& from, const HeadTable& table, std::int64_t p) const noexcept;
  void PlanCopy(Change& change, std::size_t head, const HeadTable& from, const HeadTable& table,
                std::int64_t begin, std::int64_t end);
  void CopyHead(std::size_t head, const HeadTable& from, HeadTable& table, std::int64_t length,
                std::int64_t begin, std::int64_t end) noexcept;
  void PlanDrop(Change& change, std::size_t head, const Sequence& sequence, std::int64_t begin,
                std::int64_t end);
  /// Gives back the pages of [first, last) that hold none of the first `length` tokens.
  void GiveEmpty(std::size_t head, HeadTable& table, std::int64_t first, std::int64_t last,
                 std::int64_t length) noexcept;

  Result<SequenceId> CreateSequence(const char* function, const Sequence* like);
  bool NeedsSlots(std::int64_t count) const noexcept;
  /// Places of sequences, used or not, once there are `count` sequences more.
  std::int64_t SlotsWith(std::int64_t count) const noexcept;
  Status PlanSlots(Change& change, std::int64_t count) const;
  SlotRoom MakeSlots(std::int64_t count) const;
  void PutSlots(SlotRoom room) noexcept;
  SequenceId PutSequence(Sequence sequence) noexcept;
  SequenceId IdOf(std::uint32_t slot) const noexcept;

  std::vector<std::uint64_t> HashesOf(std::string_view key, std::span<const TokenId> tokens) const;
  std::int64_t PrefixLength(const StoredPrefix& entry, std::string_view key,
                            std::span<const TokenId> tokens,
                            std::span<const std::uint64_t> hashes) const noexcept;
  std::int64_t ExactPages(SequenceId id, std::int64_t length) const noexcept;
  void DropPrefix(std::list<StoredPrefix>::iterator entry) noexcept;

  std::vector<std::vector<PageHolder>> HoldersOf(std::span<const SequenceId> ids) const;
  Snapshot Describe(std::span<const SequenceId> ids,
                    const std::vector<std::vector<PageHolder>>& holders) const;
  void FillImage(std::size_t head, std::span<const PageHolder> holders,
                 std::span<std::byte> image) const noexcept;
  /// Of the tables of all its sequences.
  std::int64_t TableBytesOf(const Snapshot& snapshot) const noexcept;
  Sequence MakeSequence(const SnapshotSequence& from) const;

  KvCacheParams params_;
  const kernels::KvKernels* kernels_;
  PagePool pool_;
  std::int64_t page_row_bytes_ = 0;  ///< of page_size tokens on every layer and head
  std::int64_t fixed_bytes_ = 0;
  std::int64_t slot_bytes_ = 0;
  std::int64_t sequence_bytes_ = 0;  ///< of all sequences' tables
  std::vector<Layer> layers_;
  std::vector<KvHead> heads_;
  std::vector<std::int64_t> head_pages_;   ///< pages in use, by head
  std::vector<std::int64_t> added_pages_;  ///< of the change under way, by arena
  std::vector<Slot> slots_;
  std::vector<std::uint32_t> free_slots_;
  std::list<StoredPrefix> prefixes_;  ///< the last used first
  std::int64_t prefix_bytes_ = 0;     ///< of the entries
};

struct SequenceCache {
  KvCache cache;
  SequenceId sequence;
};

/// A cache with room for one sequence of params.max_tokens in steps of up to `step`, and that
/// sequence, and beside it `prefix_bytes` for what StorePrefix keeps. capacity_bytes of `params` is
/// a lower cap, unless it is 0.
Result<SequenceCache> CreateSequenceCache(KvCacheParams params, std::int64_t step,
                                          std::int64_t prefix_bytes = 0);

}  // namespace manyhead
