#include <algorithm>
#include <sstream>
#include <utility>

#include "runtime/cache/kv_cache_impl.h"
#include "runtime/platform/checksum.h"

/// Beginnings of texts that are kept for texts to come: forks, found by what their pages hold.

namespace manyhead {
namespace {

std::int64_t RoundDown(std::int64_t value, std::int64_t multiple) noexcept {
  return value - value % multiple;
}

}  // namespace

/// One for each whole page of tokens: of its ids and of all before.
std::vector<std::uint64_t> KvCache::Impl::HashesOf(std::string_view key,
                                                   std::span<const TokenId> tokens) const {
  const auto page = static_cast<std::size_t>(params_.page_size);
  std::vector<std::uint64_t> hashes;
  hashes.reserve(tokens.size() / page);
  std::uint64_t hash = ChecksumOf(std::as_bytes(std::span(key)));
  for (; tokens.size() >= page; tokens = tokens.subspan(page)) {
    hash = ChecksumOf(std::as_bytes(tokens.first(page)), hash) & prefix_hash_mask;
    hashes.push_back(hash);
  }
  return hashes;
}

/// How many tokens of whole pages an entry has in common with others, which hash to `hashes`, and
/// can be cut to. Equal hashes only say where to compare the ids.
std::int64_t KvCache::Impl::PrefixLength(const StoredPrefix& entry, std::string_view key,
                                         std::span<const TokenId> tokens,
                                         std::span<const std::uint64_t> hashes) const noexcept {
  if (entry.key != key) return 0;
  std::size_t equal = 0, end = std::min(hashes.size(), entry.hashes.size()) + 1;
  while (end - equal > 1) {
    const std::size_t middle = equal + (end - equal) / 2;
    (entry.hashes[middle - 1] == hashes[middle - 1] ? equal : end) = middle;
  }
  const std::int64_t page = params_.page_size;
  const auto first = tokens.first(equal * static_cast<std::size_t>(page));
  std::int64_t length =
      std::mismatch(first.begin(), first.end(), entry.tokens.begin()).first - first.begin();
  return ExactPages(entry.sequence, length);
}

/// The greatest number of tokens of whole pages, up to `length`, that the sequence can be cut to.
std::int64_t KvCache::Impl::ExactPages(SequenceId id, std::int64_t length) const noexcept {
  for (std::int64_t before = -1; before != length;) {
    before = length;
    length = ExactLength(id, RoundDown(length, params_.page_size));
  }
  return length;
}

void KvCache::Impl::DropPrefix(std::list<StoredPrefix>::iterator entry) noexcept {
  FreeSequence(entry->sequence);
  prefix_bytes_ -= entry->bytes();
  prefixes_.erase(entry);
}

bool KvCache::Impl::DropOldestPrefix() noexcept {
  if (prefixes_.empty()) return false;
  DropPrefix(std::prev(prefixes_.end()));
  return true;
}

Status KvCache::Impl::StorePrefix(std::string_view key, std::span<const TokenId> tokens,
                                  SequenceId id) {
  const std::int64_t length = ExactPages(id, std::ssize(tokens));
  if (length == 0 || params_.max_prefixes == 0) return Status();
  tokens = tokens.first(static_cast<std::size_t>(length));
  std::list<StoredPrefix> made(1);
  StoredPrefix& entry = made.front();
  entry.key = key;
  entry.tokens.assign(tokens.begin(), tokens.end());
  entry.hashes = HashesOf(key, tokens);
  for (auto old = prefixes_.begin(); old != prefixes_.end(); ++old)
    if (PrefixLength(*old, key, tokens, entry.hashes) == length) {
      prefixes_.splice(prefixes_.begin(), prefixes_, old);  // the last used comes first
      return Status();
    }
  Change change = Begin("KvCache::StorePrefix");
  change.table_bytes = entry.bytes();
  if (Status status = CheckRoom(change); !status.ok()) return status;
  prefix_bytes_ += entry.bytes();
  // A fork that fails, or throws, leaves no trace but this.
  struct Undo {
    std::int64_t* bytes;
    std::int64_t count;
    ~Undo() { *bytes -= count; }
  } undo{&prefix_bytes_, entry.bytes()};
  const Result<SequenceId> fork = Fork(id);
  if (!fork.ok()) return fork.status();
  undo.count = 0;
  entry.sequence = *fork;
  Find(*fork)->stored = true;
  Truncate(entry.sequence, length);
  // What the new one can be cut to needs no entry of its own.
  for (auto old = prefixes_.begin(); old != prefixes_.end();) {
    const auto next = std::next(old);
    if (PrefixLength(entry, key, old->tokens, old->hashes) == std::ssize(old->tokens) &&
        old->key == key)
      DropPrefix(old);
    old = next;
  }
  if (std::ssize(prefixes_) == params_.max_prefixes) DropOldestPrefix();
  prefixes_.splice(prefixes_.begin(), made);
  return Status();
}

Result<std::optional<SequenceId>> KvCache::Impl::ForkPrefix(std::string_view key,
                                                            std::span<const TokenId> tokens) {
  if (prefixes_.empty()) return std::optional<SequenceId>();
  const std::vector<std::uint64_t> hashes = HashesOf(key, tokens);
  auto best = prefixes_.end();
  std::int64_t longest = 0;
  for (auto entry = prefixes_.begin(); entry != prefixes_.end(); ++entry) {
    const std::int64_t length = PrefixLength(*entry, key, tokens, hashes);
    if (length <= longest) continue;
    longest = length;
    best = entry;
  }
  if (best == prefixes_.end()) return std::optional<SequenceId>();
  const Result<SequenceId> fork = Fork(best->sequence);
  if (!fork.ok()) return fork.status();
  Truncate(*fork, longest);
  prefixes_.splice(prefixes_.begin(), prefixes_, best);
  return std::optional<SequenceId>(*fork);
}

}  // namespace manyhead
