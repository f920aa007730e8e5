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

/// Identifies a sequence of one cache. Ids of sequences that were freed are not used again.
enum class SequenceId : std::int32_t {};

/// The key/value heads of one layer.
struct KvLayerShape {
  std::int64_t num_kv_heads = 0;  ///< K
  std::int64_t head_dim = 0;      ///< D, elements of a key, 1..1024
  std::int64_t head_dim_v = 0;    ///< elements of a value, 1..1024; 0 selects head_dim
};

/// Says which tokens a head keeps.
enum class KvPolicyKind : std::uint8_t {
  kFull,        ///< every token
  kWindow,      ///< a query at position i sees the tokens (i - recent, i]
  kSinkRecent,  ///< the same, and the first `sink` tokens of the sequence (arXiv:2309.17453)
  /// Between two steps the head holds at most `budget` tokens, among them always the first `sink`
  /// and the newest `recent`. The others are kept in groups of 16 neighbours, selected by the
  /// attention that their keys received, summed over all queries of the head's group so far
  /// (arXiv:2306.14048); of equal groups the later one is kept. The choice depends on how the
  /// tokens were divided into steps.
  kBudget,
  kOff,  ///< tokens are neither stored nor read: the head's queries give zeros, lse = -inf
};

/// The tokens of a sequence that one KV head keeps.
struct KvPolicy {
  KvPolicyKind kind = KvPolicyKind::kFull;  ///< kind; decides which of the following members count
  std::int64_t sink = 0;                    ///< first tokens kept, in kSinkRecent and kBudget
  std::int64_t recent = 0;  ///< newest tokens kept; in kWindow and kSinkRecent at least 1
  std::int64_t budget = 0;  ///< largest number of tokens in kBudget, at least sink + recent + 32
  /// Tokens behind the window that stay stored although no query sees them, so that Truncate by up
  /// to as many tokens is exact. In kWindow and kSinkRecent; 0 in the other kinds.
  std::int64_t margin = 0;

  /// Keeps every token.
  static KvPolicy Full() noexcept { return {}; }
  /// Keeps the last `tokens` tokens, and stores `margin` tokens more.
  static KvPolicy Window(std::int64_t tokens, std::int64_t margin = 0) noexcept {
    return {KvPolicyKind::kWindow, 0, tokens, 0, margin};
  }
  /// Keeps the first `sink` and the last `recent` tokens, and stores `margin` tokens more.
  static KvPolicy SinkRecent(std::int64_t sink, std::int64_t recent,
                             std::int64_t margin = 0) noexcept {
    return {KvPolicyKind::kSinkRecent, sink, recent, 0, margin};
  }
  /// Keeps the `tokens` tokens that received most attention, among them always the last `recent`
  /// and the first `sink`.
  static KvPolicy Budget(std::int64_t tokens, std::int64_t recent, std::int64_t sink = 0) noexcept {
    return {KvPolicyKind::kBudget, sink, recent, tokens, 0};
  }
  /// Keeps no token.
  static KvPolicy Off() noexcept { return {KvPolicyKind::kOff, 0, 0, 0, 0}; }

  /// Compares member by member.
  friend bool operator==(const KvPolicy&, const KvPolicy&) noexcept = default;
};

/// Types and policy of one KV head.
struct KvHeadParams {
  KvType k_type = KvType::kF16;  ///< type of its keys
  KvType v_type = KvType::kF16;  ///< type of its values
  KvPolicy policy;               ///< tokens that it keeps

  /// Compares member by member.
  friend bool operator==(const KvHeadParams&, const KvHeadParams&) noexcept = default;
};

/// Shapes, types and limits of a KvCache.
struct KvCacheParams {
  std::vector<KvLayerShape> layers;  ///< at least one
  KvType k_type = KvType::kF16;      ///< type of keys in all heads, unless `heads` says otherwise
  KvType v_type = KvType::kF16;      ///< type of values in all heads, unless `heads` says otherwise
  /// [layer][KV head], or empty: k_type, v_type and the full policy for every head.
  std::vector<std::vector<KvHeadParams>> heads;
  /// N, tokens of a page, a multiple of 16; 0 selects 64. Pages of heads with a budget hold 16.
  std::int64_t page_size = 0;
  /// Hard cap on the bytes of all pages and tables, at least one page for each KV head of each
  /// layer. Only pages in use occupy memory, so a large cap costs nothing but address space.
  std::int64_t capacity_bytes = 0;
  std::int64_t max_tokens = 0;     ///< largest number of tokens of one sequence, at least 1
  std::int64_t max_prefixes = 64;  ///< largest number of cached prefixes that StorePrefix keeps
  std::optional<Isa> isa;          ///< instruction set of the packing kernels; default SelectIsa()
};

