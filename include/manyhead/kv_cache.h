#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "manyhead/export.h"
#include "manyhead/isa.h"
#include "manyhead/status.h"
#include "manyhead/types.h"

namespace MANYHEAD_API manyhead {

/// Names a sequence of one cache. Ids of sequences that were freed are not used again.
enum class SequenceId : std::int32_t {};

/// The key/value heads of one layer.
struct KvLayerShape {
  std::int64_t num_kv_heads = 0;  ///< K
  std::int64_t head_dim = 0;      ///< D of keys, 1..1024
  std::int64_t head_dim_v = 0;    ///< of values, 1..1024; 0 selects head_dim
};

/// Which tokens a head keeps.
enum class KvPolicyKind : std::uint8_t {
  kFull,        ///< every token
  kWindow,      ///< a query at position i sees the tokens (i - recent, i]
  kSinkRecent,  ///< ... and the first `sink` tokens of the sequence (arXiv:2309.17453)
  /// Between two steps at most `budget` tokens, of which the first `sink` and the newest `recent`
  /// always. The others are kept in groups of 16 neighbours by the attention their keys received,
  /// summed over all queries of the head's group so far (arXiv:2306.14048); of equals the later
  /// stays. What is kept depends on how the tokens were cut into steps.
  kBudget,
  kOff,  ///< neither stored nor read: the head's queries give zeros, lse = -inf
};

/// What one KV head keeps of a sequence.
struct KvPolicy {
  KvPolicyKind kind = KvPolicyKind::kFull;  ///< which of the following count
  std::int64_t sink = 0;                    ///< of kSinkRecent and kBudget
  std::int64_t recent = 0;                  ///< of kWindow and kSinkRecent at least 1
  std::int64_t budget = 0;                  ///< of kBudget, at least sink + recent + 32

  /// Every token.
  static KvPolicy Full() noexcept { return {}; }
  /// The last `tokens` tokens.
  static KvPolicy Window(std::int64_t tokens) noexcept {
    return {KvPolicyKind::kWindow, 0, tokens, 0};
  }
  /// The first `sink` and the last `recent` tokens.
  static KvPolicy SinkRecent(std::int64_t sink, std::int64_t recent) noexcept {
    return {KvPolicyKind::kSinkRecent, sink, recent, 0};
  }
  /// The `tokens` tokens that received most attention, the last `recent` and first `sink` among
  /// them.
  static KvPolicy Budget(std::int64_t tokens, std::int64_t recent, std::int64_t sink = 0) noexcept {
    return {KvPolicyKind::kBudget, sink, recent, tokens};
  }
  /// None.
  static KvPolicy Off() noexcept { return {KvPolicyKind::kOff, 0, 0, 0}; }

  /// Member by member.
  friend bool operator==(const KvPolicy&, const KvPolicy&) noexcept = default;
};

/// How one KV head is stored, and what of it.
struct KvHeadParams {
  KvType k_type = KvType::kF16;  ///< of its keys
  KvType v_type = KvType::kF16;  ///< of its values
  KvPolicy policy;               ///< which tokens stay

