#include "runtime/formats/checkpoint.h"

#include "runtime/formats/gguf.h"
#include "runtime/platform/printable.h"

namespace manyhead {

Result<std::unique_ptr<const Checkpoint>> Checkpoint::Open(const std::string& path) {
  Result<GgufFile> file = GgufFile::Open(path);
  if (!file.ok()) return file.status();
  return std::unique_ptr<const Checkpoint>(std::make_unique<const GgufFile>(*std::move(file)));
}

Status WithPath(const std::string& path, const Status& status) {
  const std::string prefix = Printable(path, path.size()) + ": ";
  if (status.ok() || status.message().starts_with(prefix)) return status;
  return {status.code(), prefix + status.message()};
}

}  // namespace manyhead
