#include <algorithm>
#include <string>
#include <vector>

#include "tools/manyhead/memory_sweep.h"
#include "tools/manyhead/report.h"
#include "tools/manyhead/rows.h"

namespace manyhead::cli {
namespace {

using Cells = std::vector<std::vector<std::string>>;

std::string Whole(const Json& value) { return std::to_string(value.get<std::int64_t>()); }
std::string Bytes(const Json& value) { return FormatBytes(value.get<double>()); }

std::string Count(const Json& value) { return FormatCount(value.get<double>()); }
std::string Text(const Json& value) { return value.get<std::string>(); }

/// Adds a layer's heads that are alike in one line.
void AddHeadRows(const Json& layer, Cells& cells) {
  const Json& heads = layer["per_head"];
  for (std::size_t first = 0, next; first < heads.size(); first = next) {
    const Json& head = heads[first];
    const auto alike = [&head](const Json& other) {
      for (const char* key : {"kv_type", "kv_policy", "kv_bytes", "parameters", "flops"})
        if (head[key] != other[key]) return false;
      return true;
    };
    for (next = first + 1; next < heads.size() && alike(heads[next]); ++next) continue;
    const std::string range = std::to_string(first) +
                              (next == first + 1 ? std::string() : "-" + std::to_string(next - 1));
    cells.push_back({Whole(layer["layer"]), range, head["kv_type"].get<std::string>(),
                     head["kv_policy"].get<std::string>(), Count(head["parameters"]),
                     Whole(head["kv_bytes_per_token"]), Whole(head["kv_tokens"]),
                     Whole(head["kv_bytes"]), Count(head["flops"]["projections"]),
                     Count(head["flops"]["scores"]), Count(head["flops"]["scores_seen"])});
  }
}

/// Prints a table below a line that says what it is.
void PrintBelow(const std::string& title, const Cells& cells, std::size_t left, bool markdown) {
  Stdout::Write("\n" + title + ":\n" + (markdown ? "\n" : "") +
                (markdown ? FormatMarkdown(cells, left) : FormatTable(cells, left)));
}

void PrintHeads(const Json& row, bool markdown) {
  Cells cells = {{"layer", "KV heads", "kv", "policy", "parameters", "KV/token", "tokens",
                  "KV bytes", "proj FLOPs", "score FLOPs", "attended"}};
  for (const Json& layer : row["per_layer"]) AddHeadRows(layer, cells);
  PrintBelow("each KV head of " + Whole(row["num_heads"]) + "/" + Whole(row["num_kv_heads"]) +
                 " heads, " + Whole(row["context"]) + " tokens",
             cells, 4, markdown);
}

void PrintMeasured(const std::vector<Json>& rows, bool markdown) {
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
  if (cells.size() > 1) PrintBelow("measured", cells, 0, markdown);
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

void PrintMemory(const std::vector<Json>& rows, const std::string& format) {
  std::vector<RowColumn> columns;
  for (const char* name : {"d_model", "heads", "KV heads", "head_dim", "layers", "context", "batch",
                           "kv", "parameters", "weights", "KV/token", "KV", "scratch", "total",
                           "proj FLOPs", "score FLOPs", "attended", "score matrix", "read/token"})
    columns.push_back({name});
  const bool policies = std::any_of(rows.begin(), rows.end(), [](const Json& row) {
    return row["kv_policy"].get<std::string>() != "full";
  });
  if (policies) columns.insert(columns.begin() + 8, RowColumn{"policy"});
  const bool speed = !rows.empty() && !rows.front()["bandwidth_bytes_per_second"].is_null();
  if (speed) columns.push_back({"tokens/s"});
  RowWriter writer(format, columns, /*at_once=*/false);
  for (const Json& row : rows) {
    std::vector<std::string> cells = {Whole(row["d_model"]),
                                      Whole(row["num_heads"]),
                                      Whole(row["num_kv_heads"]),
                                      Whole(row["head_dim"]),
                                      Whole(row["layers"]),
                                      Whole(row["context"]),
                                      Whole(row["batch"]),
                                      Text(row["kv_type"]),
                                      Count(row["parameters"]),
                                      Bytes(row["weight_bytes"]),
                                      Bytes(row["kv_bytes_per_token"]),
                                      Bytes(row["kv_bytes"]),
                                      Bytes(row["scratch_bytes"]),
                                      Bytes(row["total_bytes"]),
                                      Count(row["flops"]["projections"]),
                                      Count(row["flops"]["scores"]),
                                      Count(row["flops"]["scores_seen"]),
                                      Bytes(row["score_matrix_bytes"]),
                                      Bytes(row["decode_bytes_per_token"])};
    if (policies) cells.insert(cells.begin() + 8, Text(row["kv_policy"]));
    const Json& predicted = row["predicted_tokens_per_second"];
    if (speed) cells.push_back(predicted.is_null() ? "" : FormatFixed(predicted.get<double>(), 2));
    Json fields = format == "csv" ? Json::object() : row;
    if (format == "csv") Flatten(row, "", fields);
    writer.Add(fields, cells);
  }
  writer.Finish();
  if (!writer.is_text()) return;
  const bool markdown = format == "md";
  for (const Json& row : rows)
    if (row.contains("per_layer")) PrintHeads(row, markdown);
  PrintMeasured(rows, markdown);
}

void PrintFits(const std::vector<Json>& rows, const std::string& format) {
  std::vector<RowColumn> columns = {{"kv", true}, {"policy", true}};
  for (const char* name : {"heads", "KV heads", "given", "largest", "limit", "KV/token", "KV",
                           "weights", "total", "left"})
    columns.push_back({name});
  RowWriter writer(format, columns, /*at_once=*/false);
  for (const Json& row : rows) {
    const bool by_context = Text(row["solved_for"]) == "context";
    const std::string solved = by_context ? "context" : "batch";
    const std::string given = by_context ? "batch" : "context";
    const auto bytes = [&](const char* key) { return row[key].is_null() ? "" : Bytes(row[key]); };
    writer.Add(row, {Text(row["kv_type"]), Text(row["kv_policy"]), Whole(row["num_heads"]),
                     Whole(row["num_kv_heads"]), given + " " + Whole(row[given]),
                     row[solved].is_null() ? "nothing fits" : solved + " " + Whole(row[solved]),
                     Text(row["limited_by"]), bytes("kv_bytes_per_token"), bytes("kv_bytes"),
                     bytes("weight_bytes"), bytes("total_bytes"), bytes("left_bytes")});
  }
  writer.Finish();
}

}  // namespace manyhead::cli
