#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

namespace manyhead {

/// The model's file, "" when it has not been fetched.
inline std::string FindModel(const std::string& name) {
  if (name == "bundled") return std::string(MANYHEAD_SOURCE_DIR) + "/tools/models/bundled.gguf";
  const char* folder = std::getenv("MANYHEAD_MODEL_DIR");
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  std::filesystem::path path;
  if (folder != nullptr && *folder != '\0')
    path = folder;
  else if (cache != nullptr && *cache != '\0')
    path = std::filesystem::path(cache) / "manyhead/models";
  else
    path = std::filesystem::path(home == nullptr ? "" : home) / ".cache/manyhead/models";
  path /= name + ".gguf";
  return std::filesystem::exists(path) ? path.string() : "";
}

}  // namespace manyhead
