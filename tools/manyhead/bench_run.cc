#include "tools/manyhead/bench_run.h"

#include <algorithm>
#include <array>
#include <ctime>
#include <utility>

#include "tools/manyhead/interrupt.h"
#include "tools/manyhead/machine.h"
#include "tools/manyhead/progress.h"
#include "tools/manyhead/report.h"

namespace manyhead::cli {
namespace {

/// Tokens decoded before the counted runs, so that these contain no allocation or page fault.
constexpr std::int64_t kWarmUpTokens = 4;
/// Tokens appended at a time to reach the depth, so that progress can be shown.
constexpr std::int64_t kFillStep = 512;
constexpr std::int64_t kPromptStep = 2048;

std::string UtcNow() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text.data();
}

/// Fills in what follows from the samples.
void Summarize(BenchResult* result) {
  const std::int64_t count = result->test.n_prompt + result->test.n_gen;
  result->samples_ts.clear();
  std::vector<double> ns;
  for (const std::int64_t sample : result->samples_ns) {
    ns.push_back(static_cast<double>(sample));
    result->samples_ts.push_back(ComputeThroughput(1, count, sample).tokens_per_second);
  }
  result->ns = ComputeMeanAndDeviation(ns);
  result->ts = ComputeMeanAndDeviation(result->samples_ts);
  result->median_ts = ComputeMedian(result->samples_ts);
}

}  // namespace

void AppendSamples(const BenchResult& more, BenchResult* result) {
  result->samples_ns.insert(result->samples_ns.end(), more.samples_ns.begin(),
                            more.samples_ns.end());
  Summarize(result);
}

BenchRunner::BenchRunner(const Model& model, Session& session, NanosecondClock clock)
    : model_(&model), session_(&session), clock_(std::move(clock)) {}

TokenId BenchRunner::IdAt(std::int64_t position) const {
  // A multiplicative hash spreads the ids over the vocabulary; their meaning does not matter.
  const std::uint64_t mixed = (static_cast<std::uint64_t>(position) + 1) * 0x9E3779B97F4A7C15U;
  const auto vocab = static_cast<std::uint64_t>(model_->config().vocab_size);
  return static_cast<TokenId>((mixed >> 33) % vocab);
}

bool BenchRunner::AppendFixed(std::int64_t count) {
  std::vector<TokenId> ids;
  for (std::int64_t i = 0; i < count; ++i) ids.push_back(IdAt(session_->length() + i));
  return Append(ids, RowRole::kPrefill);
}

bool BenchRunner::Append(std::span<const TokenId> ids, RowRole role) {
  if (Interrupted().load()) return false;
  const Result<std::span<const float>> logits = session_->Append(ids, role);
  if (!logits.ok()) {
    status_ = logits.status();
    return false;
  }
  const std::int64_t start = clock_();
  best_id_ = ArgMax(*logits);
  sampling_ns_ += clock_() - start;
  if (best_id_ < 0) status_ = Status(StatusCode::kUnsupported, "bench: the logits hold NaN");
  return status_.ok();
}

bool BenchRunner::Rewind(std::int64_t depth) {
  fixed_ = std::min({fixed_, depth, session_->length()});
  status_ = session_->Truncate(fixed_);
  if (!status_.ok()) return false;
  Progress progress("filling the cache", "tokens");
  while (fixed_ < depth) {
    if (!AppendFixed(std::min(depth - fixed_, kFillStep))) return false;
    fixed_ = session_->length();
    progress.Update(fixed_, depth);
  }
  return true;
}

bool BenchRunner::Prefill(std::int64_t count) {
  // Each step computes logits that a prompt does not need, so steps are long; between them a long
  // prompt can be interrupted.
  Progress progress("reading the prompt", "tokens");
  for (std::int64_t done = 0; done < count;) {
    const std::int64_t step = std::min(count - done, kPromptStep);
    if (!AppendFixed(step)) return false;
    done += step;
    progress.Update(done, count);
  }
  ids_.push_back(best_id_);
  return true;
}

