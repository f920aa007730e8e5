#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "tools/manyhead/output.h"

namespace manyhead::cli {

/// The names that -o takes of a command whose results are rows.
std::vector<std::string> RowFormats();

/// A column of a table.
struct RowColumn {
  std::string name;
  bool left = false;            ///< whether its cells are aligned left
  std::size_t least_width = 0;  ///< in characters, where rows are printed before the last is known
};

/// Prints rows as a table for people, a table in Markdown, CSV, one JSON list, or JSON lines.
///
/// CSV has numbers as they are, text in quotes, nothing for null, and lists as JSON text in quotes.
class RowWriter {
 public:
  /// `format` is one of RowFormats(). With `at_once` each row is printed as it comes; a table then
  /// has the widths of its first row and of `least_width`. Otherwise all are printed by Finish.
  RowWriter(std::string format, std::vector<RowColumn> columns, bool at_once);

  /// `fields` is for programs, `cells` has a text for each column.
  void Add(const Json& fields, const std::vector<std::string>& cells);
  /// Ends the output; later rows begin another table or list.
  void Finish();

  /// Whether the output is for people, who can do with a remark below it.
  bool is_text() const { return format_ == "table" || format_ == "md"; }

 private:
  void AddText(const std::vector<std::string>& cells);
  void AddLine(const Json& fields);

  std::string format_;
  std::vector<RowColumn> columns_;
  bool at_once_;
  std::size_t count_ = 0;
  std::vector<std::vector<std::string>> cells_;  ///< those not printed yet, the names first
};

/// The same table as FormatTable's in Markdown.
std::string FormatMarkdown(const std::vector<std::vector<std::string>>& rows,
                           std::size_t left_columns);
/// One line of CSV: the names of `fields`, or their values.
std::string CsvNames(const Json& fields);
std::string CsvValues(const Json& fields);

}  // namespace manyhead::cli
