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

/// A GGUF file of version 3 in the making.
class GgufOutput {
 public:
  /// Takes the next bytes of a tensor.
  using Sink = std::function<Status(std::span<const std::byte>)>;

  struct Tensor {
    std::string name;
    WeightType type = WeightType::kF32;
    std::vector<std::int64_t> shape;  ///< innermost dimension first, the first in whole blocks
    /// Gives the sink all the tensor's bytes, in any number of parts.
    std::function<Status(const Sink&)> write;
  };

  /// A key as another file has it: name, type and value.
  void AddKey(std::span<const std::byte> bytes);
  void AddKey(std::string_view key, std::uint32_t value);
  void AddKey(std::string_view key, float value);
  void AddKey(std::string_view key, std::string_view value);
  void AddKey(std::string_view key, std::span<const std::uint32_t> values);
  void AddKey(std::string_view key, std::span<const std::int32_t> values);
  void AddKey(std::string_view key, std::span<const float> values);
  void AddKey(std::string_view key, std::span<const std::string> values);
  void AddTensor(Tensor tensor) { tensors_.push_back(std::move(tensor)); }

  /// The file appears under `path` when it is whole and on the disk. `alignment` is what its key
  /// general.alignment says, 32 without it.
  /// Errors   kIoError naming `path`, and what a tensor's `write` gives.
  Status Write(const std::string& path, std::int64_t alignment) const;
  /// The same for a file that need not survive the machine.
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
