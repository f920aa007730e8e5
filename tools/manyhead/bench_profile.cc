#include "tools/manyhead/bench_profile.h"

#include <algorithm>

#include "tools/manyhead/output.h"
#include "tools/manyhead/parse.h"
#include "tools/manyhead/report.h"
#include "tools/manyhead/rows.h"

namespace manyhead::cli {
namespace {

double PerStep(const ProfileResult& result) {
  return 1 / static_cast<double>(std::max<std::int64_t>(1, result.profile.steps));
}

/// Returns the names of the products that a phase uses in the roles of the test, without
/// duplicates.
std::string ProductOf(const ProfileResult& result, StepPhase phase) {
  std::vector<std::string> names;
  const auto add = [&](const std::string& name) {
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  };
  for (const ProductPath& path : result.products) {
    if (path.phase != phase) continue;
    if (result.test.n_gen > 0) add(path.decode);
    if (result.test.n_prompt > 0) add(path.prefill);
  }
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

Json RowJson(const ProfileRow& row) {
  const auto or_null = [](double value) { return value > 0 ? Json(value) : Json(); };
  Json json;
  json["name"] = row.name;
  json["seconds"] = row.seconds;
  json["percent"] = row.percent;
  json["waiting_seconds"] = row.waiting_seconds;
  json["bytes"] = row.bytes;
  json["flops"] = row.flops;
  json["product"] = row.product;
  json["bound_seconds"] = or_null(row.bound_seconds);
  json["of_bound"] = or_null(row.of_bound);
  return json;
}

/// The profile without its rows.
Json HeadJson(const Profile& profile) {
  const SessionOptions& options = profile.setting.options;
  const ProfileResult& result = profile.result;
  Json json;
  json["cpu_info"] = CpuName();
  json["model_filename"] = profile.setting.model_path;
  json["model_type"] = profile.setting.model_type;
  json["isa"] = IsaName(*options.isa);
  json["math"] = options.math == MathMode::kExact ? "exact" : "fast";
  json["n_threads"] = options.threads;
  json["type_k"] = KvTypeName(options.k_type);
  json["type_v"] = KvTypeName(options.v_type);
  json["n_prompt"] = result.test.n_prompt;
  json["n_gen"] = result.test.n_gen;
  json["n_depth"] = result.test.n_depth;
  json["steps"] = result.profile.steps;
  json["tokens"] = result.profile.tokens;
  json["seconds_per_step"] = result.seconds * PerStep(result);
  json["bandwidth_bytes_per_second"] = profile.setting.roofline.bytes_per_second;
  json["flops_per_second"] = profile.setting.roofline.flops_per_second;
  return json;
}

void PrintJson(const std::vector<Profile>& profiles, bool lines) {
  Json all = Json::array();
  for (const Profile& profile : profiles) {
    Json json = HeadJson(profile);
    json["phases"] = Json::array();
    for (const ProfileRow& row : ProfileRows(profile.result, profile.setting.roofline))
      json["phases"].push_back(RowJson(row));
    if (lines) Stdout::WriteJson(json, -1);
    all.push_back(std::move(json));
  }
  if (!lines) Stdout::WriteJson(all);
}

void PrintCsv(const std::vector<Profile>& profiles) {
  std::vector<Json> rows;
  for (const Profile& profile : profiles) {
    for (const ProfileRow& row : ProfileRows(profile.result, profile.setting.roofline)) {
      rows.push_back(HeadJson(profile));
      rows.back().update(RowJson(row));
    }
  }
  WriteCsv(rows);
}

void PrintTable(const Profile& profile, bool markdown) {
  const ProfileResult& result = profile.result;
  const SessionOptions& options = profile.setting.options;
  const Roofline& roofline = profile.setting.roofline;
  std::vector<std::vector<std::string>> cells = {
      {"phase", "us", "%", "waiting us", "bytes", "Mflop", "bound us", "of bound", "product"}};
  const auto add = [&](const ProfileRow& row) {
    const auto number = [](double value, int digits) {
      return value > 0 ? FormatFixed(value, digits) : "";
    };
    cells.push_back({row.name, FormatFixed(row.seconds * 1e6, 1), FormatFixed(row.percent, 1),
                     number(row.waiting_seconds * 1e6, 1),
                     row.bytes > 0 ? FormatBytes(row.bytes) : "", number(row.flops / 1e6, 1),
                     number(row.bound_seconds * 1e6, 1), number(row.of_bound, 2), row.product});
  };
  ProfileRow all;
  all.name = "step";
  for (const ProfileRow& row : ProfileRows(result, roofline)) {
    add(row);
    all.seconds += row.seconds;
    all.percent += row.percent;
    all.bytes += row.bytes;
    all.flops += row.flops;
    all.bound_seconds += row.bound_seconds;
  }
  all.of_bound = all.bound_seconds / all.seconds;
  add(all);
  std::string head = profile.setting.model_type;
  head += ", " + TestName(result.test);
  head += ", " + FormatKvTypes({options.k_type, options.v_type});
  head += ", " + std::to_string(options.threads) + " threads, ";
  head += IsaName(*options.isa);
  head += ": a step of ";
  head += FormatFixed(static_cast<double>(result.profile.tokens) * PerStep(result), 0);
  head += result.profile.tokens == result.profile.steps ? " token takes " : " tokens takes ";
  head += FormatFixed(all.seconds * 1e3, 3) + " ms\n";
  Stdout::Write(head + (markdown ? "\n" + FormatMarkdown(cells, 1) : FormatTable(cells, 1)));
}

}  // namespace

std::vector<ProfileRow> ProfileRows(const ProfileResult& result, const Roofline& roofline) {
  const double per_step = PerStep(result);
  std::vector<ProfileRow> rows;
  ProfileRow barriers, rest;
  barriers.name = "barriers";
  rest.name = "everything else";
  rest.seconds = (result.seconds - result.sampling_seconds) * per_step;
  for (std::size_t i = 0; i < kNumStepPhases; ++i) {
    const PhaseCost& cost = result.profile.phases[i];
    ProfileRow row;
    row.name = StepPhaseName(static_cast<StepPhase>(i));
    row.seconds = cost.seconds * per_step;
    row.waiting_seconds = cost.waiting_seconds * per_step;
    row.bytes = static_cast<double>(cost.bytes) * per_step;
    row.flops = static_cast<double>(cost.flops) * per_step;
    row.product = ProductOf(result, static_cast<StepPhase>(i));
    row.bound_seconds = roofline.Bound(row.bytes, row.flops);
    const double wall = row.seconds + row.waiting_seconds;
    if (wall > 0) row.of_bound = row.bound_seconds / wall;
    barriers.seconds += row.waiting_seconds;
    rest.seconds -= wall;
    rows.push_back(std::move(row));
  }
  ProfileRow sampling;
  sampling.name = "sampling";
  sampling.seconds = result.sampling_seconds * per_step;
  for (ProfileRow* row : {&sampling, &barriers, &rest}) rows.push_back(std::move(*row));
  for (ProfileRow& row : rows)
    if (result.seconds > 0) row.percent = 100 * row.seconds / (result.seconds * per_step);
  return rows;
}

void PrintProfiles(const std::vector<Profile>& profiles, const std::string& format) {
  if (format == "json" || format == "jsonl") return PrintJson(profiles, format == "jsonl");
  if (format == "csv") return PrintCsv(profiles);
  for (const Profile& profile : profiles) {
    if (&profile != &profiles.front()) Stdout::Write("\n");
    PrintTable(profile, format == "md");
  }
  if (profiles.empty()) return;
  const Roofline& roofline = profiles.front().setting.roofline;
  Stdout::Write("memory reads at " + FormatFixed(roofline.bytes_per_second / 1e9, 1) +
                " GB/s; f32 FMAs run at " + FormatFixed(roofline.flops_per_second / 1e9, 0) +
                " GFLOP/s\n");
}

}  // namespace manyhead::cli
