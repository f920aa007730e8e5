#include "runtime/cache/prefix_store.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "runtime/cache/sequence_edits.h"
#include "runtime/platform/checksum.h"

namespace manyhead {
namespace {

std::int64_t RoundDown(std::int64_t value, std::int64_t multiple) noexcept {
  return value - value % multiple;
}

}  // namespace

/// Returns a hash for each whole page of tokens: of its ids and all ids before.
std::vector<std::uint64_t> PrefixStore::HashesOf(std::string_view key,
                                                 std::span<const TokenId> tokens) const {
  const auto page = static_cast<std::size_t>(params().page_size);
  std::vector<std::uint64_t> hashes;
  hashes.reserve(tokens.size() / page);
  std::uint64_t hash = ChecksumOf(std::as_bytes(std::span(key)));
  for (; tokens.size() >= page; tokens = tokens.subspan(page)) {
    hash = ChecksumOf(std::as_bytes(tokens.first(page)), hash) & hash_mask;
    hashes.push_back(hash);
  }
  return hashes;
}

/// Returns the number of tokens of whole pages that an entry shares with tokens that hash to
/// `hashes`, and that it can be truncated to. Equal hashes only say where to compare the ids.
std::int64_t PrefixStore::CommonLength(const Prefix& entry, std::string_view key,
                                       std::span<const TokenId> tokens,
                                       std::span<const std::uint64_t> hashes) const noexcept {
  if (entry.key != key) return 0;
  std::size_t equal = 0, end = std::min(hashes.size(), entry.hashes.size()) + 1;
  while (end - equal > 1) {
    const std::size_t middle = equal + (end - equal) / 2;
    (entry.hashes[middle - 1] == hashes[middle - 1] ? equal : end) = middle;
  }
  const std::int64_t page = params().page_size;
  const auto first = tokens.first(equal * static_cast<std::size_t>(page));
  std::int64_t length =
      std::mismatch(first.begin(), first.end(), entry.tokens.begin()).first - first.begin();
  return ExactPages(entry.sequence, length);
}

/// Returns the greatest number of tokens of whole pages, up to `length`, that the sequence can be
/// truncated to.
std::int64_t PrefixStore::ExactPages(SequenceId id, std::int64_t length) const noexcept {
  const KvSequence& sequence = *sequences_.Find(id);
  for (std::int64_t before = -1; before != length;) {
    before = length;
    length = ExactLengthOf(pages_.heads(), sequence, RoundDown(length, params().page_size));
  }
  return length;
}

void PrefixStore::Drop(std::list<Prefix>::iterator entry) noexcept {
  sequences_.Free(entry->sequence);
  pages_.AddTableBytes(-entry->bytes());
  prefixes_.erase(entry);
}

bool PrefixStore::DropOldest() noexcept {
  if (prefixes_.empty()) return false;
  Drop(std::prev(prefixes_.end()));
  return true;
}

Status PrefixStore::ForkFor(Prefix& entry, SequenceId id) {
  CacheChange change = pages_.Begin("KvCache::StorePrefix");
  change.table_bytes = entry.bytes();
  if (Status status = pages_.CheckRoom(change); !status.ok()) return status;
  pages_.AddTableBytes(entry.bytes());
  // A fork that fails, or throws, changes nothing but this.
  struct Undo {
    PageStore& pages;
    std::int64_t bytes;
    ~Undo() { pages.AddTableBytes(-bytes); }
  } undo{pages_, entry.bytes()};
  const Result<SequenceId> fork = sequences_.Fork(id);
  if (!fork.ok()) return fork.status();
  undo.bytes = 0;
  entry.sequence = *fork;
  sequences_.Find(*fork)->stored = true;
  return Status();
}

Status PrefixStore::Store(std::string_view key, std::span<const TokenId> tokens, SequenceId id) {
  const std::int64_t length = ExactPages(id, std::ssize(tokens));
  if (length == 0 || params().max_prefixes == 0) return Status();
  tokens = tokens.first(static_cast<std::size_t>(length));
  std::list<Prefix> made(1);
  Prefix& entry = made.front();
  entry.key = key;
  entry.tokens.assign(tokens.begin(), tokens.end());
  entry.hashes = HashesOf(key, tokens);
  for (auto old = prefixes_.begin(); old != prefixes_.end(); ++old)
    if (CommonLength(*old, key, tokens, entry.hashes) == length) {
      prefixes_.splice(prefixes_.begin(), prefixes_, old);  // the last used comes first
      return Status();
    }
  if (Status status = ForkFor(entry, id); !status.ok()) return status;
  TruncateSequence(pages_, *sequences_.Find(entry.sequence), length);
  // A prefix that the new one can be truncated to needs no entry of its own.
  for (auto old = prefixes_.begin(); old != prefixes_.end();) {
    const auto next = std::next(old);
    if (CommonLength(entry, key, old->tokens, old->hashes) == std::ssize(old->tokens) &&
        old->key == key)
      Drop(old);
    old = next;
  }
  if (std::ssize(prefixes_) == params().max_prefixes) DropOldest();
  prefixes_.splice(prefixes_.begin(), made);
  return Status();
}

Result<std::optional<SequenceId>> PrefixStore::Fork(std::string_view key,
                                                    std::span<const TokenId> tokens) {
  if (prefixes_.empty()) return std::optional<SequenceId>();
  const std::vector<std::uint64_t> hashes = HashesOf(key, tokens);
  auto best = prefixes_.end();
  std::int64_t longest = 0;
  for (auto entry = prefixes_.begin(); entry != prefixes_.end(); ++entry) {
    const std::int64_t length = CommonLength(*entry, key, tokens, hashes);
    if (length <= longest) continue;
    longest = length;
    best = entry;
  }
  if (best == prefixes_.end()) return std::optional<SequenceId>();
  const Result<SequenceId> fork = sequences_.Fork(best->sequence);
  if (!fork.ok()) return fork.status();
  TruncateSequence(pages_, *sequences_.Find(*fork), longest);
  prefixes_.splice(prefixes_.begin(), prefixes_, best);
  return std::optional<SequenceId>(*fork);
}

}  // namespace manyhead