  /// Member by member.
  friend bool operator==(const KvHeadParams&, const KvHeadParams&) noexcept = default;
};

/// What a KvCache is made for.
struct KvCacheParams {
  std::vector<KvLayerShape> layers;  ///< at least one
  KvType k_type = KvType::kF16;      ///< of all heads, unless `heads` says otherwise
  KvType v_type = KvType::kF16;      ///< likewise
  /// [layer][KV head], or empty: k_type, v_type and the full policy for every head.
  std::vector<std::vector<KvHeadParams>> heads;
  /// N, tokens of a page, a multiple of 16; 0 selects 64. Pages of heads with a budget hold 16.
  std::int64_t page_size = 0;
  /// Hard cap on the bytes of all pages and tables, at least one page for each KV head of each
  /// layer. Only what is in use takes memory, so a large cap costs nothing but address space.
  std::int64_t capacity_bytes = 0;
  std::int64_t max_tokens = 0;     ///< most tokens of one sequence, at least 1
  std::int64_t max_prefixes = 64;  ///< most beginnings that StorePrefix keeps
  std::optional<Isa> isa;          ///< of the packing kernels; default SelectIsa()
};

/// Bytes held: used_bytes + table_bytes never exceeds capacity_bytes.
struct KvUsage {
  std::int64_t capacity_bytes = 0;  ///< the cap
  std::int64_t used_bytes = 0;      ///< of pages; the sum of head_bytes
  /// [layer][KV head]. In the whole cache's usage a page that sequences share counts once, in a
  /// sequence's own it counts for each.
  std::vector<std::vector<std::int64_t>> head_bytes;
  /// Of page tables, holes, scores and sequences; the whole cache's also of the pool's own lists.
  std::int64_t table_bytes = 0;
};

/// What one head holds of a sequence.
struct KvHeadUsage {
  std::int64_t tokens = 0;      ///< stored
  std::int64_t pages = 0;       ///< that hold them
  std::int64_t page_bytes = 0;  ///< of one page
};

/// What a snapshot says beside what its sequences hold.
struct KvSnapshotInfo {
  /// Where keys and values come from, e.g. which model: a snapshot of another is refused.
  std::string fingerprint{};
  std::string user_data{};  ///< any bytes, given back by Restore
};

/// What Restore accepts.
struct KvRestoreOptions {
  std::string fingerprint{};  ///< the one that the snapshot must have
  /// Restores heads whose types are others than the snapshot's. A number whose type stays keeps
  /// its bits; f32 takes over what Read gives exactly, and f16 and bf16 do f32's numbers that they
  /// can hold; else it is rounded as Write would (see KvType), a second time.
  bool convert_types = false;
};

/// What Restore added.
struct KvRestored {
  std::vector<SequenceId> sequences;  ///< in the order in which they were saved
  std::string user_data;              ///< of KvSnapshotInfo
};

/// Keys and values of many sequences, in pages that each belong to one (layer, KV head).
///
/// Every (sequence, layer, KV head) has its own page table, so heads of one layer may differ in
/// what they hold, in type and in policy; attention reads the pages where they lie. All pages and
/// tables are under one cap in bytes, whatever their sizes.
///
/// A step appends tokens in three parts: Reserve room for them on every layer, Write each layer's
/// rows, and they count as soon as Reserve has returned. All validation comes before any change:
/// after an error the cache is as it was, and smaller requests still work. Pages that nobody holds
/// any more leave the process's memory at once and serve every head, whatever its page size.
///
/// Positions   A token keeps the position at which it was appended for as long as it is held:
///             nothing moves up when others are evicted or dropped. Keys come with their rotary
///             embedding, so it is that of this position; causal, windows, ALiBi, bias and mask
///             count in these positions too; the next token's position is length().
/// Policies    decide what queries see, exactly to the token and the same for every way to cut a
///             text into steps (budgets aside), and beyond that what is stored: a page goes when
///             no later query can see any of its tokens. Reserve does that for the tokens before
///             its step, so a step's own tokens are always there for its queries.
/// Sharing     Fork and Copy share pages; a sequence that writes into a shared page gets its own
///             copy of it first.
/// Growth      never moves keys or values.
/// Errors   kInvalidArgument, naming the argument and both values; Create also kUnsupported for an
///          instruction set this CPU lacks or address space the system refuses; kOutOfPages where
///          capacity_bytes or max_tokens do not suffice, naming both values. Running out of memory
///          for tables throws bad_alloc, with nothing changed.
/// Threads  one thread changes a cache at a time; reading is concurrent. Attention over heads with
///          a budget adds to their scores: of one sequence it may run once at a time.
class KvCache {
 public:
  /// `params()` of the result has the defaults filled in, `heads` too.
  static Result<KvCache> Create(const KvCacheParams& params);
  KvCache(KvCache&&) noexcept;
  KvCache& operator=(KvCache&&) noexcept;
  ~KvCache();

  /// An empty sequence.
  Result<SequenceId> CreateSequence();
  /// Gives back every page that only `sequence` holds; its id is invalid from then on.
  Status FreeSequence(SequenceId sequence);

  /// A sequence that holds what `sequence` does, in the same pages. Cost: a pointer for each page;
  /// nothing of keys and values is copied before one of the two writes.
  Result<SequenceId> Fork(SequenceId sequence);

