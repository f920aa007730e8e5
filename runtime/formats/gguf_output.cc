#include "runtime/formats/gguf_output.h"

#include <utility>

#include "runtime/formats/gguf.h"
#include "runtime/platform/dcheck.h"
#include "runtime/platform/file.h"
#include "runtime/platform/math.h"

namespace manyhead {
namespace {

template <class T>
void Put(std::string& bytes, T value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

void PutText(std::string& bytes, std::string_view text) {
  Put<std::uint64_t>(bytes, text.size());
  bytes.append(text);
}

std::int64_t BytesOf(const GgufOutput::Tensor& tensor) {
  const WeightBlock block = WeightBlockOf(tensor.type);
  std::int64_t bytes = tensor.shape.front() / block.elements * block.bytes;
  for (std::size_t i = 1; i < tensor.shape.size(); ++i) bytes *= tensor.shape[i];
  return bytes;
}

/// Collects small writes, so that not each of them is a system call.
class BufferedFile {
 public:
  explicit BufferedFile(AtomicFile file) : file_(std::move(file)) { buffer_.reserve(kBytes); }

  Status Write(std::span<const std::byte> bytes) {
    written_ += std::ssize(bytes);
    if (buffer_.size() + bytes.size() > kBytes)
      if (Status status = Flush(); !status.ok()) return status;
    if (bytes.size() > kBytes) return file_.Write(bytes);
    buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
    return Status();
  }
  Status Pad(std::int64_t alignment) {
    const std::vector<std::byte> zeros(
        static_cast<std::size_t>(RoundUp(written_, alignment) - written_));
    return Write(zeros);
  }
  Status Commit(bool sync) {
    if (Status status = Flush(); !status.ok()) return status;
    return sync ? file_.Commit() : file_.CommitUnsynced();
  }

 private:
  static constexpr std::size_t kBytes = std::size_t{1} << 20;

  Status Flush() {
    Status status = file_.Write(buffer_);
    buffer_.clear();
    return status;
  }

  AtomicFile file_;
  std::vector<std::byte> buffer_;
  std::int64_t written_ = 0;
};

}  // namespace

void GgufOutput::AddKey(std::span<const std::byte> bytes) {
  keys_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  ++num_keys_;
}

void GgufOutput::AddKey(std::string_view key, std::uint32_t value) {
  AddNumber(key, GgufType::kUint32, value);
}

void GgufOutput::AddKey(std::string_view key, float value) {
  AddNumber(key, GgufType::kFloat32, value);
}

void GgufOutput::AddKey(std::string_view key, std::string_view value) {
  PutText(keys_, key);
  Put(keys_, GgufType::kString);
  PutText(keys_, value);
  ++num_keys_;
}

void GgufOutput::AddKey(std::string_view key, std::span<const std::uint32_t> values) {
  AddArray(key, GgufType::kUint32, values);
}

void GgufOutput::AddKey(std::string_view key, std::span<const std::int32_t> values) {
  AddArray(key, GgufType::kInt32, values);
}

void GgufOutput::AddKey(std::string_view key, std::span<const float> values) {
  AddArray(key, GgufType::kFloat32, values);
}

void GgufOutput::AddKey(std::string_view key, std::span<const std::string> values) {
  BeginArray(key, GgufType::kString, values.size());
  for (const std::string& value : values) PutText(keys_, value);
}

template <class T>
void GgufOutput::AddNumber(std::string_view key, GgufType type, T value) {
  PutText(keys_, key);
  Put(keys_, type);
  Put(keys_, value);
  ++num_keys_;
}

void GgufOutput::BeginArray(std::string_view key, GgufType type, std::size_t count) {
  PutText(keys_, key);
  Put(keys_, GgufType::kArray);
  Put(keys_, type);
  Put<std::uint64_t>(keys_, count);
  ++num_keys_;
}

template <class T>
void GgufOutput::AddArray(std::string_view key, GgufType type, std::span<const T> values) {
  BeginArray(key, type, values.size());
  for (const T value : values) Put(keys_, value);
}

std::string GgufOutput::Header(std::int64_t alignment) const {
  constexpr std::uint32_t kVersion = 3;
  std::string header = "GGUF";
  Put(header, kVersion);
  Put<std::uint64_t>(header, tensors_.size());
  Put(header, num_keys_);
  header += keys_;
  std::int64_t offset = 0;
  for (const Tensor& tensor : tensors_) {
    PutText(header, tensor.name);
    Put(header, static_cast<std::uint32_t>(tensor.shape.size()));
    for (const std::int64_t size : tensor.shape) Put(header, size);
    Put(header, static_cast<std::uint32_t>(tensor.type));
    Put(header, offset);
    offset = RoundUp(offset + BytesOf(tensor), alignment);
  }
  return header;
}

Status GgufOutput::Write(const std::string& path, std::int64_t alignment) const {
  return Write(path, alignment, /*sync=*/true);
}

Status GgufOutput::WriteUnsynced(const std::string& path, std::int64_t alignment) const {
  return Write(path, alignment, /*sync=*/false);
}

Status GgufOutput::Write(const std::string& path, std::int64_t alignment, bool sync) const {
  Result<AtomicFile> created = AtomicFile::Create(path);
  if (!created.ok()) return created.status();
  BufferedFile file(*std::move(created));
  const std::string header = Header(alignment);
  Status status = file.Write(std::as_bytes(std::span(header)));
  for (const Tensor& tensor : tensors_) {
    if (status.ok()) status = file.Pad(alignment);
    if (!status.ok()) return status;
    std::int64_t missing = BytesOf(tensor);
    status = tensor.write([&](std::span<const std::byte> bytes) {
      missing -= std::ssize(bytes);
      return file.Write(bytes);
    });
    MANYHEAD_DCHECK(!status.ok() || missing == 0);
  }
  if (status.ok()) status = file.Pad(alignment);
  return status.ok() ? file.Commit(sync) : status;
}

}  // namespace manyhead
