#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "manyhead/model.h"
#include "manyhead/session.h"
#include "manyhead/status.h"
#include "manyhead/types.h"
#include "tools/manyhead/bench_plan.h"
#include "tools/manyhead/bench_profile.h"
#include "tools/manyhead/throughput.h"

namespace manyhead::cli {

/// The number of runs of a test.
struct BenchRuns {
  std::int64_t repetitions = 5;       ///< the least number of counted runs
  std::int64_t most_repetitions = 5;  ///< the most, while all take less than `least_ns`
  std::int64_t least_ns = 0;
  std::int64_t warmups = 1;  ///< runs before, which are not counted
};

struct BenchResult {
  BenchTest test;
  std::vector<std::int64_t> samples_ns;
  std::vector<double> samples_ts;  ///< tokens per second of each repetition
  MeanAndDeviation ns, ts;
  MedianInterval median_ts;
  std::int64_t kv_read_bytes_per_token = 0;  ///< mean over the decoded tokens; 0 in a prefill test
  std::string ids_checksum;                  ///< checksum of the greedy ids
  std::int64_t peak_resident_bytes = 0;
  std::string test_time;  ///< start, ISO 8601, UTC
};

/// Puts the samples of `more`, of the same test, behind those of `result`.
void AppendSamples(const BenchResult& more, BenchResult* result);

/// Runs tests on one session. The tokens are the same for every run: fixed ids up to the depth,
/// then fixed ids as the prompt, or the model's own greedy choice.
class BenchRunner {
 public:
  BenchRunner(const Model& model, Session& session, NanosecondClock clock);

  /// Runs a test as often as `runs` says, of a decode test's warm-ups only the first tokens.
  /// Returns nothing when it was interrupted before the first run was done.
  /// Errors   what the session says; kUnsupported when two repetitions give different ids.
  Result<std::optional<BenchResult>> Run(const BenchTest& test, const BenchRuns& runs);

  /// As Run, with a profile of the steps. Nothing when it was interrupted.
  Result<std::optional<ProfileResult>> Profile(const BenchTest& test, const BenchRuns& runs);

 private:
  TokenId IdAt(std::int64_t position) const;
  /// Makes the session hold exactly the first `depth` fixed ids.
  bool Rewind(std::int64_t depth);
  bool AppendFixed(std::int64_t count);
  bool Append(std::span<const TokenId> ids, RowRole role);
  bool Prefill(std::int64_t count);
  bool Decode(std::int64_t count);
  bool WarmUp(const BenchTest& test, std::int64_t times);
  bool RunOnce(const BenchTest& test, std::int64_t most_gen);
  void CompareIds(const BenchTest& test, const std::vector<TokenId>& expected);

  const Model* model_;
  Session* session_;
  NanosecondClock clock_;
  std::int64_t fixed_ = 0;  ///< number of first tokens of the session that are fixed ids
  Status status_;
  TokenId best_id_ = 0;           ///< best token by the last logits
  std::int64_t sampling_ns_ = 0;  ///< total time spent to find it
  std::vector<TokenId> ids_;      ///< greedy ids of the current run
};

}  // namespace manyhead::cli
