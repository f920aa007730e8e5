#include "tools/manyhead/report.h"

#include <algorithm>

#include "tools/manyhead/model_path.h"
#include "tools/manyhead/progress.h"

namespace manyhead::cli {
namespace {

std::string CsvField(const Json& value) {
  std::string text = value.is_string() ? value.get<std::string>()
                                       : value.dump(-1, ' ', false, Json::error_handler_t::replace);
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + "\"";
}

}  // namespace

KvTokenBytes MeasureKvTokenBytes(const KvCache& cache) {
  KvTokenBytes bytes;
  bytes.total = cache.bytes_per_token();
  for (const KvLayerShape& layer : cache.params().layers) {
    // A cache of that one head and one page says what its pages take, padding included.
    KvCacheParams one = cache.params();
    one.layers = {layer};
    one.layers.front().num_kv_heads = 1;
    one.max_tokens = one.page_size;
    const Result<std::int64_t> page = KvCapacityBytes(one, 1, one.page_size);
    bytes.per_head.push_back(page.ok() ? *page / one.page_size : 0);
  }
  return bytes;
}

std::string FormatRange(const std::vector<std::int64_t>& bytes) {
  if (bytes.empty()) return "0 B";
  const auto [min, max] = std::minmax_element(bytes.begin(), bytes.end());
  const std::string low = FormatBytes(static_cast<double>(*min));
  return *min == *max ? low : low + " to " + FormatBytes(static_cast<double>(*max));
}

Json KvJson(const KvCache& cache) {
  const KvUsage usage = cache.usage();
  const KvTokenBytes bytes = MeasureKvTokenBytes(cache);
  Json json;
  json["type_k"] = KvTypeName(cache.params().k_type);
  json["type_v"] = KvTypeName(cache.params().v_type);
  json["bytes_per_token"] = bytes.total;
  json["head_bytes_per_token"] = bytes.per_head;
  json["used_bytes"] = usage.used_bytes;
  json["head_bytes"] = usage.head_bytes;
  return json;
}

std::string ModelType(const Model& model) {
  std::string type = model.config().architecture;
  type += " " + FormatCount(static_cast<double>(model.num_parameters()));
  type += " ";
  type += model.main_weight_type();
  return type;
}

void WriteCsv(const std::vector<Json>& rows) {
  for (const Json& row : rows) {
    std::string names, values;
    for (const auto& [name, value] : row.items()) {
      names += (names.empty() ? "" : ",") + name;
      values += (values.empty() ? "" : ",") + CsvField(value);
    }
    if (&row == &rows.front()) Stdout::Write(names + "\n");
    Stdout::Write(values + "\n");
  }
}

Result<Model> LoadModel(const std::string& name) {
  const Result<std::string> path = FindModel(name);
  if (!path.ok()) return path.status();
  const SlowNotice notice("loading " + *path);
  return Model::Load(*path);
}

}  // namespace manyhead::cli
