#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "runtime/formats/gguf.h"

namespace manyhead::testing {

/// The GGUF type of a C++ number.
template <class T>
constexpr GgufType GgufTypeOf() {
  if constexpr (std::is_same_v<T, bool>) return GgufType::kBool;
  if constexpr (std::is_same_v<T, float>) return GgufType::kFloat32;
  if constexpr (std::is_same_v<T, double>) return GgufType::kFloat64;
  if constexpr (std::is_same_v<T, std::uint8_t>) return GgufType::kUint8;
  if constexpr (std::is_same_v<T, std::int8_t>) return GgufType::kInt8;
  if constexpr (std::is_same_v<T, std::uint16_t>) return GgufType::kUint16;
  if constexpr (std::is_same_v<T, std::int16_t>) return GgufType::kInt16;
  if constexpr (std::is_same_v<T, std::uint32_t>) return GgufType::kUint32;
  if constexpr (std::is_same_v<T, std::int32_t>) return GgufType::kInt32;
  if constexpr (std::is_same_v<T, std::uint64_t>) return GgufType::kUint64;
  if constexpr (std::is_same_v<T, std::int64_t>) return GgufType::kInt64;
}

/// Bytes in a row, little-endian.
class ByteWriter {
 public:
  template <class T>
  ByteWriter& Put(T value) {
    static_assert(std::is_arithmetic_v<T> || std::is_enum_v<T>);
    char bytes[sizeof(T)];
    std::memcpy(bytes, &value, sizeof(T));
    bytes_.append(bytes, sizeof(T));
    return *this;
  }
  /// Its length in eight bytes, then `text`.
  ByteWriter& Text(std::string_view text) {
    Put<std::uint64_t>(text.size());
    bytes_.append(text);
    return *this;
  }
  ByteWriter& Raw(std::string_view bytes) {
    bytes_.append(bytes);
    return *this;
  }
  void PadTo(std::size_t alignment) {
    if (alignment > 0) bytes_.resize((bytes_.size() + alignment - 1) / alignment * alignment);
  }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

/// Builds a GGUF file for tests. What it is given it writes, also what no reader should accept: the
/// fields of `Tensor` and the public counts override what would be right.
///
///   GgufWriter writer;
///   writer.Add("general.architecture", "llama").Add("llama.block_count", std::uint32_t{2});
///   writer.AddTensor("token_embd.weight", WeightType::kF32, {8, 16}, values);
///   writer.Write(path);
class GgufWriter {
 public:
  struct Tensor {
    std::string name = {};
    std::vector<std::int64_t> shape = {};  ///< innermost dimension first
    std::uint32_t type_id = 0;
    std::string data = {};
    std::optional<std::uint64_t> offset = {};  ///< in the data section; default: behind the last
    std::int64_t num_dims = -1;                ///< -1: the number of `shape`
  };

  GgufWriter& Add(std::string_view key, std::string_view value) {
    return Key(key, GgufType::kString, ByteWriter().Text(value));
  }
  GgufWriter& Add(std::string_view key, const char* value) {
    return Add(key, std::string_view(value));
  }
  template <class T>
  requires std::is_arithmetic_v<T> GgufWriter& Add(std::string_view key, T value) {
    return Key(key, GgufTypeOf<T>(), ByteWriter().Put(value));
  }
  template <class T>
  requires std::is_arithmetic_v<T> GgufWriter& Add(std::string_view key,
                                                   const std::vector<T>& values) {
    ByteWriter bytes;
    bytes.Put(GgufTypeOf<T>()).template Put<std::uint64_t>(values.size());
    for (const T value : values) bytes.Put(value);
    return Key(key, GgufType::kArray, bytes);
  }
  GgufWriter& Add(std::string_view key, const std::vector<std::string>& values) {
    ByteWriter bytes;
    bytes.Put(GgufType::kString).Put<std::uint64_t>(values.size());
    for (const std::string& value : values) bytes.Text(value);
    return Key(key, GgufType::kArray, bytes);
  }
  /// Any type number with any bytes behind it.
  GgufWriter& Key(std::string_view key, GgufType type, const ByteWriter& value) {
    keys_.Text(key).Put(type).Raw(value.bytes());
    ++kv_count;
    return *this;
  }

  GgufWriter& AddTensor(Tensor tensor) {
    tensors_.push_back(std::move(tensor));
    ++tensor_count;
    return *this;
  }
  GgufWriter& AddTensor(std::string name, WeightType type, std::vector<std::int64_t> shape,
                        std::string data) {
    return AddTensor(
        {std::move(name), std::move(shape), static_cast<std::uint32_t>(type), std::move(data)});
  }
  /// `values` are the numbers as stored: float for F32, uint16 for F16, bytes for blocks, ...
  template <class T>
  GgufWriter& AddTensor(std::string name, WeightType type, std::vector<std::int64_t> shape,
                        const std::vector<T>& values) {
    const std::span<const std::byte> bytes = std::as_bytes(std::span(values));
    return AddTensor(std::move(name), type, std::move(shape),
                     std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  }

  std::string Bytes() const {
    ByteWriter file;
    file.Raw("GGUF").Put(version).Put(tensor_count).Put(kv_count).Raw(keys_.bytes());
    ByteWriter data;
    for (const Tensor& tensor : tensors_) {
      file.Text(tensor.name);
      file.Put(static_cast<std::uint32_t>(
          tensor.num_dims < 0 ? static_cast<std::int64_t>(tensor.shape.size()) : tensor.num_dims));
      for (std::int64_t dim : tensor.shape) file.Put(dim);
      data.PadTo(alignment);
      file.Put(tensor.type_id);
      file.Put<std::uint64_t>(tensor.offset.value_or(data.bytes().size()));
      data.Raw(tensor.data);
    }
    if (!tensors_.empty()) file.PadTo(alignment);
    return file.Raw(data.bytes()).bytes();
  }
  void Write(const std::filesystem::path& path) const {
    std::ofstream(path, std::ios::binary) << Bytes();
  }

  std::uint32_t version = 3;
  /// Alignment of the data; add general.alignment as a key if it differs.
  std::uint64_t alignment = 32;
  std::uint64_t tensor_count = 0;
  std::uint64_t kv_count = 0;

 private:
  ByteWriter keys_;
  std::vector<Tensor> tensors_;
};

}  // namespace manyhead::testing