  /// Grows `sequence` by `count` tokens on every layer and head, whose rows are then to be written.
  /// Before, heads evict what no query from the present length on may see.
  Status Reserve(SequenceId sequence, std::int64_t count);

  /// Evicts what policies do not keep for queries from the present length on, as the next Reserve
  /// would; after a long step it gives the pages back early.
  Status Evict(SequenceId sequence);

  /// Drops every token from position `length` on, and the pages that hold none of the rest. The
  /// result tells whether that is exact: true when the sequence is now, for all queries to come, as
  /// if those tokens had never been appended; false when a policy had evicted tokens that would
  /// still be held, or (budgets) chosen by what the dropped tokens attended to.
  Result<bool> Truncate(SequenceId sequence, std::int64_t length);

  /// The greatest length up to `length` to which Truncate would be exact.
  Result<std::int64_t> ExactLength(SequenceId sequence, std::int64_t length) const;

  /// Appends to `sequence` what `source` holds of the positions [begin, end), at the same
  /// positions, in the same pages. begin is at least length(sequence); the positions between count
  /// as dropped. Where both hold a part of one page, those tokens are copied.
  Status Copy(SequenceId source, std::int64_t begin, std::int64_t end, SequenceId sequence);

  /// Drops the tokens [begin, end) from every head, and the pages that hold none of the rest. No
  /// query sees them from then on; length and all other positions stay.
  Status Drop(SequenceId sequence, std::int64_t begin, std::int64_t end);

  /// Stores the reserved rows [position, position + count) of one layer: k [count, K, D], v [count,
  /// K, Dv], f32, token strides `k_stride` and `v_stride` in elements (0 = dense). Rows that a head
  /// does not hold are left out.
  ///
  /// Errors   kOutOfPages when rows lie in pages shared with another sequence and there is no room
  ///          for copies; never for rows of the last Reserve.
  /// Accuracy that of the head's types (see KvType), rounded to nearest even; the same bits on
  ///          every instruction set.
  Status Write(SequenceId sequence, std::int64_t layer, std::int64_t position, std::int64_t count,
               const float* k, const float* v, std::int64_t k_stride = 0,
               std::int64_t v_stride = 0);

  /// Reads one stored row back as f32: k [D], v [Dv]; either may be null.
  /// Errors   kInvalidArgument also for a token that the head does not hold.
  Status Read(SequenceId sequence, std::int64_t layer, std::int64_t head, std::int64_t position,
              float* k, float* v) const;

  /// Whether the head stores the token at `position`; false for arguments out of range.
  bool Holds(SequenceId sequence, std::int64_t layer, std::int64_t head,
             std::int64_t position) const noexcept;

  /// Writes all that `sequences` hold to a file: tokens, positions, holes, scores. Pages that they
  /// share are there once, what was evicted is not. The file appears under `path` when it is whole
  /// and on the disk; if the process or the machine dies before, the file that was there stays.
  /// Only its owner can read it.
  ///
  /// Errors   kIoError naming `path`: it cannot be written, or is there and no regular file.
  /// Cost     reading the pages and writing them; memory for tables and a page.
  Status Save(const std::string& path, std::span<const SequenceId> sequences,
              const KvSnapshotInfo& info = {}) const;

  /// Adds the sequences of a snapshot, which share pages as they did. What follows gives the same
  /// bits as if they had never been away. max_tokens and capacity_bytes may be others than when it
  /// was saved, and the instruction set too.
  ///
  /// Everything is checked before anything changes, the checksum of the whole file first; the file
  /// is read twice.
  ///
  /// Errors   each names the file, the place and both values: kIoError for one that cannot be read,
  ///          is cut off, damaged or contradicts itself; kUnsupported for another version;
  ///          kInvalidArgument where fingerprint, shapes, page_size, policies or types are others
  ///          than this cache's; kOutOfPages.
  Result<KvRestored> Restore(const std::string& path, const KvRestoreOptions& options = {});

  /// All there are, but for what StorePrefix keeps.
  std::vector<SequenceId> sequences() const;

