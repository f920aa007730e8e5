#include "runtime/formats/hf_folder.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <system_error>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/formats/json_metadata.h"
#include "runtime/formats/safetensors.h"
#include "runtime/platform/errors.h"
#include "runtime/platform/json.h"
#include "runtime/platform/mapped_file.h"
#include "runtime/platform/printable.h"

namespace manyhead {
namespace {

constexpr std::string_view kConfig = "config.json";
constexpr std::string_view kWhole = "model.safetensors";
constexpr std::string_view kIndex = "model.safetensors.index.json";
constexpr std::string_view kSuffix = ".safetensors";
/// A text is parsed into a tree that takes many times its size.
constexpr std::size_t kMaxTextBytes = std::size_t{16} << 20;
constexpr std::size_t kMaxTokenizerBytes = std::size_t{128} << 20;
constexpr std::size_t kMaxFiles = 4096;

std::string_view TextOf(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

bool IsThere(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::symlink_status(path, ignored).type() !=
         std::filesystem::file_type::not_found;
}

/// Returns true where an index may name this file: one of the folder itself.
bool IsPlainName(std::string_view name) {
  return name.ends_with(kSuffix) && name.size() > kSuffix.size() && name.front() != '.' &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos;
}

}  // namespace

struct HfFolder::Impl {
  std::string path;
  std::vector<MappedFile> shards;
  std::vector<SafetensorsIndex> indexes;
  std::vector<MappedFile> texts;
  std::optional<JsonMetadata> config;
  TokenizerFiles tokenizer;
  std::vector<StoredTensor> tensors;
  std::vector<UnreadableTensor> unreadable;
  std::unordered_map<std::string_view, std::size_t> by_name;

  std::string FileOf(std::string_view name) const { return path + "/" + std::string(name); }
  template <class... Parts>
  Status Bad(const Parts&... parts) const {
    return IoError(Printable(path, path.size()), parts...);
  }

