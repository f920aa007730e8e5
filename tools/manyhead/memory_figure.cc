#include "tools/manyhead/memory_figure.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <set>
#include <sstream>
#include <string_view>

#include "manyhead/output_file.h"

namespace manyhead::cli {
namespace {

constexpr int kPanelWidth = 440, kPanelHeight = 300, kColumns = 2;
constexpr int kLeft = 64, kRight = 16, kTop = 40, kBottom = 48;
constexpr int kLegendLine = 22, kLegendTop = 36;
constexpr std::size_t kStyles = 6;  // colours, dashes and marks before they repeat

// Colours are plain properties of classes, because many programs that draw SVG do not support
// variables. The media rules that override them come last.
constexpr const char* kStyle = R"css(
  .figure { color-scheme: light dark; font: 13px system-ui, sans-serif; }
  .paper { fill: #ffffff; }
  .mark { stroke-width: 1.5; fill: #ffffff; }
  text { fill: #1b1f24; }
  .title { font-weight: 600; }
  .grid { stroke: #d0d7de; stroke-width: 1; }
  .line { fill: none; stroke-width: 2; }
  .s0 { stroke: #0550ae; } .s1 { stroke: #bc4c00; } .s2 { stroke: #1a7f37; }
  .s3 { stroke: #8250df; } .s4 { stroke: #bf3989; } .s5 { stroke: #4d5560; }
  @media (prefers-color-scheme: dark) {
    .paper, .mark { fill: #0d1117; }
    text { fill: #e6edf3; }
    .grid { stroke: #3d444d; }
    .s0 { stroke: #79c0ff; } .s1 { stroke: #ffa657; } .s2 { stroke: #7ee787; }
    .s3 { stroke: #d2a8ff; } .s4 { stroke: #ff9bce; } .s5 { stroke: #b1bac4; } }
  @media print {
    .paper, .mark { fill: #fff; }
    text { fill: #000; }
    .grid { stroke: #bbb; }
    .s0, .s1, .s2 { stroke: #000; } .s3, .s4, .s5 { stroke: #555; } }
)css";

std::string Escape(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else if (c == '&') {
      out += "&amp;";
    } else if (c == '"') {
      out += "&quot;";
    } else {
      out += c;
    }
  }
  return out;
}

/// The rows of one curve, by their number of heads.
struct Series {
  std::string label;
  std::vector<const Json*> rows;
};

/// The contents of one part of the figure.
struct Panel {
  const char* title;
  const char* planned;   ///< key of the row, or null
  const char* measured;  ///< key of the measured value, or null
  bool bytes;
  double scale = 1;
};

constexpr Panel kPanels[] = {
    {"Resident memory, all", "total_bytes", "resident_bytes", true},
    {"KV cache", "kv_bytes", "kv_bytes", true},
    {"Decoding, tokens per second", nullptr, "decode_tokens_per_second", false},
    {"Prompt, tokens per second", nullptr, "prefill_tokens_per_second", false},
    {"Attention per head and decoded token, microseconds", nullptr, "seconds_per_head", false, 1e6},
    {"Decoding, percent of roofline", nullptr, "of_roofline", false, 100},
};

std::int64_t Whole(const Json& row, const char* key) { return row[key].get<std::int64_t>(); }

std::string KindOf(const Json& row) {
  const std::int64_t heads = Whole(row, "num_heads"), kv_heads = Whole(row, "num_kv_heads");
  if (heads == kv_heads) return "MHA";
  return kv_heads == 1 ? std::string("MQA") : "GQA, " + std::to_string(kv_heads) + " KV heads";
}

std::vector<Series> SeriesOf(const std::vector<Json>& rows) {
  // The other properties that distinguish rows.
  constexpr const char* kOthers[] = {"d_model", "layers", "d_ff",   "vocab_size",
                                     "context", "batch",  "kv_type"};
  std::vector<const char*> differing;
  for (const char* key : kOthers)
    if (std::any_of(rows.begin(), rows.end(),
                    [&](const Json& row) { return row[key] != rows.front()[key]; }))
      differing.push_back(key);
  std::vector<Series> series;
  for (const Json& row : rows) {
    std::string label = KindOf(row);
    for (const char* key : differing) {
      const Json& value = row[key];
      label.append(", ").append(key).append(" ").append(value.is_string() ? value.get<std::string>()
                                                                          : value.dump());
    }
    const auto same = [&](const Series& one) { return one.label == label; };
    auto found = std::find_if(series.begin(), series.end(), same);
    if (found == series.end()) found = series.insert(series.end(), {label, {}});
    found->rows.push_back(&row);
  }
  for (Series& one : series)
    std::stable_sort(one.rows.begin(), one.rows.end(), [](const Json* a, const Json* b) {
      return Whole(*a, "num_heads") < Whole(*b, "num_heads");
    });
  return series;
}

/// Returns the number of `row` that a panel shows; negative where there is none.
double ValueOf(const Json& row, const Panel& panel, bool measured) {
  const char* const key = measured ? panel.measured : panel.planned;
  if (key == nullptr || (measured && !row.contains("measured"))) return -1;
  const Json& value = measured ? row["measured"][key] : row[key];
  return value.is_number() ? value.get<double>() * panel.scale : -1;
}

/// Returns a step of 1, 2 or 5 times a power of ten (of two, for bytes) for ticks up to `most`,
/// at most six of them.
double TickStep(double most, bool bytes) {
  if (most <= 0) return 1;
  const double base = bytes ? std::exp2(std::floor(std::log2(most / 5)))
                            : std::pow(10, std::floor(std::log10(most / 5)));
  for (const double factor : {1.0, 2.0, 5.0, 10.0})
    if (most / (base * factor) <= 6) return base * factor;
  return base * 10;
}

/// Draws one panel.
class PanelWriter {
 public:
  PanelWriter(std::ostringstream& out, const Panel& panel, const std::vector<Series>& series)
      : out_(out), panel_(panel), series_(series) {
    for (const Series& one : series)
      for (const Json* row : one.rows) {
        heads_.insert(Whole(*row, "num_heads"));
        for (const bool measured : {false, true})
          most_ = std::max(most_, ValueOf(*row, panel, measured));
      }
  }

  bool empty() const { return most_ < 0; }

  void Write() {
    WriteAxes();
    for (std::size_t s = 0; s < series_.size(); ++s) {
      const bool planned = panel_.planned != nullptr;
      WriteLine(series_[s], s % kStyles, !planned);
      for (const Json* row : series_[s].rows)
        if (const double y = ValueOf(*row, panel_, true); y >= 0)
          WriteMark(out_, s % kStyles, X(Whole(*row, "num_heads")), Y(y));
    }
  }

  /// Draws a mark with a shape of its own for each style.
  static void WriteMark(std::ostringstream& out, std::size_t style, double x, double y) {
    static constexpr const char* kShapes[kStyles] = {"M-4,0a4,4 0 1,0 8,0a4,4 0 1,0 -8,0z",
                                                     "M-4,-4h8v8h-8z",
                                                     "M0,-5L5,4L-5,4z",
                                                     "M0,-5L5,0L0,5L-5,0z",
                                                     "M0,5L5,-4L-5,-4z",
                                                     "M-4,-4L4,4M4,-4L-4,4"};
    out << "<path class='mark s" << style << "' transform='translate(" << x << "," << y << ")' d='"
        << kShapes[style] << "'/>\n";
  }

  static std::string LineStyle(std::size_t style) {
    static constexpr const char* kDashes[kStyles] = {"none", "7 4", "2 3", "9 3 2 3", "4 2", "1 4"};
    return "class='line s" + std::to_string(style) + "' stroke-dasharray='" + kDashes[style] + "'";
  }

 private:
  /// Heads grow by factors, so their positions follow the logarithm.
  double X(std::int64_t heads) const {
    const double low = std::log2(static_cast<double>(*heads_.begin()));
    const double high = std::log2(static_cast<double>(*heads_.rbegin()));
    const double width = kPanelWidth - kLeft - kRight;
    if (high == low) return kLeft + width / 2;
    return kLeft +
           width * (0.04 + 0.92 * (std::log2(static_cast<double>(heads)) - low) / (high - low));
  }
  double Y(double value) const {
    const double height = kPanelHeight - kTop - kBottom;
    return kTop + height * (1 - value / (most_ > 0 ? most_ * 1.05 : 1));
  }

  void WriteAxes() {
    const int bottom = kPanelHeight - kBottom;
    out_ << "<text class='title' x='" << kLeft << "' y='20'>" << panel_.title << "</text>\n";
    const double step = TickStep(most_, panel_.bytes);
    for (double tick = 0; tick <= most_ * 1.05; tick += step) {
      out_ << "<line class='grid' x1='" << kLeft << "' x2='" << kPanelWidth - kRight << "' y1='"
           << Y(tick) << "' y2='" << Y(tick) << "'/><text text-anchor='end' x='" << kLeft - 6
           << "' y='" << Y(tick) + 4 << "'>"
           << (panel_.bytes ? FormatBytes(tick) : FormatFixed(tick, step < 1 ? 1 : 0))
           << "</text>\n";
    }
    for (const std::int64_t heads : heads_)
      out_ << "<text text-anchor='middle' x='" << X(heads) << "' y='" << bottom + 18 << "'>"
           << heads << "</text>\n";
    out_ << "<text text-anchor='middle' x='" << (kLeft + kPanelWidth - kRight) / 2 << "' y='"
         << bottom + 38 << "'>query heads</text>\n";
  }

  void WriteLine(const Series& series, std::size_t style, bool measured) {
    std::ostringstream path;
    for (const Json* row : series.rows)
      if (const double y = ValueOf(*row, panel_, measured); y >= 0)
        path << (path.tellp() == 0 ? "M" : "L") << X(Whole(*row, "num_heads")) << "," << Y(y);
    out_ << "<path " << LineStyle(style) << " d='" << path.str() << "'/>\n";
  }

  std::ostringstream& out_;
  const Panel& panel_;
  const std::vector<Series>& series_;
  std::set<std::int64_t> heads_;
  double most_ = -1;
};

void WriteLegend(std::ostringstream& out, const std::vector<Series>& series, bool measured) {
  int y = kLegendTop;
  for (std::size_t s = 0; s < series.size(); ++s, y += kLegendLine) {
    out << "<path " << PanelWriter::LineStyle(s % kStyles) << " d='M" << kLeft << "," << y
        << "h36'/>";
    if (measured) PanelWriter::WriteMark(out, s % kStyles, kLeft + 18, y);
    out << "<text x='" << kLeft + 44 << "' y='" << y + 4 << "'>" << Escape(series[s].label)
        << "</text>\n";
  }
  if (measured)
    out << "<text x='" << kLeft << "' y='" << y + 4
        << "'>Lines of memory are planned, marks measured.</text>\n";
}

void WriteTable(const std::vector<Json>& rows, std::ostringstream& out) {
  constexpr const char* kKeys[] = {"num_heads", "num_kv_heads", "head_dim", "context",
                                   "kv_type",   "parameters",   "kv_bytes", "total_bytes"};
  constexpr const char* kMeasured[] = {
      "resident_bytes",           "kv_bytes",         "prefill_tokens_per_second",
      "decode_tokens_per_second", "seconds_per_head", "of_roofline"};
  const bool measured = !rows.empty() && rows.front().contains("measured");
  const auto cell = [&out](const char* tag, const Json& value) {
    out << "<" << tag << ">" << Escape(value.is_string() ? value.get<std::string>() : value.dump())
        << "</" << tag << ">";
  };
  out << "<table><tr>";
  for (const char* key : kKeys) cell("th", key);
  for (const char* key : kMeasured)
    if (measured) cell("th", std::string("measured ") + key);
  out << "</tr>\n";
  for (const Json& row : rows) {
    out << "<tr>";
    for (const char* key : kKeys) cell("td", row[key]);
    for (const char* key : kMeasured)
      if (measured) cell("td", row["measured"][key]);
    out << "</tr>\n";
  }
  out << "</table>\n";
}

}  // namespace

std::string MemorySvg(const std::vector<Json>& rows) {
  const std::vector<Series> series = SeriesOf(rows);
  const bool measured = !rows.empty() && rows.front().contains("measured");
  std::ostringstream panels, legend, out;
  int count = 0;
  for (const Panel& panel : kPanels) {
    PanelWriter writer(panels, panel, series);
    if (writer.empty()) continue;
    panels << "<g transform='translate(" << count % kColumns * kPanelWidth << ","
           << count / kColumns * kPanelHeight << ")'>\n";
    writer.Write();
    panels << "</g>\n";
    ++count;
  }
  const int lines = (count + kColumns - 1) / kColumns;
  WriteLegend(legend, series, measured);
  const int width = kColumns * kPanelWidth;
  const int height =
      lines * kPanelHeight + kLegendTop + static_cast<int>(series.size() + 1) * kLegendLine;
  out << "<svg xmlns='http://www.w3.org/2000/svg' class='figure' role='img' viewBox='0 0 " << width
      << " " << height << "' width='" << width << "'>\n<title>Memory and speed against the number "
      << "of query heads</title>\n<style>" << kStyle << "</style>\n<rect class='paper' width='"
      << width << "' height='" << height << "'/>\n"
      << panels.str() << "<g transform='translate(0," << lines * kPanelHeight << ")'>\n"
      << legend.str() << "</g>\n</svg>\n";
  return out.str();
}

Status WriteMemoryFigure(const std::vector<Json>& rows, const std::string& path) {
  std::ostringstream page;
  if (path.ends_with(".svg")) {
    page << MemorySvg(rows);
  } else {
    page << "<!DOCTYPE html>\n<html lang='en'><head><meta charset='utf-8'>\n"
            "<meta name='viewport' content='width=device-width'>\n<title>manyhead memory</title>\n"
            "<style>:root { color-scheme: light dark; }\n"
            "body { font: 14px system-ui, sans-serif; margin: 2em; background: Canvas; "
            "color: CanvasText; }\nsvg { max-width: 100%; height: auto; }\n"
            "table { border-collapse: collapse; font-variant-numeric: tabular-nums; }\n"
            "th, td { padding: .2em .6em; text-align: right; border-bottom: 1px solid GrayText; }\n"
            "@media print { body { margin: 0; background: #fff; color: #000; } }</style></head>\n"
            "<body><h1>Memory and speed against head count</h1>\n"
         << MemorySvg(rows);
    WriteTable(rows, page);
    page << "</body></html>\n";
  }
  return WriteOutputFile(path, page.str());
}

}  // namespace manyhead::cli
