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

/// One tensor of a checkpoint. Its data points into a mapped file.
struct StoredTensor {
  std::string_view name;
  WeightType type = WeightType::kF32;
  int num_dims = 0;
  std::int64_t shape[4] = {1, 1, 1, 1};  ///< innermost (contiguous) dimension first
  const std::byte* data = nullptr;
  std::int64_t size_bytes = 0;

  std::int64_t cols() const noexcept { return shape[0]; }
  std::int64_t rows() const noexcept { return shape[1] * shape[2] * shape[3]; }
};

/// Named values: the config of a model and the data of its tokenizer.
///
/// The getters return nothing when the key is absent, and a kIoError naming the key and both types
/// when it holds another kind of value: Result<std::optional<T>>.
class Metadata {
 public:
  virtual ~Metadata() = default;

  virtual Result<std::optional<std::string_view>> GetString(std::string_view key) const = 0;
  /// Returns a value of any integer type that fits.
  virtual Result<std::optional<std::int64_t>> GetInt(std::string_view key) const = 0;
  /// Returns a number of any type.
  virtual Result<std::optional<double>> GetFloat(std::string_view key) const = 0;
  virtual Result<std::optional<bool>> GetBool(std::string_view key) const = 0;
  /// Return arrays; their numbers may have any type if they fit. A single number counts as an array
  /// of one for the number forms.
  virtual Result<std::optional<std::vector<std::string_view>>> GetStrings(
      std::string_view key) const = 0;
  virtual Result<std::optional<std::vector<std::int64_t>>> GetInts(std::string_view key) const = 0;
  virtual Result<std::optional<std::vector<float>>> GetFloats(std::string_view key) const = 0;

  /// Returns the number of elements that the getters above would return: those of an array, 1 for
  /// another value, 0 when absent.
  virtual std::int64_t Count(std::string_view key) const noexcept = 0;

  /// One key with a number for its type and, shortened to one line, its value.
  struct Entry {
    std::string_view key;
    std::int64_t type = 0;
    std::string value;
  };
  /// Returns all keys in the order of the file.
  virtual std::vector<Entry> entries() const = 0;
};

/// Says how a checkpoint names its keys and tensors, and in which order its rows lie.
enum class CheckpointFormat : std::uint8_t {
  kGguf,         ///< a GGUF file
  kHuggingFace,  ///< a folder with config.json and safetensors files
};

/// A tensor whose elements this library does not read.
struct UnreadableTensor {
  std::string_view name;
  std::string_view type;  ///< as the format names it
};

/// The texts that a folder describes its tokenizer with; empty where it has no such file.
struct TokenizerFiles {
  std::string_view tokenizer;          ///< tokenizer.json
  std::string_view tokenizer_config;   ///< tokenizer_config.json
  std::string_view generation_config;  ///< generation_config.json
  std::string_view chat_template;      ///< chat_template.jinja
};

/// A stored model of any format.
class Checkpoint {
 public:
  virtual ~Checkpoint() = default;

  /// Opens the folder at `path` as one of Hugging Face, and a file as GGUF.
  /// Errors   as the format's own Open.
  static Result<std::unique_ptr<const Checkpoint>> Open(const std::string& path);

  virtual CheckpointFormat format() const noexcept = 0;
  /// The path that was given to Open.
  virtual const std::string& path() const noexcept = 0;
  /// The bytes of all files, metadata included.
  virtual std::int64_t size_bytes() const noexcept = 0;
  /// The values of the model's config.
  virtual const Metadata& config() const noexcept = 0;
  /// The values that describe the tokenizer; those of the config where texts describe it.
  virtual const Metadata& tokenizer() const noexcept = 0;
  /// The texts that describe the tokenizer; null where tokenizer() does.
  virtual const TokenizerFiles* tokenizer_files() const noexcept { return nullptr; }

  virtual std::span<const StoredTensor> tensors() const noexcept = 0;
  /// Returns null when the tensor is absent.
  virtual const StoredTensor* FindTensor(std::string_view name) const noexcept = 0;
  virtual std::span<const UnreadableTensor> unreadable() const noexcept { return {}; }

  /// Starts reading the tensors into memory in the background; call before touching all of them.
  virtual void Prefetch() const noexcept = 0;
  /// Releases the pages of `part` of a tensor's data from this process's memory until it is read
  /// again.
  virtual void ReleasePages(std::span<const std::byte> part) const noexcept = 0;
};

/// Returns `status` with `path` before its message, unless the message begins with it.
Status WithPath(const std::string& path, const Status& status);

}  // namespace manyhead
