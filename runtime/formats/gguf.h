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

namespace manyhead {

/// GGUF's value types; the numbers are the file's.
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

/// One tensor: its data points into the mapped file.
struct GgufTensor {
  std::string_view name;
  WeightType type = WeightType::kF32;
  int num_dims = 0;
  std::int64_t shape[4] = {1, 1, 1, 1};  ///< as in the file: innermost (contiguous) dimension first
  const std::byte* data = nullptr;
  std::int64_t size_bytes = 0;

  std::int64_t cols() const noexcept { return shape[0]; }
  std::int64_t rows() const noexcept { return shape[1] * shape[2] * shape[3]; }
};

/// A GGUF file of version 2 or 3, mapped read-only. Everything is checked when it is opened: every
/// count, length, offset and alignment against the file's size, with no allocation larger than the
/// file (or 16 MiB).
///
/// Refused although a lenient reader could go on: two keys or two tensors of the same name, tensors
/// that share bytes, arrays of arrays, dimensions of 0. Names and strings may hold any bytes:
/// messages and keys() escape what would disturb a terminal.
///
/// The getters return nothing when the key is absent and a kIoError naming the key and both types
/// when it holds another kind of value: Result<std::optional<T>>.
class GgufFile {
 public:
  /// Errors   kIoError naming the file and what is wrong at which key or tensor; kUnsupported
  ///          naming a tensor's type id that this library cannot read, another version of GGUF, or
  ///          a big-endian file.
  static Result<GgufFile> Open(const std::string& path);
  GgufFile(GgufFile&&) noexcept;
  GgufFile& operator=(GgufFile&&) noexcept;
  ~GgufFile();

  Result<std::optional<std::string_view>> GetString(std::string_view key) const;
  /// Any integer type whose value fits.
  Result<std::optional<std::int64_t>> GetInt(std::string_view key) const;
  /// Any number.
  Result<std::optional<double>> GetFloat(std::string_view key) const;
  Result<std::optional<bool>> GetBool(std::string_view key) const;
  /// Arrays; numbers of any type that fit. A single number counts as an array of one for the number
  /// forms.
  Result<std::optional<std::vector<std::string_view>>> GetStrings(std::string_view key) const;
  Result<std::optional<std::vector<std::int64_t>>> GetInts(std::string_view key) const;
  Result<std::optional<std::vector<float>>> GetFloats(std::string_view key) const;

  /// Elements of an array, 1 for another value, 0 when absent: what the getters above will return.
  std::int64_t Count(std::string_view key) const noexcept;

  std::span<const GgufTensor> tensors() const noexcept;
  /// Null when absent.
  const GgufTensor* FindTensor(std::string_view name) const noexcept;
  /// Starts reading the file into memory in the background; call before touching all tensors.
  void Prefetch() const noexcept;
  /// Takes `part` of a tensor's data out of this process's memory until it is read again.
  void Forget(std::span<const std::byte> part) const noexcept;

  const std::string& path() const noexcept;
  std::int64_t size_bytes() const noexcept;
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
  /// Of the tensors' data.
  std::int64_t alignment() const noexcept;

 private:
  struct Impl;
  explicit GgufFile(std::unique_ptr<const Impl> impl) noexcept;
  std::unique_ptr<const Impl> impl_;
};

}  // namespace manyhead