bool BenchRunner::Decode(std::int64_t count) {
  TokenId id = ids_.empty() ? IdAt(session_->length()) : ids_.back();
  for (std::int64_t i = 0; i < count; ++i) {
    if (!Append(std::span(&id, 1), RowRole::kDecode)) return false;
    id = best_id_;
    ids_.push_back(id);
  }
  return true;
}

bool BenchRunner::RunOnce(const BenchTest& test, std::int64_t most_gen) {
  ids_.clear();
  if (test.n_prompt > 0 && !Prefill(test.n_prompt)) return false;
  return test.n_gen == 0 || Decode(std::min(test.n_gen, most_gen));
}

bool BenchRunner::WarmUp(const BenchTest& test, std::int64_t times) {
  for (std::int64_t i = 0; i < times; ++i)
    if (!Rewind(test.n_depth) || !RunOnce(test, kWarmUpTokens)) return false;
  return true;
}

Result<std::optional<ProfileResult>> BenchRunner::Profile(const BenchTest& test,
                                                          const BenchRuns& runs) {
  ProfileResult result;
  result.test = test;
  std::vector<std::int64_t> samples_ns;
  if (WarmUp(test, runs.warmups)) {
    sampling_ns_ = 0;
    const auto prepare = [&] {
      if (!Rewind(test.n_depth)) return false;
      session_->SetProfile(&result.profile);
      return true;
    };
    const auto job = [&] {
      const bool done = RunOnce(test, test.n_gen);
      session_->SetProfile(nullptr);
      return done;
    };
    samples_ns = TimeRepetitions(runs.repetitions, clock_, prepare, job);
  }
  if (!status_.ok()) return status_;
  if (static_cast<std::int64_t>(samples_ns.size()) < runs.repetitions)
    return std::optional<ProfileResult>();
  for (const std::int64_t ns : samples_ns) result.seconds += static_cast<double>(ns) * 1e-9;
  result.products = session_->ProductPaths();
  result.sampling_seconds = static_cast<double>(sampling_ns_) * 1e-9;
  return std::optional<ProfileResult>(std::move(result));
}

Result<std::optional<BenchResult>> BenchRunner::Run(const BenchTest& test, const BenchRuns& runs) {
  BenchResult result;
  result.test = test;
  result.test_time = UtcNow();
  if (WarmUp(test, runs.warmups)) {
    Progress progress(TestName(test), "repetitions");
    std::vector<TokenId> ids;
    std::int64_t done = 0, taken = 0;
    const auto job = [&] {
      const std::int64_t start = clock_();
      const bool ran = RunOnce(test, test.n_gen);
      taken += clock_() - start;
      return ran;
    };
    const auto prepare = [&] {
      if (done == 1) ids = ids_;
      if (done > 1) CompareIds(test, ids);
      if (!status_.ok() || (done >= runs.repetitions && taken >= runs.least_ns)) return false;
      progress.Update(done++, runs.repetitions);
      return Rewind(test.n_depth);
    };
    result.samples_ns =
        TimeRepetitions(std::max(runs.repetitions, runs.most_repetitions), clock_, prepare, job);
    if (done > 1 && status_.ok() && !Interrupted().load()) CompareIds(test, ids);
    result.ids_checksum = ChecksumIds(ids.empty() ? ids_ : ids);
  }
  if (!status_.ok()) return status_;
  if (result.samples_ns.empty()) return std::optional<BenchResult>();
  Summarize(&result);
  result.kv_read_bytes_per_token =
      KvReadBytesPerToken(model_->config(), MeasureKvHeads(session_->cache()), test);
  result.peak_resident_bytes = PeakResidentBytes();
  return std::optional<BenchResult>(std::move(result));
}

void BenchRunner::CompareIds(const BenchTest& test, const std::vector<TokenId>& expected) {
  if (ids_ == expected) return;
  status_ = Status(StatusCode::kUnsupported, "bench: " + TestName(test) + " gave ids " +
                                                 ChecksumIds(ids_) + " where it gave " +
                                                 ChecksumIds(expected) + " before");
}

}  // namespace manyhead::cli