/// Bytes held by a cache; used_bytes + table_bytes never exceeds capacity_bytes.
struct KvUsage {
  std::int64_t capacity_bytes = 0;  ///< the cap
  std::int64_t used_bytes = 0;      ///< bytes of pages; the sum of head_bytes
  /// [layer][KV head]. In the usage of the whole cache a page that sequences share counts once; in
  /// the usage of a sequence it counts for each.
  std::vector<std::vector<std::int64_t>> head_bytes;
  /// Bytes of page tables, gaps, scores and sequences; for the whole cache also those of the pool's
  /// own lists.
  std::int64_t table_bytes = 0;
};

/// The tokens and pages that one head holds of a sequence.
struct KvHeadUsage {
  std::int64_t tokens = 0;      ///< tokens stored
  std::int64_t pages = 0;       ///< pages that hold them
  std::int64_t page_bytes = 0;  ///< bytes of one page
};

/// Data that a snapshot stores besides its sequences.
struct KvSnapshotInfo {
  /// Says where keys and values come from, e.g. from which model; Restore refuses a snapshot with
  /// another fingerprint.
  std::string fingerprint{};
  std::string user_data{};  ///< any bytes; Restore returns them
};

/// Says which snapshots Restore accepts.
struct KvRestoreOptions {
  std::string fingerprint{};  ///< fingerprint that the snapshot must have
  /// Whether heads may have other types than in the snapshot. A number whose type stays keeps its
  /// bits; f32 takes exactly the value that Read gives; f16 and bf16 keep numbers of f32 that they
  /// can represent; all others are rounded once more, as Write would (see KvType).
  bool convert_types = false;
};

/// The sequences that Restore added.
struct KvRestored {
  std::vector<SequenceId> sequences;  ///< in the order in which they were saved
  std::string user_data;              ///< KvSnapshotInfo::user_data of the snapshot
};

/// Keys and values of many sequences, in pages that each belong to one (layer, KV head).
///
/// Every (sequence, layer, KV head) has its own page table, so heads of one layer may differ in the
/// tokens they hold, in type and in policy; attention reads the pages in place. All pages and
/// tables are under one cap in bytes, whatever their sizes.
///
/// A step appends tokens in two calls: Reserve allocates room for them on every layer, and Write
/// stores each layer's rows; the tokens count as soon as Reserve has returned. All validation comes
/// before any change: after an error the cache is unchanged, and smaller requests still work. The
/// memory of pages that no sequence holds any more is returned to the OS at once and can serve
/// every head, whatever its page size.
///
/// Positions   A token keeps the position at which it was appended for as long as it is held: the
///             positions do not change when others are evicted or dropped. Keys are stored with
///             their rotary embedding, which is that of this position; causal, windows, ALiBi, bias
///             and mask count in these positions too; the next token's position is length().
/// Policies    A policy decides which tokens queries see, exactly to the token and the same for
///             every way to divide a sequence into steps (except with budgets). What is stored
///             follows from it: a page is released when no later query can see any of its tokens.
///             Reserve does that for the tokens before its step, so the tokens of a step are always
///             there for its queries.
/// Sharing     Fork and Copy share pages; a sequence that writes into a shared page gets its own
///             copy of it first.
/// Growth      A growing cache never moves keys or values.
/// Errors      kInvalidArgument, naming the argument and both values; Create also kUnsupported for
///             an instruction set that this CPU lacks, or address space that the system refuses;
///             kOutOfPages where capacity_bytes or max_tokens do not suffice, naming both values.
///             Running out of memory for tables throws bad_alloc, with nothing changed.
/// Threads     One thread changes a cache at a time; reading is concurrent. Attention over heads
///             with a budget adds to their scores: for one sequence it may run once at a time.
class KvCache {
 public:
  /// Creates an empty cache; params() of the result has the defaults filled in, `heads` too.
  static Result<KvCache> Create(const KvCacheParams& params);
  KvCache(KvCache&&) noexcept;
  KvCache& operator=(KvCache&&) noexcept;
  ~KvCache();

