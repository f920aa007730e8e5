#pragma once

namespace manyhead::cli {

// The contents of the files of report/ at build time.
extern const char* const kReportPage;
extern const char* const kReportStyle;
extern const char* const kReportScript;

}  // namespace manyhead::cli
