#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace manyhead {

/// XXH3, 64 bits, of bytes that come in parts: it does not matter how they are cut.
///
/// Source   doc/xxhash_spec.md of xxHash 0.8; its values are the same everywhere and for good.
class Checksum {
 public:
  Checksum() noexcept;
  Checksum(const Checksum&) = delete;
  Checksum& operator=(const Checksum&) = delete;

  void Add(std::span<const std::byte> bytes) noexcept;
  void Add(std::string_view text) noexcept { Add(std::as_bytes(std::span(text))); }
  /// Of all bytes so far.
  std::uint64_t value() const noexcept;

 private:
  static constexpr std::size_t kStateBytes = 576;
  alignas(64) std::byte state_[kStateBytes];
};

/// Of `bytes` at once; another `seed` gives another function.
std::uint64_t ChecksumOf(std::span<const std::byte> bytes, std::uint64_t seed = 0) noexcept;

}  // namespace manyhead
