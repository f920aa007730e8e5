#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "manyhead/status.h"
#include "manyhead/types.h"
#include "runtime/formats/checkpoint.h"

namespace manyhead {

/// GGUF's value types, with the numbers that the file uses.
enum class GgufType : std::uint32_t {
  kUint8 = 0,
  kInt8 = 1,
  kUint16 = 2,
  kInt16 = 3,
  kUint32 = 4,
  kInt32 = 5,
  kFloat32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kUint64 = 10,
  kInt64 = 11,
  kFloat64 = 12,
};

/// A GGUF file of version 2 or 3, mapped read-only. Everything is checked when it is opened: every
/// count, length, offset and alignment against the file's size, with no allocation larger than the
/// file (or 16 MiB).
///
/// These are errors although a lenient reader could go on: two keys or two tensors of the same
/// name, tensors that share bytes, arrays of arrays, dimensions of 0. Names and strings may hold
/// any bytes: messages and keys() escape bytes that would disturb a terminal.
///
/// A list of bools counts as a list of the integers 0 and 1.
class GgufFile final : public Checkpoint, public Metadata {
 public:
  /// Errors   kIoError naming the file, the key or tensor and its error; kUnsupported naming a
  ///          tensor's type id that this library cannot read, another version of GGUF, or a
  ///          big-endian file.
  static Result<GgufFile> Open(const std::string& path);
  GgufFile(GgufFile&&) noexcept;
  GgufFile& operator=(GgufFile&&) noexcept;
  ~GgufFile() override;

  Result<std::optional<std::string_view>> GetString(std::string_view key) const override;
  Result<std::optional<std::int64_t>> GetInt(std::string_view key) const override;
  Result<std::optional<double>> GetFloat(std::string_view key) const override;
  Result<std::optional<bool>> GetBool(std::string_view key) const override;
  Result<std::optional<std::vector<std::string_view>>> GetStrings(
      std::string_view key) const override;
  Result<std::optional<std::vector<std::int64_t>>> GetInts(std::string_view key) const override;
  Result<std::optional<std::vector<float>>> GetFloats(std::string_view key) const override;
  std::int64_t Count(std::string_view key) const noexcept override;
  std::vector<Entry> entries() const override;

  CheckpointFormat format() const noexcept override { return CheckpointFormat::kGguf; }
  const Metadata& config() const noexcept override { return *this; }
  const Metadata& tokenizer() const noexcept override { return *this; }
  std::span<const StoredTensor> tensors() const noexcept override;
  const StoredTensor* FindTensor(std::string_view name) const noexcept override;
  void Prefetch() const noexcept override;
  void ReleasePages(std::span<const std::byte> part) const noexcept override;
  const std::string& path() const noexcept override;
  std::int64_t size_bytes() const noexcept override;

  int version() const noexcept;
  /// Keys in file order with their type and, for printing, their value shortened to one line.
  struct KeyInfo {
    std::string_view key;
    GgufType type;
    std::string value;
  };
  std::vector<KeyInfo> keys() const;
  /// Keys in file order, each with its bytes in the file: name, type and value.
  struct KeyBytes {
    std::string_view key;
    std::span<const std::byte> bytes;
  };
  std::vector<KeyBytes> key_bytes() const;
  /// The alignment of the tensors' data.
  std::int64_t alignment() const noexcept;

 private:
  struct Impl;
  explicit GgufFile(std::unique_ptr<const Impl> impl) noexcept;
  std::unique_ptr<const Impl> impl_;
};

}  // namespace manyhead
