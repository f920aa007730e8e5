#include "tools/manyhead/bench_report.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "tools/manyhead/machine.h"
#include "tools/manyhead/parse.h"
#include "tools/manyhead/report.h"

namespace manyhead::cli {
namespace {

std::vector<RowColumn> Columns(const std::vector<BenchTest>& tests, bool compared) {
  std::size_t name = 0;
  for (const BenchTest& test : tests) name = std::max(name, TestName(test).size());
  std::vector<RowColumn> columns = {
      {"model", true}, {"size", false, 8},     {"isa", false, 6},      {"kv", false, 4},
      {"threads"},     {"test", false, name},  {"tokens/s", false, 8}, {"interval", false, 17},
      {"bandwidth"},   {"KV/token", false, 8}, {"peak memory"},        {"ids", false, 8}};
  if (compared) {
    columns.push_back({"earlier", false, 8});
    columns.push_back({"change", false, 7});
    columns.push_back({"verdict", true, 13});
  }
  return columns;
}

/// Returns the part of the measured bandwidth that decoding used, in percent; negative where it
/// says nothing.
double BandwidthPercent(const Model& model, const BenchSetting& setting, const BenchRow& row) {
  if (row.result.test.n_gen == 0 || row.result.test.n_prompt > 0 || setting.bandwidth <= 0)
    return -1;
  const double bytes =
      static_cast<double>(model.weight_bytes_per_token() + row.result.kv_read_bytes_per_token);
  return 100 * bytes * row.result.median_ts.median / setting.bandwidth;
}

Json OptionalJson(const std::optional<double>& value) { return value ? Json(*value) : Json(); }

std::int64_t FileBytes(const std::string& path) {
  std::error_code error;
  const auto bytes = std::filesystem::file_size(path, error);
  return error ? 0 : static_cast<std::int64_t>(bytes);
}

void AddModel(const Model& model, Json* json) {
  (*json)["model_filename"] = model.path();
  (*json)["model_file_bytes"] = FileBytes(model.path());
  (*json)["model_type"] = ModelType(model);
  (*json)["model_size"] = model.weight_bytes();
  (*json)["model_n_params"] = model.num_parameters();
}

void AddTimes(const BenchResult& result, Json* json) {
  (*json)["avg_ns"] = result.ns.mean;
  (*json)["stddev_ns"] = OptionalJson(result.ns.deviation);
  (*json)["avg_ts"] = result.ts.mean;
  (*json)["stddev_ts"] = OptionalJson(result.ts.deviation);
  (*json)["median_ts"] = result.median_ts.median;
  (*json)["median_low_ts"] = OptionalJson(result.median_ts.low);
  (*json)["median_high_ts"] = OptionalJson(result.median_ts.high);
  (*json)["median_coverage"] = result.median_ts.low ? Json(result.median_ts.coverage) : Json();
}

/// Cells of how a row compares.
std::vector<std::string> ComparisonCells(const BenchRow& row,
                                         const std::optional<BenchComparison>& comparison) {
  if (!comparison) return {"", "", "not in it"};
  const auto& samples = row.result.samples_ts;
  const double now = *std::max_element(samples.begin(), samples.end());
  const double change = 100 / comparison->ratio - 100;
  return {FormatFixed(now * comparison->ratio, 2),
          (change >= 0 ? "+" : "") + FormatFixed(change, 1) + " %",
          BenchVerdictName(comparison->verdict)};
}

}  // namespace

BenchReport::BenchReport(const std::string& format, const std::vector<BenchTest>& tests,
                         const EarlierRows* earlier, std::string earlier_name)
    : earlier_(earlier),
      earlier_name_(std::move(earlier_name)),
      writer_(format, Columns(tests, earlier != nullptr), /*at_once=*/true) {}

Json BenchReport::Fields(const Model& model, const BenchSetting& setting, const BenchRow& row) {
  const BenchResult& result = row.result;
  const double percent = BandwidthPercent(model, setting, row);
  Json json;
  json["build_version"] = MANYHEAD_VERSION;
  json["cpu_info"] = CpuName();
  json["backends"] = "CPU";
  AddModel(model, &json);
  json["n_batch"] = setting.options.chunk;
  json["n_threads"] = setting.threads;
  json["type_k"] = KvTypeName(setting.options.k_type);
  json["type_v"] = KvTypeName(setting.options.v_type);
  json["n_prompt"] = result.test.n_prompt;
  json["n_gen"] = result.test.n_gen;
  json["n_depth"] = result.test.n_depth;
  json["test_time"] = result.test_time;
  AddTimes(result, &json);
  json["isa"] = IsaName(setting.isa);
  json["team"] = TeamName(setting.team);
  json["profiles_heads"] = setting.profiles_heads;
  json["math"] = setting.options.math == MathMode::kExact ? "exact" : "fast";
  json["kv_policy"] = setting.options.kv_policy.empty() ? "full" : setting.options.kv_policy;
  json["weights"] = setting.weights;
  AddEnvironment(row.before, row.after, &json);
  json["probe_flops_per_second"] = OrNull(row.probe_flops_per_second);
  json["weight_bytes_per_token"] = model.weight_bytes_per_token();
  json["kv_bytes_per_token"] = setting.kv_bytes_per_token;
  json["kv_read_bytes_per_token"] = result.kv_read_bytes_per_token;
  json["bandwidth_bytes_per_second"] = OrNull(setting.bandwidth);
  json["bandwidth_threads"] = setting.bandwidth_threads;
  json["bandwidth_percent"] = percent < 0 ? Json() : Json(percent);
  json["peak_resident_bytes"] = result.peak_resident_bytes;
  json["ids_checksum"] = result.ids_checksum;
  json["samples_ns"] = result.samples_ns;
  json["samples_ts"] = result.samples_ts;
  return json;
}

void BenchReport::Add(const Model& model, const BenchSetting& setting, const BenchRow& row,
                      const std::optional<BenchComparison>& comparison) {
  const BenchResult& result = row.result;
  const double percent = BandwidthPercent(model, setting, row);
  const MedianInterval& speed = result.median_ts;
  std::vector<std::string> cells = {
      ModelType(model),
      FormatBytes(static_cast<double>(model.weight_bytes())),
      IsaName(setting.isa),
      FormatKvTypes({setting.options.k_type, setting.options.v_type}),
      std::to_string(setting.threads),
      TestName(result.test),
      FormatFixed(speed.median, 2),
      speed.low ? FormatFixed(*speed.low, 2) + "-" + FormatFixed(*speed.high, 2) : "n/a",
      percent < 0 ? "" : FormatFixed(percent, 0) + " %",
      FormatBytes(static_cast<double>(setting.kv_bytes_per_token)),
      FormatBytes(static_cast<double>(result.peak_resident_bytes)),
      result.ids_checksum.substr(0, 8)};
  Json fields = Fields(model, setting, row);
  if (earlier_ != nullptr) {
    for (std::string& cell : ComparisonCells(row, comparison)) cells.push_back(std::move(cell));
    const std::string changes = earlier_->Changes(fields);
    if (!changes.empty() && changes != changes_)
      Warn("not measured as in " + earlier_name_ + ": " + changes);
    changes_ = changes;
    AddComparison(comparison, &fields);
    ++(comparison ? verdicts_[static_cast<int>(comparison->verdict)] : missing_);
  }
  const std::string weights = ModelType(model) + ": decoding reads " +
                              FormatBytes(static_cast<double>(model.weight_bytes_per_token())) +
                              " of weights per token\n";
  if (weights_.find(weights) == std::string::npos) weights_ += weights;
  writer_.Add(fields, cells);
}

void BenchReport::Finish(double bandwidth) {
  writer_.Finish();
  if (!writer_.is_text() || weights_.empty()) return;
  Stdout::Write(weights_);
  if (bandwidth > 0)
    Stdout::Write("memory reads at " + FormatFixed(bandwidth / 1e9, 1) + " GB/s\n");
  if (earlier_ == nullptr) return;
  Stdout::Write("compared with " + EscapeLine(earlier_name_) + ": " + std::to_string(verdicts_[1]) +
                " slower, " + std::to_string(verdicts_[2]) + " faster, " +
                std::to_string(verdicts_[0]) + " no difference, " + std::to_string(missing_) +
                " not in it; differences below " + FormatFixed(100 * kLeastDifference, 0) +
                " % are not called one\n");
}

}  // namespace manyhead::cli
