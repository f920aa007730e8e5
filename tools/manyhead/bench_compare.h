#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "manyhead/status.h"
#include "tools/manyhead/output.h"

namespace manyhead::cli {

/// A measurement of one test: the time of each repetition, in the order in which they ran, and how
/// fast the machine then was at work that does not depend on the build (0 = unknown).
struct TimedTest {
  std::vector<double> samples_ns;
  double probe_flops_per_second = 0;
};

enum class BenchVerdict { kNoDifference, kSlower, kFaster };
/// Returns "no difference", "slower" or "faster".
const char* BenchVerdictName(BenchVerdict verdict);

/// The comparison of two measurements of the same test. Ratios are the later time over the earlier.
struct BenchComparison {
  double ratio = 1;                 ///< the ratio of their fast times
  double low = 1, high = 1;         ///< the interval of `ratio` that holds 95 % of resamples
  std::optional<double> corrected;  ///< `ratio` over that of the probes' times
  BenchVerdict verdict = BenchVerdict::kNoDifference;
};

/// Differences below this are never called one.
inline constexpr double kLeastDifference = 0.05;

/// Compares two measurements of one test.
///
/// Other programs only ever add time, so the fast time of a measurement is the tenth percentile of
/// its samples. Its noise is found by resampling blocks of consecutive samples, because samples
/// that are near in time share a disturbance. A difference is one that is larger than
/// kLeastDifference, that has the interval of the ratio on one side of 1, and that stays when the
/// machine's own change of speed between the measurements is taken out of it. Each measurement has
/// at least one sample.
BenchComparison CompareTests(const TimedTest& before, const TimedTest& after);

/// Rows of an earlier `bench -o json` or `-o jsonl`.
class EarlierRows {
 public:
  /// Errors   kIoError; kInvalidArgument naming the file and what is no row of bench.
  static Result<EarlierRows> Read(const std::string& path);

  /// Returns the earlier measurement of the test that `row` is of: the same model, types, policy,
  /// arithmetic, threads and lengths.
  std::optional<TimedTest> Find(const Json& row) const;
  /// Returns what `row` was measured with now and earlier that could explain a difference: "isa
  /// avx2, was avx512"; or nothing.
  std::string Changes(const Json& row) const;

 private:
  const Json* FindRow(const Json& row) const;
  std::vector<Json> rows_;
};

/// Adds the comparison to a row; nulls where there is none.
void AddComparison(const std::optional<BenchComparison>& comparison, Json* row);

}  // namespace manyhead::cli
