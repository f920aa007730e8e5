#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "manyhead/status.h"
#include "runtime/formats/checkpoint.h"

namespace manyhead {

/// A folder as Hugging Face's libraries write it: config.json, and the tensors in model.safetensors
/// or in the files that model.safetensors.index.json lists. Everything is mapped read-only and
/// checked when it is opened.
///
/// An index may name files of the folder alone: "a/b", ".." and an absolute path are refused. A
/// file may itself be a symbolic link, as in the folders that a cache of downloads keeps; what it
/// leads to has to be a regular file. The index and the files have to agree on every tensor.
class HfFolder final : public Checkpoint {
 public:
  /// Errors   kIoError naming the folder or its file and what is wrong with which key or tensor.
  static Result<HfFolder> Open(const std::string& path);
  HfFolder(HfFolder&&) noexcept;
  HfFolder& operator=(HfFolder&&) noexcept;
  ~HfFolder() override;

  CheckpointFormat format() const noexcept override { return CheckpointFormat::kHuggingFace; }
  const std::string& path() const noexcept override;
  std::int64_t size_bytes() const noexcept override;
  const Metadata& config() const noexcept override;
  const Metadata& tokenizer() const noexcept override { return config(); }
  const TokenizerFiles* tokenizer_files() const noexcept override;
  std::span<const StoredTensor> tensors() const noexcept override;
  const StoredTensor* FindTensor(std::string_view name) const noexcept override;
  std::span<const UnreadableTensor> unreadable() const noexcept override;
  void Prefetch() const noexcept override;
  void ReleasePages(std::span<const std::byte> part) const noexcept override;

 private:
  struct Impl;
  explicit HfFolder(std::unique_ptr<const Impl> impl) noexcept;
  std::unique_ptr<const Impl> impl_;
};

}  // namespace manyhead
