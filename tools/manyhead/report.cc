#include "tools/manyhead/report.h"

#include <algorithm>

#include "tools/manyhead/model_path.h"
#include "tools/manyhead/progress.h"
#include "tools/manyhead/rows.h"

namespace manyhead::cli {

KvTokenBytes MeasureKvTokenBytes(const KvCache& cache) {
  KvTokenBytes bytes;
  bytes.total = cache.bytes_per_token();
  for (const std::vector<KvHeadCost>& layer : MeasureKvHeads(cache))
    for (const KvHeadCost& head : layer) bytes.per_head.push_back(head.bytes_per_token);
  return bytes;
}

std::vector<std::vector<KvHeadCost>> MeasureKvHeads(const KvCache& cache) {
  std::vector<std::vector<KvHeadCost>> costs;
  const auto& heads = cache.params().heads;
  for (std::size_t layer = 0; layer < heads.size(); ++layer) {
    costs.emplace_back();
    for (std::size_t head = 0; head < heads[layer].size(); ++head) {
      const KvPolicy& policy = heads[layer][head].policy;
      KvHeadCost cost;
      cost.bytes_per_token =
          cache.bytes_per_token(static_cast<std::int64_t>(layer), static_cast<std::int64_t>(head));
      if (policy.kind == KvPolicyKind::kBudget) {
        cost.most_tokens = policy.budget + 1;
      } else if (policy.kind != KvPolicyKind::kFull) {
        cost.most_tokens = policy.sink + policy.recent;
      }
      costs.back().push_back(cost);
    }
  }
  return costs;
}

namespace {

/// Returns a number for each layer, or a list of them where its heads differ.
Json HeadBytesJson(const KvCache& cache) {
  Json json = Json::array();
  for (const std::vector<KvHeadCost>& layer : MeasureKvHeads(cache)) {
    std::vector<std::int64_t> bytes;
    for (const KvHeadCost& head : layer) bytes.push_back(head.bytes_per_token);
    const bool alike = std::count(bytes.begin(), bytes.end(), bytes.front()) ==
                       static_cast<std::int64_t>(bytes.size());
    json.push_back(alike ? Json(bytes.front()) : Json(bytes));
  }
  return json;
}

}  // namespace

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
  json["head_bytes_per_token"] = HeadBytesJson(cache);
  json["used_bytes"] = usage.used_bytes;
  json["table_bytes"] = usage.table_bytes;
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
    if (&row == &rows.front()) Stdout::Write(CsvNames(row));
    Stdout::Write(CsvValues(row));
  }
}

Result<Model> LoadModel(const std::string& name, const ModelOptions& options) {
  const Result<std::string> path = FindModel(name);
  if (!path.ok()) return path.status();
  const SlowNotice notice("loading " + *path);
  return Model::Load(*path, options);
}

}  // namespace manyhead::cli
