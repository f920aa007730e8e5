#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace manyhead {

/// Computes XXH3 with 64 bits over bytes that come in parts; the division into parts does not
/// matter.
///
/// Source   doc/xxhash_spec.md of xxHash 0.8, which fixes the values for all platforms and
///          versions.
class Checksum {
 public:
  Checksum() noexcept;
  Checksum(const Checksum&) = delete;
  Checksum& operator=(const Checksum&) = delete;

  void Add(std::span<const std::byte> bytes) noexcept;
  void Add(std::string_view text) noexcept { Add(std::as_bytes(std::span(text))); }
  /// Returns the checksum of all bytes so far.
  std::uint64_t value() const noexcept;

 private:
  static constexpr std::size_t kStateBytes = 576;
  alignas(64) std::byte state_[kStateBytes];
};

/// Returns the checksum of `bytes`; each `seed` selects another function.
std::uint64_t ChecksumOf(std::span<const std::byte> bytes, std::uint64_t seed = 0) noexcept;

}  // namespace manyhead
