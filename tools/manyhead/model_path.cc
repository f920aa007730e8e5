#include "tools/manyhead/model_path.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <system_error>

namespace manyhead::cli {
namespace {

namespace fs = std::filesystem;

/// The models that tools/fetch_model.py can fetch.
constexpr std::array<std::string_view, 3> kFetchedModels = {"gemma3-270m", "qwen2.5-coder-0.5b",
                                                            "qwen2.5-coder-1.5b"};

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

bool Exists(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

Result<std::string> FindBundled() {
  if (const std::string path = Environment("MANYHEAD_BUNDLED_MODEL"); !path.empty()) return path;
  std::error_code error;
  const fs::path folder = fs::read_symlink("/proc/self/exe", error).parent_path();
  const std::array<fs::path, 3> places = {
      folder / "bundled.gguf",
      folder.parent_path() / "share" / "manyhead" / "bundled.gguf",
      folder.parent_path().parent_path() / "tools" / "models" / "bundled.gguf",
  };
  for (const fs::path& place : places)
    if (Exists(place)) return place.string();
  return Status(StatusCode::kIoError, "the bundled model is missing: looked for " +
                                          places[0].string() + ", " + places[1].string() + ", " +
                                          places[2].string() + "; name a model with -m");
}

/// Returns the folder that tools/fetch_model.py uses.
fs::path ModelFolder() {
  if (const std::string folder = Environment("MANYHEAD_MODEL_DIR"); !folder.empty()) return folder;
  fs::path cache = Environment("XDG_CACHE_HOME");
  if (cache.empty()) cache = fs::path(Environment("HOME")) / ".cache";
  return cache / "manyhead" / "models";
}

}  // namespace

Result<std::string> FindModel(const std::string& model) {
  if (model.empty() || (model == "bundled" && !Exists(model))) return FindBundled();
  const bool is_name =
      std::find(kFetchedModels.begin(), kFetchedModels.end(), model) != kFetchedModels.end();
  if (!is_name || Exists(model)) return model;
  const fs::path folder = ModelFolder();
  const fs::path path = folder / (model + ".gguf");
  if (Exists(path)) return path.string();
  return Status(StatusCode::kIoError, "model " + model + " is not in " + folder.string() +
                                          ": fetch it with tools/fetch_model.py " + model);
}

}  // namespace manyhead::cli
