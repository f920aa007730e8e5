#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "manyhead/types.h"

namespace manyhead::cli {

/// Returns nanoseconds since some fixed point.
using NanosecondClock = std::function<std::int64_t()>;

/// Returns the time of the monotonic clock of this machine.
std::int64_t SteadyNanoseconds();

/// The rates of a step over `requests` requests of `tokens_each` tokens, in 1/s; 0 for no time.
struct Throughput {
  double tokens_per_second = 0;
  double requests_per_second = 0;
};
Throughput ComputeThroughput(std::int64_t requests, std::int64_t tokens_each,
                             std::int64_t nanoseconds);

/// Runs `job` once per repetition and returns the nanoseconds of each; `prepare` precedes each and
/// is not counted. Both return false to stop early; the time of a stopped job is dropped.
std::vector<std::int64_t> TimeRepetitions(std::int64_t repetitions, const NanosecondClock& clock,
                                          const std::function<bool()>& prepare,
                                          const std::function<bool()>& job);

/// Mean and sample standard deviation (n - 1); there is no deviation for fewer than two samples.
struct MeanAndDeviation {
  double mean = 0;
  std::optional<double> deviation;
};
MeanAndDeviation ComputeMeanAndDeviation(std::span<const double> samples);

/// The median, and an interval that holds the true one with the probability `coverage`, whatever
/// the samples' distribution: between two of the sorted samples, as near to the median as 95 % of
/// coverage allow, or else between the first and the last (Hahn, Meeker: Statistical Intervals,
/// 5.2). No interval where there is one sample.
struct MedianInterval {
  double median = 0;
  std::optional<double> low, high;
  double coverage = 0;
};
MedianInterval ComputeMedian(std::span<const double> samples);

/// Returns FNV-1a (64 bits) of the ids as little-endian 32-bit numbers, in 16 hexadecimal digits.
std::string ChecksumIds(std::span<const TokenId> ids);

/// Returns the index of the largest logit, the lowest on ties; -1 if any is NaN.
TokenId ArgMax(std::span<const float> logits);

}  // namespace manyhead::cli
