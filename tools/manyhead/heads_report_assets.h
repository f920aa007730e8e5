#pragma once

namespace manyhead::cli {

// The files of report/, as the build found them.
extern const char* const kReportPage;
extern const char* const kReportStyle;
extern const char* const kReportScript;

}  // namespace manyhead::cli
