#include "tools/manyhead/bench_compare.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <sstream>
#include <utility>

#include "tools/manyhead/options.h"

namespace manyhead::cli {
namespace {

constexpr double kFastShare = 0.1;
constexpr std::size_t kMostBlocks = 10;
constexpr int kResamples = 400;

/// The fields that the rows of one test share.
constexpr const char* kSameTest[] = {"model_type",     "model_size", "n_prompt",  "n_gen",
                                     "n_depth",        "n_threads",  "type_k",    "type_v",
                                     "profiles_heads", "math",       "kv_policy", "weights"};
/// The fields that may differ, and then may explain a difference.
constexpr const char* kCircumstances[] = {"isa", "team", "cpu_info", "compiler", "cpu_governor"};

/// The value below which a tenth of `samples` lies, between two samples by their distance.
double FastTime(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  const double place = kFastShare * static_cast<double>(samples.size() - 1);
  const auto below = static_cast<std::size_t>(place);
  const std::size_t above = std::min(below + 1, samples.size() - 1);
  return samples[below] + (place - static_cast<double>(below)) * (samples[above] - samples[below]);
}

/// Samples of blocks that are drawn with replacement.
std::vector<double> Resample(const std::vector<double>& samples, std::mt19937& random) {
  const std::size_t blocks = std::min(kMostBlocks, samples.size());
  std::vector<double> drawn;
  for (std::size_t i = 0; i < blocks; ++i) {
    const std::size_t block = random() % blocks;
    const std::size_t begin = block * samples.size() / blocks;
    const std::size_t end = (block + 1) * samples.size() / blocks;
    for (std::size_t s = begin; s < end; ++s) drawn.push_back(samples[s]);
  }
  return drawn;
}

BenchVerdict Judge(const BenchComparison& found) {
  const double least = 1 + kLeastDifference, corrected = found.corrected.value_or(found.ratio);
  if (found.low > 1 && std::min(found.ratio, corrected) > least) return BenchVerdict::kSlower;
  if (found.high < 1 && std::max(found.ratio, corrected) < 1 / least) return BenchVerdict::kFaster;
  return BenchVerdict::kNoDifference;
}

std::string Show(const Json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

/// The value at `key`; null where there is none.
Json ValueAt(const Json& row, const char* key) { return row.contains(key) ? row[key] : Json(); }

/// Most samples of a row, and the longest time of one in nanoseconds, about 11 days: what lies
/// beyond was not written by this command.
constexpr std::size_t kMostSamples = 100000;
constexpr double kLongestSample = 1e15;

bool IsRow(const Json& row) {
  if (!row.is_object() || !row.contains("samples_ns") || !row["samples_ns"].is_array() ||
      row["samples_ns"].size() == 0 || row["samples_ns"].size() > kMostSamples ||
      !row.contains("n_gen") || !row.contains("model_type"))
    return false;
  return std::all_of(row["samples_ns"].begin(), row["samples_ns"].end(), [](const Json& sample) {
    return sample.is_number() && sample.get<double>() >= 1 &&
           sample.get<double>() <= kLongestSample;
  });
}

}  // namespace

const char* BenchVerdictName(BenchVerdict verdict) {
  if (verdict == BenchVerdict::kNoDifference) return "no difference";
  return verdict == BenchVerdict::kSlower ? "slower" : "faster";
}

BenchComparison CompareTests(const TimedTest& before, const TimedTest& after) {
  BenchComparison found;
  found.ratio = FastTime(after.samples_ns) / FastTime(before.samples_ns);
  std::mt19937 random(1);  // the same samples have the same verdict
  std::vector<double> ratios;
  for (int i = 0; i < kResamples; ++i) {
    const double later = FastTime(Resample(after.samples_ns, random));
    ratios.push_back(later / FastTime(Resample(before.samples_ns, random)));
  }
  std::sort(ratios.begin(), ratios.end());
  found.low = ratios[kResamples / 40];
  found.high = ratios[kResamples - 1 - kResamples / 40];
  if (before.probe_flops_per_second > 0 && after.probe_flops_per_second > 0)
    found.corrected = found.ratio * after.probe_flops_per_second / before.probe_flops_per_second;
  found.verdict = Judge(found);
  return found;
}

Result<EarlierRows> EarlierRows::Read(const std::string& path) {
  const Result<std::string> text = ReadFile(path, true);
  if (!text.ok()) return text.status();
  const auto refuse = [&](const std::string& what) {
    return Status(StatusCode::kInvalidArgument,
                  path + ": " + what + "; expected what bench -o json or -o jsonl prints");
  };
  EarlierRows earlier;
  if (const std::optional<Json> whole = ParseJson(*text); whole && whole->is_array()) {
    for (const Json& row : *whole) earlier.rows_.push_back(row);
  } else {
    std::istringstream lines(*text);
    for (std::string line; std::getline(lines, line);)
      if (line.find_first_not_of(" \t\r") != line.npos)
        earlier.rows_.push_back(ParseJson(line).value_or(Json()));
  }
  for (std::size_t i = 0; i < earlier.rows_.size(); ++i)
    if (!IsRow(earlier.rows_[i])) return refuse("row " + std::to_string(i) + " is no row of bench");
  if (earlier.rows_.empty()) return refuse("it has 0 rows");
  return earlier;
}

const Json* EarlierRows::FindRow(const Json& row) const {
  for (const Json& earlier : rows_) {
    const bool same = std::all_of(std::begin(kSameTest), std::end(kSameTest), [&](const char* key) {
      return ValueAt(earlier, key) == ValueAt(row, key);
    });
    if (same) return &earlier;
  }
  return nullptr;
}

std::optional<TimedTest> EarlierRows::Find(const Json& row) const {
  const Json* const earlier = FindRow(row);
  if (earlier == nullptr) return std::nullopt;
  TimedTest test;
  for (const Json& sample : (*earlier)["samples_ns"])
    test.samples_ns.push_back(sample.get<double>());
  const Json probe = ValueAt(*earlier, "probe_flops_per_second");
  if (probe.is_number()) test.probe_flops_per_second = probe.get<double>();
  return test;
}

std::string EarlierRows::Changes(const Json& row) const {
  const Json* const earlier = FindRow(row);
  std::string changes;
  for (const char* key : kCircumstances) {
    if (earlier == nullptr) break;
    const Json now = ValueAt(row, key), then = ValueAt(*earlier, key);
    if (now == then) continue;
    changes += changes.empty() ? "" : "; ";
    changes += std::string(key) + " " + Show(now) + ", was " + Show(then);
  }
  return changes;
}

void AddComparison(const std::optional<BenchComparison>& comparison, Json* row) {
  const auto set = [&](const char* key, auto value) {
    (*row)[key] = comparison ? Json(value(*comparison)) : Json();
  };
  set("compare_time_ratio", [](const BenchComparison& one) { return one.ratio; });
  set("compare_time_ratio_low", [](const BenchComparison& one) { return one.low; });
  set("compare_time_ratio_high", [](const BenchComparison& one) { return one.high; });
  set("compare_time_ratio_corrected",
      [](const BenchComparison& one) { return one.corrected ? Json(*one.corrected) : Json(); });
  set("compare_verdict", [](const BenchComparison& one) { return BenchVerdictName(one.verdict); });
}

}  // namespace manyhead::cli