  /// Adds an empty sequence.
  Result<SequenceId> CreateSequence();
  /// Releases every page that only `sequence` holds; its id is invalid afterwards.
  Status FreeSequence(SequenceId sequence);

  /// Creates a sequence with the same tokens as `sequence`, in the same pages. It costs a pointer
  /// for each page; no keys and values are copied before one of the two sequences writes.
  Result<SequenceId> Fork(SequenceId sequence);

  /// Extends `sequence` by `count` tokens on every layer and head; their rows are then to be
  /// written. Before that, heads evict the tokens that no query from the current length on can see.
  Status Reserve(SequenceId sequence, std::int64_t count);

  /// Evicts the tokens that policies do not keep for queries from the current length on, as the
  /// next Reserve would; after a long step this releases the pages earlier.
  Status Evict(SequenceId sequence);

  /// Drops every token from position `length` on, and the pages that hold none of the rest. The
  /// result tells whether that is exact: true when the sequence is now, for all later queries, as
  /// if those tokens had never been appended; false when a policy has evicted tokens that would
  /// otherwise still be held, or (budgets) has selected tokens by the attention of the dropped
  /// ones. Under windows with a margin (see KvPolicy) it is exact down to `margin` tokens below the
  /// greatest length at which Reserve or Evict was called since; Rollback refuses what is not.
  Result<bool> Truncate(SequenceId sequence, std::int64_t length);

  /// Drops the last `count` tokens if that is exact, as when a speculated continuation is rejected.
  ///
  /// Errors   also kInvalidArgument where it would not be exact, naming the length that was wanted
  ///          and the largest exact one below it. The sequence is then unchanged.
  Status Rollback(SequenceId sequence, std::int64_t count);

  /// Returns the largest length up to `length` for which Truncate would be exact.
  Result<std::int64_t> ExactLength(SequenceId sequence, std::int64_t length) const;

  /// Appends the tokens of `source` at the positions [begin, end) to `sequence`, at the same
  /// positions and in the same pages. begin is at least length(sequence); the positions between
  /// count as dropped. Where both sequences hold a part of one page, those tokens are copied.
  Status Copy(SequenceId source, std::int64_t begin, std::int64_t end, SequenceId sequence);

  /// Drops the tokens [begin, end) from every head, and the pages that hold none of the rest. No
  /// later query sees them; length and all other positions stay the same.
  Status Drop(SequenceId sequence, std::int64_t begin, std::int64_t end);

  /// Stores the reserved rows [position, position + count) of one layer: k [count, K, D], v [count,
  /// K, Dv], f32, token strides `k_stride` and `v_stride` in elements (0 = dense). Rows that a head
  /// does not keep are skipped.
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

  /// Returns true where the head stores the token at `position`; false also for arguments out of
  /// range.
  bool Holds(SequenceId sequence, std::int64_t layer, std::int64_t head,
             std::int64_t position) const noexcept;

  /// Writes all data of `sequences` to a file: tokens, positions, gaps, scores. Pages that they
  /// share are written once, evicted tokens are not. The file appears under `path` only when it is
  /// complete and on the disk; if the process or the machine fails before, the previous file stays.
  /// Only its owner can read it.
  ///
  /// Errors   kIoError naming `path`: it cannot be written, or exists and is no regular file.
  /// Cost     the time to read the pages and to write them; memory for tables and one page.
  Status Save(const std::string& path, std::span<const SequenceId> sequences,
              const KvSnapshotInfo& info = {}) const;

  /// Adds the sequences of a snapshot, which share pages as they did before. Later steps give the
  /// same bits as if the sequences had never been saved. max_tokens, capacity_bytes and the
  /// instruction set may differ from those of the saving cache.
  ///
  /// Everything is checked before anything changes, the checksum of the whole file first; the file
  /// is read twice.
  ///
  /// Errors   each names the file, the place and both values: kIoError for a file that cannot be
  ///          read, is truncated, damaged or contradicts itself; kUnsupported for another version;
  ///          kInvalidArgument where fingerprint, shapes, page_size, policies or types differ from
  ///          this cache's; kOutOfPages.
  Result<KvRestored> Restore(const std::string& path, const KvRestoreOptions& options = {});

  /// Returns all sequences, without those of cached prefixes.
  std::vector<SequenceId> sequences() const;

