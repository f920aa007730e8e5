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

struct BenchResult {
  BenchTest test;
  std::vector<std::int64_t> samples_ns;
  std::vector<double> samples_ts;  ///< tokens per second of each repetition
  MeanAndDeviation ns, ts;
  std::int64_t kv_read_bytes_per_token = 0;  ///< mean over the decoded tokens; 0 in a prefill test
  std::string ids_checksum;                  ///< checksum of the greedy ids
  std::int64_t peak_resident_bytes = 0;
  std::string test_time;  ///< start, ISO 8601, UTC
};

/// Runs tests on one session. The tokens are the same for every run: fixed ids up to the depth,
/// then fixed ids as the prompt, or the model's own greedy choice.
class BenchRunner {
 public:
  BenchRunner(const Model& model, Session& session, NanosecondClock clock);

  /// Runs the test once without counting, then `repetitions` times. Returns nothing when it was
  /// interrupted before the first counted run ended.
  /// Errors   those of the session; kUnsupported when two repetitions give different ids.
  Result<std::optional<BenchResult>> Run(const BenchTest& test, std::int64_t repetitions);

  /// Does the same as Run, with a profile of the steps. Returns nothing when it was interrupted.
  Result<std::optional<ProfileResult>> Profile(const BenchTest& test, std::int64_t repetitions);

 private:
  TokenId IdAt(std::int64_t position) const;
  /// Makes the session hold exactly the first `depth` fixed ids.
  bool Rewind(std::int64_t depth);
  bool AppendFixed(std::int64_t count);
  bool Append(std::span<const TokenId> ids, RowRole role);
  bool Prefill(std::int64_t count);
  bool Decode(std::int64_t count);
  bool WarmUp(const BenchTest& test);
  bool RunOnce(const BenchTest& test, std::int64_t most_tokens);
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
