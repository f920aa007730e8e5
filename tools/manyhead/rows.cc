#include "tools/manyhead/rows.h"

#include <algorithm>
#include <utility>

namespace manyhead::cli {
namespace {

std::string Quote(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + "\"";
}

std::string CsvField(const Json& value) {
  if (value.is_null()) return {};
  if (value.is_string()) return Quote(value.get<std::string>());
  const std::string text = value.dump();
  if (value.is_array() || value.is_object()) return Quote(text);
  return text == "null" ? std::string() : text;  // a number that is not finite
}

/// `text` in a cell of Markdown, where a bar would end it.
std::string MarkdownCell(const std::string& text) {
  std::string out;
  for (const char c : text) out += c == '|' ? std::string("\\|") : std::string(1, c);
  return out;
}

std::string MarkdownLine(const std::vector<std::string>& cells) {
  std::string line = "|";
  for (const std::string& cell : cells) line += " " + MarkdownCell(cell) + " |";
  return line + "\n";
}

std::string Indented(const Json& value) {
  std::string text = "  ";
  for (const char c : value.dump(2)) text += c == '\n' ? std::string("\n  ") : std::string(1, c);
  return text;
}

}  // namespace

std::vector<std::string> RowFormats() { return {"table", "md", "csv", "json", "jsonl"}; }

RowWriter::RowWriter(std::string format, std::vector<RowColumn> columns, bool at_once)
    : format_(std::move(format)), columns_(std::move(columns)), at_once_(at_once) {}

void RowWriter::Add(const Json& fields, const std::vector<std::string>& cells) {
  if (is_text()) {
    AddText(cells);
  } else {
    AddLine(fields);
  }
  ++count_;
}

void RowWriter::AddLine(const Json& fields) {
  if (format_ == "json") {
    Stdout::Write((count_ == 0 ? "[\n" : ",\n") + Indented(fields));
  } else if (format_ == "jsonl") {
    Stdout::WriteJson(fields, -1);
  } else {
    if (count_ == 0) Stdout::Write(CsvNames(fields));
    Stdout::Write(CsvValues(fields));
  }
}

void RowWriter::AddText(const std::vector<std::string>& cells) {
  std::vector<std::string> names;
  for (const RowColumn& column : columns_) names.push_back(column.name);
  if (format_ == "md") {
    std::string rule = "|";
    for (const RowColumn& column : columns_) rule += column.left ? "---|" : "---:|";
    if (count_ == 0) Stdout::Write(MarkdownLine(names) + rule + "\n");
    return Stdout::Write(MarkdownLine(cells));
  }
  if (count_ == 0) cells_.push_back(names);
  cells_.push_back(cells);
  if (!at_once_) return;
  for (std::size_t i = 0; i < columns_.size(); ++i)
    for (const auto& row : cells_)
      columns_[i].least_width = std::max(columns_[i].least_width, row[i].size());
  std::string text;
  for (const auto& row : cells_) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string padding(columns_[i].least_width - row[i].size(), ' ');
      if (i > 0) line += "  ";
      line += columns_[i].left ? row[i] + padding : padding + row[i];
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  Stdout::Write(text);
  cells_.clear();
}

void RowWriter::Finish() {
  if (format_ == "json") Stdout::Write(count_ == 0 ? "[]\n" : "\n]\n");
  if (!cells_.empty()) {
    std::size_t left = 0;
    while (left < columns_.size() && columns_[left].left) ++left;
    Stdout::Write(FormatTable(cells_, left));
  }
  cells_.clear();
  count_ = 0;
}

std::string FormatMarkdown(const std::vector<std::vector<std::string>>& rows,
                           std::size_t left_columns) {
  std::string text;
  for (const auto& row : rows) {
    text += MarkdownLine(row);
    if (&row != &rows.front()) continue;
    text += "|";
    for (std::size_t i = 0; i < row.size(); ++i) text += i < left_columns ? "---|" : "---:|";
    text += "\n";
  }
  return text;
}

std::string CsvNames(const Json& fields) {
  std::string line;
  for (const auto& [name, value] : fields.items()) line += (line.empty() ? "" : ",") + name;
  return line + "\n";
}

std::string CsvValues(const Json& fields) {
  std::string line;
  bool first = true;
  for (const auto& [name, value] : fields.items()) {
    line += (first ? "" : ",") + CsvField(value);
    first = false;
  }
  return line + "\n";
}

}  // namespace manyhead::cli
