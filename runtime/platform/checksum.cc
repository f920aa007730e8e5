#include "runtime/platform/checksum.h"

#include <new>

// The header-only form needs no library at link time, neither here nor in programs that link
// manyhead.
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace manyhead {
namespace {

XXH3_state_t* StateIn(std::byte* bytes) noexcept {
  return std::launder(reinterpret_cast<XXH3_state_t*>(bytes));
}

}  // namespace

Checksum::Checksum() noexcept {
  static_assert(sizeof(XXH3_state_t) <= kStateBytes && alignof(XXH3_state_t) <= 64);
  XXH3_64bits_reset(new (state_) XXH3_state_t);
}

void Checksum::Add(std::span<const std::byte> bytes) noexcept {
  // For no bytes XXH3 would use the address, which may be null.
  if (!bytes.empty()) XXH3_64bits_update(StateIn(state_), bytes.data(), bytes.size());
}

std::uint64_t Checksum::value() const noexcept {
  return XXH3_64bits_digest(std::launder(reinterpret_cast<const XXH3_state_t*>(state_)));
}

std::uint64_t ChecksumOf(std::span<const std::byte> bytes, std::uint64_t seed) noexcept {
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
}

}  // namespace manyhead
