#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "manyhead/kv_cache.h"
#include "runtime/cache/kv_resolve.h"
#include "runtime/platform/errors.h"
#include "runtime/platform/json.h"

namespace manyhead {
namespace {

using Json = nlohmann::ordered_json;
using Heads = std::vector<std::vector<KvHeadParams>>;

constexpr const char* kName = "ParseKvHeads";

/// A number, or "first-last".
struct Range {
  std::int64_t first = 0;
  std::int64_t last = 0;
};

std::optional<Range> ReadRange(const Json& json) {
  if (json.is_number_integer()) {
    const auto value = json.get<std::int64_t>();
    return Range{value, value};
  }
  if (!json.is_string()) return std::nullopt;
  const std::string& text = json.get_ref<const std::string&>();
  const char* const end = text.data() + text.size();
  Range range;
  const auto first = std::from_chars(text.data(), end, range.first);
  if (first.ec != std::errc() || first.ptr == end || *first.ptr != '-') return std::nullopt;
  const auto last = std::from_chars(first.ptr + 1, end, range.last);
  if (last.ec != std::errc() || last.ptr != end) return std::nullopt;
  return range;
}

/// Reads which of `count` items the list `key` of an entry selects; all without such a list.
Status ReadSelection(const std::string& where, const Json& entry, const char* key,
                     std::int64_t count, std::vector<bool>* selected) {
  selected->assign(static_cast<std::size_t>(count), !entry.contains(key));
  if (!entry.contains(key)) return Status();
  const Json& list = entry[key];
  if (!list.is_array())
    return InvalidArgument(kName, where, ".", key, " = ", ShowJson(list),
                           "; expected a list of numbers and ranges");
  for (const Json& item : list) {
    const std::optional<Range> range = ReadRange(item);
    if (!range || range->first < 0 || range->last < range->first || range->last >= count)
      return InvalidArgument(kName, where, ".", key, " has ", ShowJson(item),
                             "; expected numbers or \"first-last\" in 0..", count - 1);
    for (std::int64_t i = range->first; i <= range->last; ++i)
      (*selected)[static_cast<std::size_t>(i)] = true;
  }
  return Status();
}

/// The values that an entry sets for a head.
struct Changes {
  std::optional<KvType> k_type, v_type;
  std::optional<KvPolicy> policy;
};

Status ReadType(const std::string& where, const std::string& key, const Json& value,
                std::optional<KvType>* type) {
  if (value.is_string()) *type = ParseKvType(value.get_ref<const std::string&>());
  if (type->has_value()) return Status();
  return InvalidArgument(kName, where, ".", key, " = ", ShowJson(value),
                         "; expected f32, f16, bf16, int8 or int4");
}

Status ReadChanges(const std::string& where, const Json& entry, Changes* changes) {
  for (const auto& [key, value] : entry.items()) {
    if (key == "layers" || key == "kv_heads") continue;
    if (key == "k_type" || key == "v_type") {
      Status status =
          ReadType(where, key, value, key == "k_type" ? &changes->k_type : &changes->v_type);
      if (!status.ok()) return status;
    } else if (key == "policy") {
      if (!value.is_string())
        return InvalidArgument(kName, where, ".policy = ", ShowJson(value), "; expected a text");
      const Result<KvPolicy> policy = ParseKvPolicy(value.get_ref<const std::string&>());
      if (!policy.ok())
        return InvalidArgument(kName, where, ".policy: ", policy.status().message());
      changes->policy = *policy;
    } else {
      return InvalidArgument(kName, where, " has the key ", ShowJson(Json(key)),
                             "; expected layers, kv_heads, k_type, v_type, policy");
    }
  }
  return Status();
}

Status ApplyEntry(const std::string& where, const Json& entry, Heads* heads) {
  if (!entry.is_object())
    return InvalidArgument(kName, where, " = ", ShowJson(entry), "; expected an object");
  Changes changes;
  if (Status status = ReadChanges(where, entry, &changes); !status.ok()) return status;
  std::vector<bool> layers, kv_heads;
  const auto num_layers = static_cast<std::int64_t>(heads->size());
  Status status = ReadSelection(where, entry, "layers", num_layers, &layers);
  for (std::size_t l = 0; status.ok() && l < layers.size(); ++l) {
    if (!layers[l]) continue;
    std::vector<KvHeadParams>& layer = (*heads)[l];
    status =
        ReadSelection(where, entry, "kv_heads", static_cast<std::int64_t>(layer.size()), &kv_heads);
    for (std::size_t h = 0; status.ok() && h < layer.size(); ++h) {
      if (!kv_heads[h]) continue;
      layer[h].k_type = changes.k_type.value_or(layer[h].k_type);
      layer[h].v_type = changes.v_type.value_or(layer[h].v_type);
      layer[h].policy = changes.policy.value_or(layer[h].policy);
    }
  }
  return status;
}

Status ApplyJson(std::string_view text, Heads* heads) {
  const Result<JsonTree> parsed = ParseJson(text, JsonKeys::kUnique);
  if (!parsed.ok()) return InvalidArgument(kName, parsed.status().message());
  const Json& json = parsed->root();
  if (!json.is_object() || !json.contains("heads") || !json["heads"].is_array())
    return InvalidArgument(kName, "expected an object with a list \"heads\"");
  for (const auto& [key, value] : json.items())
    if (key != "heads")
      return InvalidArgument(kName, "has the key ", ShowJson(Json(key)), "; expected heads");
  std::size_t index = 0;
  for (const Json& entry : json["heads"]) {
    const std::string where = "heads[" + std::to_string(index++) + "]";
    if (Status status = ApplyEntry(where, entry, heads); !status.ok()) return status;
  }
  return Status();
}

}  // namespace

Result<Heads> ParseKvHeads(std::string_view text, const KvCacheParams& params) {
  KvCacheParams plain = params;
  plain.heads.clear();
  Result<KvCacheParams> resolved = ResolveKvShapes(plain, kName);
  if (!resolved.ok()) return resolved.status();
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first != text.npos && (text[first] == '{' || text[first] == '[')) {
    if (Status status = ApplyJson(text, &resolved->heads); !status.ok()) return status;
  } else {
    const std::size_t end = text.find_last_not_of(" \t\r\n");
    const Result<KvPolicy> policy =
        ParseKvPolicy(first == text.npos ? text : text.substr(first, end + 1 - first));
    if (!policy.ok()) return policy.status();
    for (std::vector<KvHeadParams>& layer : resolved->heads)
      for (KvHeadParams& head : layer) head.policy = *policy;
  }
  resolved = ResolveKvShapes(*resolved, kName);  // checks that every policy is in range
  if (!resolved.ok()) return resolved.status();
  return resolved->heads;
}

std::string FormatKvHeads(const Heads& heads) {
  // The text is not built by Json, whose destructor needs memory of its own.
  std::string text = "{\"heads\": [";
  const char* separator = "\n  ";
  for (std::size_t l = 0; l < heads.size(); ++l)
    for (std::size_t h = 0; h < heads[l].size(); ++h) {
      const KvHeadParams& head = heads[l][h];
      text += std::exchange(separator, ",\n  ");
      text += "{\"layers\":[" + std::to_string(l) + "],\"kv_heads\":[" + std::to_string(h);
      text += std::string("],\"k_type\":\"") + KvTypeName(head.k_type);
      text += std::string("\",\"v_type\":\"") + KvTypeName(head.v_type);
      text += "\",\"policy\":\"" + FormatKvPolicy(head.policy) + "\"}";
    }
  return text + "\n]}\n";
}

}  // namespace manyhead
