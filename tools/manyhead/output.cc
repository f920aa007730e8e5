#include "tools/manyhead/output.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "tools/manyhead/descriptor_io.h"

namespace manyhead::cli {
namespace {

int stdout_error = 0;  // errno of the first write that failed

}  // namespace

int Fail(const Status& status) {
  std::fprintf(stderr, "manyhead: %s\n", EscapeLine(status.message()).c_str());
  return kExitFailure;
}

void Warn(std::string_view message) {
  std::fprintf(stderr, "manyhead: warning: %s\n", EscapeLine(message).c_str());
}

std::string EscapeLine(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (byte < 0x20 || byte == 0x7F) {
      std::array<char, 8> code{};
      std::snprintf(code.data(), code.size(), "\\x%02x", byte);
      out += code.data();
    } else {
      out += c;
    }
  }
  return out;
}

void Stdout::Write(std::string_view text) {
  if (stdout_error == 0) stdout_error = WriteAll(STDOUT_FILENO, text);
}

void Stdout::WriteJson(const Json& value, int indent) { Write(value.dump(indent) + "\n"); }

bool Stdout::ok() noexcept { return stdout_error == 0; }

int Stdout::Finish() {
  if (stdout_error == 0 || stdout_error == EPIPE) return kExitOk;
  return Fail(Status(StatusCode::kIoError, std::string("cannot write to standard output: ") +
                                               std::strerror(stdout_error)));
}

std::string FormatFixed(double value, int digits) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%.*f", digits, value);
  return text.data();
}

std::string FormatOrAbsent(double value, int digits, const std::string& unit) {
  return value == 0 ? "n/a" : FormatFixed(value, digits) + unit;
}

Json OrNull(double value) { return value == 0 ? Json() : Json(value); }

std::string FormatBytes(double bytes) {
  constexpr std::array<const char*, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  std::size_t unit = 0;
  for (; bytes >= 1024 && unit + 1 < kUnits.size(); ++unit) bytes /= 1024;
  const int digits = unit == 0 || bytes >= 100 ? 0 : bytes >= 10 ? 1 : 2;
  return FormatFixed(bytes, digits) + " " + kUnits[unit];
}

std::string FormatCount(double count) {
  constexpr std::array<const char*, 5> kUnits = {"", "K", "M", "B", "T"};
  std::size_t unit = 0;
  for (; count >= 1000 && unit + 1 < kUnits.size(); ++unit) count /= 1000;
  const int digits = unit == 0 || count >= 100 ? 0 : count >= 10 ? 1 : 2;
  return FormatFixed(count, digits) + kUnits[unit];
}

std::string FormatTable(const std::vector<std::vector<std::string>>& rows,
                        std::size_t left_columns) {
  std::vector<std::size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string out;
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string padding(widths[i] - row[i].size(), ' ');
      if (i > 0) line += "  ";
      line += i < left_columns ? row[i] + padding : padding + row[i];
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  }
  return out;
}

}  // namespace manyhead::cli