  /// Keeps the first tokens of `sequence`, whose ids are `tokens`, as far as they fill whole pages
  /// (params().page_size tokens), to be found again by these ids after the sequence is gone as
  /// well. Costs no page: they are shared. `key` names what else keys and values depend on, such as
  /// the model or its arithmetic.
  ///
  /// What is kept stands back: the beginning that was longest not used goes where an operation
  /// finds no room, or when there are max_prefixes. So it takes no room from anyone, but for the
  /// pool's lists, which keep the length they once had: 4.25 bytes a page.
  ///
  /// A head with a budget depends on all tokens so far: what is kept of it is nothing, unless
  /// `tokens` are all of the sequence and fill its pages.
  /// Errors   also kInvalidArgument for more ids than the sequence has tokens.
  Status StorePrefix(std::string_view key, std::span<const TokenId> tokens, SequenceId sequence);

  /// A new sequence that shares the longest beginning of `tokens` that was kept under `key`, or
  /// nothing. Found by a hash of each page's ids and all before, then compared id by id. Where
  /// windows have evicted what a shorter text would see, only what is exact is taken.
  Result<std::optional<SequenceId>> ForkPrefix(std::string_view key,
                                               std::span<const TokenId> tokens);

  /// Beginnings that are kept now.
  std::int64_t num_prefixes() const noexcept;
  /// Forgets them all, and gives back the pages that nobody else holds.
  void ClearPrefixes() noexcept;

  /// Tokens of `sequence`, held or not; -1 for an unknown id.
  std::int64_t length(SequenceId sequence) const noexcept;
  /// With the defaults filled in, `heads` too.
  const KvCacheParams& params() const noexcept;
  /// Of the whole cache.
  KvUsage usage() const;
  /// Of one sequence.
  Result<KvUsage> usage(SequenceId sequence) const;
  /// [layer][KV head]
  Result<std::vector<std::vector<KvHeadUsage>>> head_usage(SequenceId sequence) const;
  /// Bytes one token takes over all layers and heads while they hold it: of whole pages, divided by
  /// their tokens and rounded up.
  std::int64_t bytes_per_token() const noexcept;
  /// Of one head.
  std::int64_t bytes_per_token(std::int64_t layer, std::int64_t head) const noexcept;

  /// For other rooms of this library only: incomplete outside it.
  struct Impl;
  Impl& impl() noexcept { return *impl_; }
  const Impl& impl() const noexcept { return *impl_; }

 private:
  explicit KvCache(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

/// The least capacity_bytes that holds `sequences` sequences of `tokens` tokens each, both at least
/// 1, appended in steps of up to `step` tokens (0: all at once), tables included; capacity_bytes
/// and max_tokens of `params` are ignored.
Result<std::int64_t> KvCapacityBytes(const KvCacheParams& params, std::int64_t sequences,
                                     std::int64_t tokens, std::int64_t step = 0);

/// "full", "window(512)", "sink(4)+recent(256)", "budget(512)+recent(128)", with sink(n) too,
/// "off".
std::string FormatKvPolicy(const KvPolicy& policy);
/// Reads what FormatKvPolicy writes, parts in any order. A budget without recent(m) gets half of
/// it.
/// Errors   kInvalidArgument, naming the part that is wrong.
Result<KvPolicy> ParseKvPolicy(std::string_view text);

/// Types and policies of every head from a text: a policy for all heads, or JSON.
///
///   {"heads": [{"layers": [0, "2-5"], "kv_heads": [1], "k_type": "int8", "v_type": "int4",
///               "policy": "sink(4)+recent(256)"}, ...]}
///
/// Entries apply in order. One without "layers" or "kv_heads" applies to all of them, what it does
/// not name stays as it was; `params` (layers, k_type, v_type) says what it starts from.
///
/// Errors   kInvalidArgument, naming the entry, the key and what was expected.
Result<std::vector<std::vector<KvHeadParams>>> ParseKvHeads(std::string_view text,
                                                            const KvCacheParams& params);
/// The JSON that ParseKvHeads reads back to the same, for any types that `params` start from.
std::string FormatKvHeads(const std::vector<std::vector<KvHeadParams>>& heads);

}  // namespace manyhead
