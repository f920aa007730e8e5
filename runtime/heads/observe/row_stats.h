#pragma once

#include <cstdint>

#include "manyhead/heads.h"
#include "runtime/attention/plan_impl.h"

namespace manyhead {

/// The values of one row that HeadStats averages; see there.
struct RowStats {
  bool sees_keys = false;
  double entropy = 0, sink_mass = 0, recent_mass = 0, mean_distance = 0, median_distance = 0,
         max_weight = 0, output_norm = 0;
};

/// Computes all values but entropy and output_norm from the weights of the query at `position`, by
/// key position; only the keys `seen` are read. No key lies after the query.
RowStats StatsOfRow(const float* weights, const SeenKeys& seen, std::int64_t position,
                    const HeadProfileOptions& options) noexcept;

}  // namespace manyhead
