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

/// Prints "manyhead: message" as one line on stderr and gives kExitFailure.
int Fail(const Status& status);
/// Prints "manyhead: warning: message" as one line on stderr.
void Warn(std::string_view message);

/// `text` with everything that would break a line or a terminal as an escape sequence (\n, \x1b).
std::string EscapeLine(std::string_view text);

/// Standard output that notices when its reader is gone. After the first error nothing more is
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

/// "1.5 GiB", "640 B".
std::string FormatBytes(double bytes);
/// "268M", "1.54B": a count with three digits.
std::string FormatCount(double count);
/// `value` with `digits` decimals.
std::string FormatFixed(double value, int digits);

/// A measured value, or "n/a" and null where there was nothing to measure, which is told by 0.
std::string FormatOrAbsent(double value, int digits, const std::string& unit);
Json OrNull(double value);

/// Columns as wide as their longest cell; the first `left_columns` are aligned left, others right.
std::string FormatTable(const std::vector<std::vector<std::string>>& rows,
                        std::size_t left_columns);

}  // namespace manyhead::cli
