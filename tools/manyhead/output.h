#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "manyhead/status.h"
#include "tools/manyhead/json.h"

namespace manyhead::cli {

inline constexpr int kExitOk = 0;
inline constexpr int kExitFailure = 1;
inline constexpr int kExitUsage = 2;

/// Prints "manyhead: message" as one line on stderr and returns kExitFailure.
int Fail(const Status& status);
/// Prints "manyhead: warning: message" as one line on stderr.
void Warn(std::string_view message);

/// Returns `text` with an escape sequence (\n, \x1b) for everything that would break a line or a
/// terminal.
std::string EscapeLine(std::string_view text);

/// Standard output that detects when its reader is gone. After the first error nothing more is
/// written, so that a command can end early instead of computing for nobody.
class Stdout {
 public:
  static void Write(std::string_view text);
  /// Writes one value and a line end.
  static void WriteJson(const Json& value, int indent = 2);
  static bool ok() noexcept;
  /// Flushes. A closed pipe (the reader had enough) is success; any other error is reported.
  static int Finish();
};

/// Returns e.g. "1.5 GiB" or "640 B".
std::string FormatBytes(double bytes);
/// Returns e.g. "268M" or "1.54B": a count with three digits.
std::string FormatCount(double count);
/// Returns `value` with `digits` decimals.
std::string FormatFixed(double value, int digits);

/// Return a measured value, or "n/a" and null where the value 0 says that nothing was measured.
std::string FormatOrAbsent(double value, int digits, const std::string& unit);
Json OrNull(double value);

/// Formats columns as wide as their longest cell; the first `left_columns` are aligned left, others
/// right.
std::string FormatTable(const std::vector<std::vector<std::string>>& rows,
                        std::size_t left_columns);

}  // namespace manyhead::cli
