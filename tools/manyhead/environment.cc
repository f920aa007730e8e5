#include "tools/manyhead/environment.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <fstream>

#include "tools/manyhead/machine.h"
#include "tools/manyhead/parse.h"

namespace manyhead::cli {
namespace {

constexpr std::size_t kMostDigits = std::size_t{1} << 18;  // digits of a mask of 2^20 CPUs

std::string FirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

/// "0-3,8".
std::string FormatCpus(const std::vector<int>& cpus) {
  std::string text;
  for (std::size_t first = 0, next; first < cpus.size(); first = next) {
    for (next = first + 1; next < cpus.size() && cpus[next] == cpus[next - 1] + 1;) ++next;
    text += (text.empty() ? "" : ",") + std::to_string(cpus[first]);
    if (next > first + 1) text += "-" + std::to_string(cpus[next - 1]);
  }
  return text;
}

std::optional<double> LoadAverage() {
  double load = 0;
  return getloadavg(&load, 1) == 1 ? std::optional(load) : std::nullopt;
}

Json OrNull(const std::optional<double>& value) { return value ? Json(*value) : Json(); }

}  // namespace

CpuState ReadCpuState() {
  const std::vector<int> cpus = AllowedCpuList();
  const std::string cpu = std::to_string(cpus.empty() ? 0 : cpus.front());
  const std::string folder = "/sys/devices/system/cpu/cpu" + cpu + "/cpufreq/";
  CpuState state;
  state.governor = FirstLine(folder + "scaling_governor");
  constexpr double kKilohertz = 1e-3;
  if (const auto khz = ParseReal(FirstLine(folder + "scaling_cur_freq"))) {
    state.megahertz = *khz * kKilohertz;
  } else if (const auto mhz = ParseReal(CpuField("cpu MHz"))) {
    state.megahertz = mhz;
  }
  return state;
}

std::string CompilerName() {
#if defined(__clang__)
  return "clang " __clang_version__;
#else
  return "gcc " __VERSION__;
#endif
}

std::string BuildCommit() { return MANYHEAD_COMMIT; }

void AddEnvironment(const CpuState& before, const CpuState& after, Json* row) {
  (*row)["build_commit"] = BuildCommit();
  (*row)["compiler"] = CompilerName();
  (*row)["cpus_allowed"] = FormatCpus(AllowedCpuList());
  (*row)["cpu_governor"] = before.governor.empty() ? Json() : Json(before.governor);
  (*row)["cpu_mhz_before"] = OrNull(before.megahertz);
  (*row)["cpu_mhz_after"] = OrNull(after.megahertz);
  (*row)["load_average"] = OrNull(LoadAverage());
}

Result<std::vector<int>> ParseCpuMask(const std::string& text) {
  const std::string digits =
      text.starts_with("0x") || text.starts_with("0X") ? text.substr(2) : text;
  std::vector<int> cpus;
  bool valid = !digits.empty() && digits.size() <= kMostDigits;
  for (std::size_t i = 0; valid && i < digits.size(); ++i) {
    const char digit = digits[digits.size() - 1 - i];
    int bits = 0;
    valid = std::from_chars(&digit, &digit + 1, bits, 16).ec == std::errc();
    for (int bit = 0; bit < 4; ++bit)
      if ((bits >> bit & 1) != 0) cpus.push_back(static_cast<int>(4 * i) + bit);
  }
  if (valid && !cpus.empty()) return cpus;
  return Status(StatusCode::kInvalidArgument,
                "'" + EscapeLine(text) + "' is not a mask of at least one CPU in hexadecimal");
}

Status UseCpus(const std::vector<int>& cpus) {
  const std::vector<int> allowed = AllowedCpuList();
  for (const int cpu : cpus)
    if (!std::binary_search(allowed.begin(), allowed.end(), cpu))
      return Status(StatusCode::kInvalidArgument, "--cpu-mask names CPU " + std::to_string(cpu) +
                                                      "; this process may use " +
                                                      FormatCpus(allowed));
  if (SetAllowedCpus(cpus)) return {};
  return Status(StatusCode::kIoError,
                "--cpu-mask: the system does not let this process use only "
                "the CPUs " +
                    FormatCpus(cpus));
}

void WarnOfThreads(std::int64_t threads) {
  const int cpus = AllowedCpus();
  if (threads > cpus)
    Warn(std::to_string(threads) + " threads share the " + std::to_string(cpus) +
         (cpus == 1 ? " CPU" : " CPUs") + " that this process may use, and wait for each other");
}

}  // namespace manyhead::cli
