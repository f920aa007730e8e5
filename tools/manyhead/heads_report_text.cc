#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "tools/manyhead/heads_report_page.h"

namespace manyhead::cli {
namespace {

constexpr std::string_view kShades = " .:-=+*#%@";
constexpr std::int64_t kMostColumns = 120;  // largest number of columns of a matrix
constexpr std::size_t kLabel = 14;

Status Invalid(const std::string& what) {
  return Status(StatusCode::kInvalidArgument, "heads report: " + what);
}

char Shade(double share) {
  const double last = static_cast<double>(kShades.size() - 1);
  return kShades[static_cast<std::size_t>(std::lround(std::clamp(share, 0.0, 1.0) * last))];
}

/// Returns ASCII of at most `width` columns, aligned left; other characters become question marks.
std::string Label(std::string_view text, std::size_t width) {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte & 0xC0U) == 0x80) continue;  // a continuation byte of a character
    out += byte < 0x80 ? c : '?';
  }
  if (out.size() > width) out = out.substr(0, width - 1) + "~";
  return out.append(width - out.size(), ' ');
}

std::string Summary(const HeadsReport& report) {
  std::string out = Label(report.title, kMostColumns);
  out.erase(out.find_last_not_of(' ') + 1);
  out += "\n\n";
  for (const auto& [name, value] : report.summary) {
    out += Label(name, kLabel);
    out += value;
    out += "\n";
  }
  return out;
}

/// Draws one row of shades per layer, each head two columns wide.
std::string Grid(const HeadsReport& report, std::size_t metric) {
  double least = std::numeric_limits<double>::infinity(), most = -least;
  for (const auto& values : report.heads)
    if (values[metric]) {
      least = std::min(least, *values[metric]);
      most = std::max(most, *values[metric]);
    }
  const HeadsReport::Metric& shown = report.metrics[metric];
  std::string out = shown.name + ", by layer and head: '" + kShades.front() + "' is " +
                    FormatFixed(least, shown.digits) + ", '" + kShades.back() + "' is " +
                    FormatFixed(most, shown.digits) + " " + shown.unit + "\n\n";
  std::size_t index = 0;
  for (std::size_t l = 0; l < report.layers.size(); ++l) {
    const std::string number = std::to_string(l);
    out += std::string(number.size() < 5 ? 5 - number.size() : 0, ' ') + number + "  ";
    for (std::int64_t h = 0; h < report.layers[l].num_heads; ++h, ++index) {
      const std::optional<double>& value = report.heads[index][metric];
      const double range = most > least ? most - least : 1;
      out += std::string(2, value ? Shade((*value - least) / range) : '?');
    }
    out += "\n";
  }
  return out;
}

std::string ClassGrid(const HeadsReport& report) {
  constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyz";
  std::string out = "Classes, by layer and head:";
  for (std::size_t i = 0; i < report.class_names.size(); ++i)
    out += std::string(i == 0 ? " " : ", ") + kLetters[i % kLetters.size()] + " " +
           Label(report.class_names[i], report.class_names[i].size());
  out += "\n\n";
  std::size_t index = 0;
  for (std::size_t l = 0; l < report.layers.size(); ++l) {
    const std::string number = std::to_string(l);
    out += std::string(number.size() < 5 ? 5 - number.size() : 0, ' ') + number + "  ";
    for (std::int64_t h = 0; h < report.layers[l].num_heads; ++h, ++index)
      out += std::string(1, kLetters[report.class_of[index] % kLetters.size()]) + " ";
    out += "\n";
  }
  return out;
}

std::string Matrix(const HeadsReport& report, std::size_t head, HeadId id) {
  const std::int64_t T = std::min<std::int64_t>(std::ssize(report.tokens), kMostColumns);
  std::string out = "Layer " + std::to_string(id.layer) + ", head " + std::to_string(id.head) +
                    ": each row is a token that looks, each column a token it looks at; then what "
                    "it looks at most\n\n";
  for (std::int64_t query = 0; query < T; ++query) {
    std::int64_t best = 0;
    std::string row;
    for (std::int64_t key = 0; key <= query; ++key) {
      row += Shade(std::sqrt(report.Weight(head, query, key)));
      if (report.Weight(head, query, key) > report.Weight(head, query, best)) best = key;
    }
    row.append(static_cast<std::size_t>(T - query - 1), ' ');
    const auto token = [&](std::int64_t i) {
      return Label(report.tokens[static_cast<std::size_t>(i)], kLabel - 2);
    };
    out += token(query) + " |" + row + "| " + token(best) + " " +
           FormatFixed(report.Weight(head, query, best), 2) + "\n";
  }
  return out;
}

}  // namespace

Result<std::string> HeadsReportText(const HeadsReport& report, const std::string& metric,
                                    HeadId head) {
  const auto found = std::ranges::find(report.metrics, metric, &HeadsReport::Metric::key);
  const bool by_class = metric == "class" && !report.class_names.empty();
  if (!by_class && found == report.metrics.end()) {
    std::string known = report.class_names.empty() ? "" : "class, ";
    for (const HeadsReport::Metric& one : report.metrics) known += one.key + ", ";
    known.resize(known.size() - 2);
    return Invalid("metric = " + metric + "; expected one of " + known);
  }
  const std::optional<std::size_t> index = report.IndexOf(head);
  if (!index) {
    const std::int64_t layers = std::ssize(report.layers);
    const bool bad_layer = head.layer < 0 || head.layer >= layers;
    return bad_layer
               ? Invalid("layer = " + std::to_string(head.layer) + "; expected 0 to " +
                         std::to_string(layers - 1))
               : Invalid("head = " + std::to_string(head.head) + "; expected 0 to " +
                         std::to_string(
                             report.layers[static_cast<std::size_t>(head.layer)].num_heads - 1));
  }
  const std::string grid =
      by_class ? ClassGrid(report)
               : Grid(report, static_cast<std::size_t>(found - report.metrics.begin()));
  return Summary(report) + "\n" + grid + "\n" + Matrix(report, *index, head);
}

}  // namespace manyhead::cli
