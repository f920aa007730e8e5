#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "manyhead/kv_cache.h"
#include "runtime/cache/page_store.h"
#include "runtime/cache/sequence_store.h"

namespace manyhead {

/// Cached prefixes: whole pages of sequences that are kept for later sequences. Each is a fork of a
/// sequence, found by the tokens in its pages.
class PrefixStore {
 public:
  /// Both arguments must outlive it.
  PrefixStore(PageStore& pages, SequenceStore& sequences) noexcept
      : pages_(pages), sequences_(sequences) {}

  /// Stores a prefix; see KvCache::StorePrefix. There must be no more ids than tokens in the
  /// sequence.
  Status Store(std::string_view key, std::span<const TokenId> tokens, SequenceId id);
  /// Forks a prefix; see KvCache::ForkPrefix.
  Result<std::optional<SequenceId>> Fork(std::string_view key, std::span<const TokenId> tokens);
  std::int64_t count() const noexcept { return std::ssize(prefixes_); }
  /// Drops the least recently used prefix; returns false if there is none.
  bool DropOldest() noexcept;

  /// Mask of the hashes; tests weaken it, to make all hashes collide.
  std::uint64_t hash_mask = ~std::uint64_t{0};

 private:
  struct Prefix {
    std::string key;
    std::vector<TokenId> tokens;
    std::vector<std::uint64_t> hashes;  ///< [page] hashes of the page's tokens and all before
    SequenceId sequence{};

    /// Returns the bytes of the entry itself, in its list; the sequence's tables and pages count as
    /// any other's.
    std::int64_t bytes() const noexcept {
      return static_cast<std::int64_t>(2 * sizeof(void*) + sizeof(Prefix) + key.size() +
                                       tokens.size() * sizeof(TokenId) +
                                       hashes.size() * sizeof(std::uint64_t));
    }
  };

  std::vector<std::uint64_t> HashesOf(std::string_view key, std::span<const TokenId> tokens) const;
  std::int64_t CommonLength(const Prefix& entry, std::string_view key,
                            std::span<const TokenId> tokens,
                            std::span<const std::uint64_t> hashes) const noexcept;
  std::int64_t ExactPages(SequenceId id, std::int64_t length) const noexcept;
  /// Makes the fork of a new entry, whose bytes are counted if that succeeds.
  Status ForkFor(Prefix& entry, SequenceId id);
  void Drop(std::list<Prefix>::iterator entry) noexcept;

  const KvCacheParams& params() const noexcept { return pages_.heads().params(); }

  PageStore& pages_;
  SequenceStore& sequences_;
  std::list<Prefix> prefixes_;  ///< the last used comes first
};

}  // namespace manyhead
