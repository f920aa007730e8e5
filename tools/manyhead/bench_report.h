#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "manyhead/model.h"
#include "manyhead/session.h"
#include "manyhead/threads.h"
#include "tools/manyhead/bench_compare.h"
#include "tools/manyhead/bench_run.h"
#include "tools/manyhead/environment.h"
#include "tools/manyhead/rows.h"

namespace manyhead::cli {

/// The settings that the rows of one session share.
struct BenchSetting {
  SessionOptions options;  ///< resolved
  int threads = 0;
  Isa isa = Isa::kScalar;
  Team team = Team::kOwn;
  std::string weights;  ///< "packed" or "mapped"
  std::int64_t kv_bytes_per_token = 0;
  double bandwidth = 0;       ///< bytes per second, measured once; 0 = unknown
  int bandwidth_threads = 0;  ///< threads that measured it
  bool profiles_heads = false;
};

/// One test of one session.
struct BenchRow {
  BenchResult result;
  double probe_flops_per_second = 0;  ///< see TimedTest
  CpuState before, after;
};

/// Prints rows of `bench` as they are done.
class BenchReport {
 public:
  /// `tests` and `earlier` decide the columns; `earlier` may be null and outlives this.
  BenchReport(const std::string& format, const std::vector<BenchTest>& tests,
              const EarlierRows* earlier, std::string earlier_name);

  /// Returns the fields of a row, without a comparison.
  static Json Fields(const Model& model, const BenchSetting& setting, const BenchRow& row);
  /// Prints a row, and how it compares.
  void Add(const Model& model, const BenchSetting& setting, const BenchRow& row,
           const std::optional<BenchComparison>& comparison);
  bool empty() const { return weights_.empty(); }
  /// Ends the output: remarks below a table.
  void Finish(double bandwidth);

 private:
  const EarlierRows* earlier_;
  std::string earlier_name_;
  RowWriter writer_;
  std::string weights_;  ///< a remark on each model
  int verdicts_[3] = {};
  int missing_ = 0;
  std::string changes_;  ///< the last warning
};

}  // namespace manyhead::cli