  /// Keeps the first tokens of `sequence`, whose ids are `tokens`, as a cached prefix, as far as
  /// they fill whole pages (params().page_size tokens). ForkPrefix finds it by these ids, also
  /// after the sequence has been freed. It costs no page: the pages are shared. `key` names what
  /// else keys and values depend on, such as the model or its arithmetic.
  ///
  /// Cached prefixes are evicted, least recently used first, when an operation finds no room or
  /// there are more than max_prefixes. So they take no room from sequences, except that the pool's
  /// lists keep the length they once had: 4.25 bytes a page.
  ///
  /// A head with a budget depends on all tokens so far: none of its tokens are kept, unless
  /// `tokens` are the whole sequence and fill its pages.
  ///
  /// Errors   also kInvalidArgument for more ids than the sequence has tokens.
  Status StorePrefix(std::string_view key, std::span<const TokenId> tokens, SequenceId sequence);

  /// Creates a sequence that shares the longest cached prefix of `tokens` stored under `key`;
  /// returns nothing where there is none. Prefixes are found by a hash of each page's ids and all
  /// ids before, then compared id by id. Where windows have evicted tokens that a shorter sequence
  /// would see, only the exact part is used.
  Result<std::optional<SequenceId>> ForkPrefix(std::string_view key,
                                               std::span<const TokenId> tokens);

  /// Number of cached prefixes.
  std::int64_t num_prefixes() const noexcept;
  /// Drops all cached prefixes and releases the pages that nothing else holds.
  void ClearPrefixes() noexcept;

  /// Number of tokens of `sequence`, held or not; -1 for an unknown id.
  std::int64_t length(SequenceId sequence) const noexcept;
  /// The parameters, with the defaults filled in, `heads` too.
  const KvCacheParams& params() const noexcept;
  /// Returns the usage of the whole cache.
  KvUsage usage() const;
  /// Returns the usage of one sequence.
  Result<KvUsage> usage(SequenceId sequence) const;
  /// Returns what each head holds, as [layer][KV head].
  Result<std::vector<std::vector<KvHeadUsage>>> head_usage(SequenceId sequence) const;
  /// Bytes that one token takes over all layers and heads while they hold it: those of whole pages,
  /// divided by their tokens and rounded up.
  std::int64_t bytes_per_token() const noexcept;
  /// Bytes that one token takes in one head.
  std::int64_t bytes_per_token(std::int64_t layer, std::int64_t head) const noexcept;

  /// The implementation, for other rooms of this library only; its type is incomplete outside.
  struct Impl;
  Impl& impl() noexcept { return *impl_; }
  const Impl& impl() const noexcept { return *impl_; }

 private:
  explicit KvCache(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

/// Returns the least capacity_bytes that holds `sequences` sequences of `tokens` tokens each, both
/// at least 1, appended in steps of up to `step` tokens (0: all at once), tables included;
/// capacity_bytes and max_tokens of `params` are ignored.
Result<std::int64_t> KvCapacityBytes(const KvCacheParams& params, std::int64_t sequences,
                                     std::int64_t tokens, std::int64_t step = 0);

/// Returns "full", "window(512)", "sink(4)+recent(256)", these two also with "+margin(n)",
/// "budget(512)+recent(128)", also with "+sink(n)", or "off".
std::string FormatKvPolicy(const KvPolicy& policy);
/// Parses what FormatKvPolicy returns, with the parts in any order. A budget without recent(m) uses
/// half of its tokens for recent ones.
/// Errors   kInvalidArgument, naming the part that is wrong.
Result<KvPolicy> ParseKvPolicy(std::string_view text);

/// Parses types and policies of every head: a policy for all heads, or JSON.
///
///   {"heads": [{"layers": [0, "2-5"], "kv_heads": [1], "k_type": "int8", "v_type": "int4",
///               "policy": "sink(4)+recent(256)"}, ...]}
///
/// Entries apply in order. An entry without "layers" or "kv_heads" applies to all of them; what it
/// does not name stays as it was; `params` (layers, k_type, v_type) gives the initial values.
///
/// Errors   kInvalidArgument, naming the entry, the key and what was expected.
Result<std::vector<std::vector<KvHeadParams>>> ParseKvHeads(std::string_view text,
                                                            const KvCacheParams& params);
/// Formats JSON that ParseKvHeads reads back to the same heads, whatever types `params` start from.
std::string FormatKvHeads(const std::vector<std::vector<KvHeadParams>>& heads);

}  // namespace manyhead