  /// Maps the file `name` of the folder; its text stays until the folder is closed.
  Result<std::string_view> ReadText(std::string_view name, std::size_t max_bytes);
  /// The same for a file that a folder need not have: empty without it.
  Status ReadOptional(std::string_view name, std::size_t max_bytes, std::string_view* text);
  Status ReadTexts();
  Status AddShard(const std::string& name);
  Result<std::map<std::string, std::string>> ReadIndex();
  Status CheckIndex(const std::map<std::string, std::string>& files,
                    const std::vector<std::string>& names) const;
  Status ReadTensors();
};

Result<std::string_view> HfFolder::Impl::ReadText(std::string_view name, std::size_t max_bytes) {
  const std::string file = FileOf(name);
  Result<MappedFile> mapped = MappedFile::Open(file);
  if (!mapped.ok()) return mapped.status();
  if (mapped->bytes().size() > max_bytes)
    return IoError(Printable(file, file.size()), "size = ", mapped->bytes().size(),
                   " bytes; expected at most ", max_bytes);
  texts.push_back(*std::move(mapped));
  return TextOf(texts.back());
}

Status HfFolder::Impl::ReadOptional(std::string_view name, std::size_t max_bytes,
                                    std::string_view* text) {
  if (!IsThere(FileOf(name))) return {};
  const Result<std::string_view> read = ReadText(name, max_bytes);
  if (!read.ok()) return read.status();
  *text = *read;
  return {};
}

Status HfFolder::Impl::ReadTexts() {
  if (!IsThere(FileOf(kConfig)))
    return Bad("is a folder without config.json; expected a GGUF file or a Hugging Face folder");
  const Result<std::string_view> text = ReadText(kConfig, kMaxTextBytes);
  if (!text.ok()) return text.status();
  Result<JsonMetadata> parsed = JsonMetadata::Parse(*text, std::string(kConfig));
  if (!parsed.ok()) return WithPath(path, parsed.status());
  config.emplace(*std::move(parsed));
  struct File {
    std::string_view name;
    std::size_t max_bytes;
    std::string_view* text;
  };
  const File files[] = {
      {"tokenizer.json", kMaxTokenizerBytes, &tokenizer.tokenizer},
      {"tokenizer_config.json", kMaxTextBytes, &tokenizer.tokenizer_config},
      {"generation_config.json", kMaxTextBytes, &tokenizer.generation_config},
      {"chat_template.jinja", kMaxTextBytes, &tokenizer.chat_template},
  };
  for (const File& file : files)
    if (Status status = ReadOptional(file.name, file.max_bytes, file.text); !status.ok())
      return status;
  return {};
}

Status HfFolder::Impl::AddShard(const std::string& name) {
  const std::string file = FileOf(name);
  Result<MappedFile> mapped = MappedFile::Open(file);
  if (!mapped.ok()) return mapped.status();
  mapped->AdviseSequential();
  Result<SafetensorsIndex> parsed = ParseSafetensors(mapped->bytes(), Printable(file, file.size()));
  if (!parsed.ok()) return parsed.status();
  shards.push_back(*std::move(mapped));
  indexes.push_back(*std::move(parsed));
  return {};
}

/// Reads the index, which lists the file of every tensor.
Result<std::map<std::string, std::string>> HfFolder::Impl::ReadIndex() {
  const Result<std::string_view> text = ReadText(kIndex, kMaxTextBytes);
  if (!text.ok()) return text.status();
  const Result<JsonTree> parsed = ParseJson(*text, JsonKeys::kUnique);
  if (!parsed.ok()) return Bad(kIndex, ": ", parsed.status().message());
  const nlohmann::ordered_json& root = parsed->root();
  if (!root.is_object() || !root.contains("weight_map") || !root["weight_map"].is_object() ||
      root["weight_map"].empty())
    return Bad(kIndex, ": ", ShowJson(root), "; expected an object with a weight_map");
  std::map<std::string, std::string> files;
  for (const auto& item : root["weight_map"].items()) {
    const nlohmann::ordered_json& file = item.value();
    if (!file.is_string() || !IsPlainName(file.get_ref<const std::string&>()))
      return Bad(kIndex, ": weight_map has ", ShowJson(file), " for '", Printable(item.key()),
                 "'; expected the name of a .safetensors file of this folder");
    files.emplace(item.key(), file.get<std::string>());
  }
  return files;
}

/// Checks that every tensor of the index lies in its file, and every tensor of the files is in the
/// index.
Status HfFolder::Impl::CheckIndex(const std::map<std::string, std::string>& files,
                                  const std::vector<std::string>& names) const {
  std::size_t count = 0;
  for (std::size_t i = 0; i < names.size(); ++i) {
    for (const std::string& tensor : indexes[i].names) {
      const auto listed = files.find(tensor);
      if (listed == files.end() || listed->second != names[i])
        return Bad(names[i], " has tensor '", Printable(tensor), "', for which ", kIndex, " names ",
                   listed == files.end() ? "no file" : listed->second);
      ++count;
    }
  }
  if (count == files.size()) return {};
  std::set<std::string_view> found;
  for (const SafetensorsIndex& index : indexes)
    found.insert(index.names.begin(), index.names.end());
  for (const auto& [tensor, file] : files)
    if (found.count(tensor) == 0)
      return Bad(kIndex, " lists tensor '", Printable(tensor), "' in ", file,
                 ", which does not have it");
  return {};
}

Status HfFolder::Impl::ReadTensors() {
  const bool whole = IsThere(FileOf(kWhole));
  std::vector<std::string> names;
  std::map<std::string, std::string> files;
  if (whole) {
    names.emplace_back(kWhole);
  } else {
    if (!IsThere(FileOf(kIndex)))
      return Bad("has neither ", kWhole, " nor ", kIndex,
                 "; expected tensors in the safetensors format");
    Result<std::map<std::string, std::string>> listed = ReadIndex();
    if (!listed.ok()) return listed.status();
    files = *std::move(listed);
    std::set<std::string> distinct;
    for (const auto& [tensor, file] : files) distinct.insert(file);
    names.assign(distinct.begin(), distinct.end());
    if (names.size() > kMaxFiles)
      return Bad(kIndex, " lists ", names.size(), " files; expected at most ", kMaxFiles);
  }
  shards.reserve(names.size());
  indexes.reserve(names.size());
  for (const std::string& name : names)
    if (Status status = AddShard(name); !status.ok()) return status;
  if (!whole)
    if (Status status = CheckIndex(files, names); !status.ok()) return status;
  for (const SafetensorsIndex& index : indexes) {
    tensors.insert(tensors.end(), index.tensors.begin(), index.tensors.end());
    unreadable.insert(unreadable.end(), index.others.begin(), index.others.end());
  }
  for (std::size_t i = 0; i < tensors.size(); ++i) by_name.emplace(tensors[i].name, i);
  return {};
}

Result<HfFolder> HfFolder::Open(const std::string& path) {
  auto impl = std::make_unique<Impl>();
  impl->path = path;
  if (Status status = impl->ReadTexts(); !status.ok()) return status;
  if (Status status = impl->ReadTensors(); !status.ok()) return status;
  return HfFolder(std::move(impl));
}

HfFolder::HfFolder(std::unique_ptr<const Impl> impl) noexcept : impl_(std::move(impl)) {}
HfFolder::HfFolder(HfFolder&&) noexcept = default;
HfFolder& HfFolder::operator=(HfFolder&&) noexcept = default;
HfFolder::~HfFolder() = default;

const std::string& HfFolder::path() const noexcept { return impl_->path; }

std::int64_t HfFolder::size_bytes() const noexcept {
  std::size_t bytes = 0;
  for (const MappedFile& file : impl_->shards) bytes += file.bytes().size();
  for (const MappedFile& file : impl_->texts) bytes += file.bytes().size();
  return static_cast<std::int64_t>(bytes);
}

const Metadata& HfFolder::config() const noexcept { return *impl_->config; }

const TokenizerFiles* HfFolder::tokenizer_files() const noexcept { return &impl_->tokenizer; }

std::span<const StoredTensor> HfFolder::tensors() const noexcept { return impl_->tensors; }

const StoredTensor* HfFolder::FindTensor(std::string_view name) const noexcept {
  const auto found = impl_->by_name.find(name);
  return found == impl_->by_name.end() ? nullptr : &impl_->tensors[found->second];
}

std::span<const UnreadableTensor> HfFolder::unreadable() const noexcept {
  return impl_->unreadable;
}

void HfFolder::Prefetch() const noexcept {
  for (const MappedFile& shard : impl_->shards) shard.AdviseWillNeed();
}

void HfFolder::ReleasePages(std::span<const std::byte> part) const noexcept {
  for (const MappedFile& shard : impl_->shards) shard.ReleasePages(part);
}

}  // namespace manyhead
