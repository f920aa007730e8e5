#include "runtime/formats/checkpoint.h"

#include <filesystem>
#include <system_error>

#include "runtime/formats/gguf.h"
#include "runtime/formats/hf_folder.h"
#include "runtime/platform/printable.h"

namespace manyhead {

Result<std::unique_ptr<const Checkpoint>> Checkpoint::Open(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    Result<HfFolder> folder = HfFolder::Open(path);
    if (!folder.ok()) return folder.status();
    return std::unique_ptr<const Checkpoint>(std::make_unique<const HfFolder>(*std::move(folder)));
  }
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
