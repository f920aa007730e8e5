#include <string>
#include <vector>

#include "tools/manyhead/memory_sweep.h"
#include "tools/manyhead/report.h"

namespace manyhead::cli {
namespace {

using Cells = std::vector<std::vector<std::string>>;

std::string Whole(const Json& value) { return std::to_string(value.get<std::int64_t>()); }
std::string Bytes(const Json& value) { return FormatBytes(value.get<double>()); }

/// Returns e.g. "1.10T", as FormatCount has no letter for it.
std::string Flops(const Json& value) {
  const double flops = value.get<double>();
  return flops < 1e12 ? FormatCount(flops) : FormatFixed(flops / 1e12, 2) + "T";
}

/// Adds a layer's heads that are alike in one line.
void AddHeadRows(const Json& layer, Cells& cells) {
  const Json& heads = layer["per_head"];
  for (std::size_t first = 0, next; first < heads.size(); first = next) {
    const Json& head = heads[first];
    const auto alike = [&head](const Json& other) {
      for (const char* key : {"kv_type", "kv_policy", "kv_bytes", "parameters"})
        if (head[key] != other[key]) return false;
      return true;
    };
    for (next = first + 1; next < heads.size() && alike(heads[next]); ++next) continue;
    const std::string range = std::to_string(first) +
                              (next == first + 1 ? std::string() : "-" + std::to_string(next - 1));
    cells.push_back({Whole(layer["layer"]), range, head["kv_type"].get<std::string>(),
                     head["kv_policy"].get<std::string>(), Whole(head["parameters"]),
                     Whole(head["kv_bytes_per_token"]), Whole(head["kv_tokens"]),
                     Whole(head["kv_bytes"]), Flops(head["flops"]["projections"]),
                     Flops(head["flops"]["scores"])});
  }
}

void PrintHeads(const Json& row) {
  Cells cells = {{"layer", "KV heads", "kv", "policy", "parameters", "KV/token", "tokens",
                  "KV bytes", "proj FLOPs", "score FLOPs"}};
  for (const Json& layer : row["per_layer"]) AddHeadRows(layer, cells);
  Stdout::Write("\neach KV head of " + Whole(row["num_heads"]) + "/" + Whole(row["num_kv_heads"]) +
                " heads, " + Whole(row["context"]) + " tokens:\n" + FormatTable(cells, 4));
}

void PrintMeasured(const std::vector<Json>& rows) {
  Cells cells = {{"heads", "KV heads", "context", "kv", "predicted", "resident", "error",
                  "KV bytes", "prefill t/s", "decode t/s", "us/head", "of roofline"}};
  for (const Json& row : rows) {
    if (!row.contains("measured")) continue;
    const Json& measured = row["measured"];
    const double predicted = row["total_bytes"].get<double>();
    const double resident = measured["resident_bytes"].get<double>();
    cells.push_back({Whole(row["num_heads"]), Whole(row["num_kv_heads"]), Whole(row["context"]),
                     row["kv_type"].get<std::string>(), FormatBytes(predicted),
                     FormatBytes(resident),
                     FormatFixed(100 * (predicted - resident) / resident, 1) + " %",
                     Whole(measured["kv_bytes"]),
                     FormatFixed(measured["prefill_tokens_per_second"].get<double>(), 1),
                     FormatFixed(measured["decode_tokens_per_second"].get<double>(), 1),
                     FormatFixed(1e6 * measured["seconds_per_head"].get<double>(), 1),
                     FormatFixed(100 * measured["of_roofline"].get<double>(), 0) + " %"});
  }
  if (cells.size() > 1) Stdout::Write("\nmeasured:\n" + FormatTable(cells, 0));
}

/// Copies the values of `json`, with nested objects as names with dots; lists of objects are
/// skipped.
void Flatten(const Json& json, const std::string& prefix, Json& flat) {
  for (const auto& [name, value] : json.items()) {
    if (value.is_object()) {
      Flatten(value, prefix + name + ".", flat);
    } else if (name != "per_layer") {
      flat[prefix + name] = value;
    }
  }
}

}  // namespace

void PrintMemoryTable(const std::vector<Json>& rows) {
  Cells cells = {{"d_model", "heads", "KV heads", "head_dim", "layers", "context", "batch", "kv",
                  "parameters", "weights", "KV/token", "KV", "scratch", "total", "proj FLOPs",
                  "score FLOPs", "score matrix"}};
  for (const Json& row : rows)
    cells.push_back(
        {Whole(row["d_model"]), Whole(row["num_heads"]), Whole(row["num_kv_heads"]),
         Whole(row["head_dim"]), Whole(row["layers"]), Whole(row["context"]), Whole(row["batch"]),
         row["kv_type"].get<std::string>(), Whole(row["parameters"]), Bytes(row["weight_bytes"]),
         Bytes(row["kv_bytes_per_token"]), Bytes(row["kv_bytes"]), Bytes(row["scratch_bytes"]),
         Bytes(row["total_bytes"]), Flops(row["flops"]["projections"]),
         Flops(row["flops"]["scores"]), Bytes(row["score_matrix_bytes"])});
  Stdout::Write(FormatTable(cells, 0));
  for (const Json& row : rows)
    if (row.contains("per_layer")) PrintHeads(row);
  PrintMeasured(rows);
}

void WriteMemoryCsv(const std::vector<Json>& rows) {
  std::vector<Json> flat(rows.size(), Json::object());
  for (std::size_t i = 0; i < rows.size(); ++i) Flatten(rows[i], "", flat[i]);
  WriteCsv(flat);
}

}  // namespace manyhead::cli
