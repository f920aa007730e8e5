#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "manyhead/status.h"
#include "manyhead/types.h"
#include "runtime/formats/gguf.h"

namespace manyhead {

/// Collects keys and tensors and writes them as a GGUF file of version 3.
class GgufOutput {
 public:
  /// Receives the next bytes of a tensor.
  using Sink = std::function<Status(std::span<const std::byte>)>;

  struct Tensor {
    std::string name;
    WeightType type = WeightType::kF32;
    std::vector<std::int64_t> shape;  ///< innermost dimension first, the first in whole blocks
    /// Passes all the tensor's bytes to the sink, in any number of parts.
    std::function<Status(const Sink&)> write;
  };

  /// Adds a key in the bytes of another file: name, type and value.
  void AddKey(std::span<const std::byte> bytes);
  void AddKey(std::string_view key, std::uint32_t value);
  void AddKey(std::string_view key, float value);
  void AddKey(std::string_view key, std::string_view value);
  void AddKey(std::string_view key, std::span<const std::uint32_t> values);
  void AddKey(std::string_view key, std::span<const std::int32_t> values);
  void AddKey(std::string_view key, std::span<const float> values);
  void AddKey(std::string_view key, std::span<const std::string> values);
  void AddTensor(Tensor tensor) { tensors_.push_back(std::move(tensor)); }

  /// Writes the file, which appears under `path` when it is complete and on the disk. `alignment`
  /// is the value of its key general.alignment, 32 without the key.
  /// Errors   kIoError naming `path`, and the errors of a tensor's `write`.
  Status Write(const std::string& path, std::int64_t alignment) const;
  /// Does the same for a file that may be lost when the machine fails.
  Status WriteUnsynced(const std::string& path, std::int64_t alignment) const;

 private:
  Status Write(const std::string& path, std::int64_t alignment, bool sync) const;
  std::string Header(std::int64_t alignment) const;
  template <class T>
  void AddNumber(std::string_view key, GgufType type, T value);
  void BeginArray(std::string_view key, GgufType type, std::size_t count);
  template <class T>
  void AddArray(std::string_view key, GgufType type, std::span<const T> values);

  std::uint64_t num_keys_ = 0;
  std::string keys_;
  std::vector<Tensor> tensors_;
};

}  // namespace manyhead
