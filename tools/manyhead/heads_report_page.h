#pragma once

#include <string>

#include "tools/manyhead/heads_report_data.h"

namespace manyhead::cli {

/// Returns the report as one HTML page, which loads nothing and needs no build step for its script.
std::string HeadsReportPage(const HeadsReport& report);

/// The report for a terminal: the grid of heads by one metric in shades, and one head's weights.
/// `metric` is a key of report.metrics, or "class" where heads are classified.
/// Errors   kInvalidArgument naming the metric or head and what there is.
Result<std::string> HeadsReportText(const HeadsReport& report, const std::string& metric,
                                    HeadId head);

}  // namespace manyhead::cli
