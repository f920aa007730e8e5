#include "tools/manyhead/heads_report_page.h"

#include <span>
#include <string_view>

#include "tools/manyhead/heads_report_assets.h"

namespace manyhead::cli {
namespace {

std::string EscapeHtml(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '&':
        out += "&amp;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

/// Returns JSON without the characters by which a script element or a comment could end.
std::string ScriptJson(const Json& json) {
  std::string out;
  for (const char c : json.dump()) {
    if (c == '<') {
      out += "\\u003c";
    } else if (c == '>') {
      out += "\\u003e";
    } else if (c == '&') {
      out += "\\u0026";
    } else {
      out += c;
    }
  }
  return out;
}

void AppendBase64(std::span<const std::uint8_t> bytes, std::string* out) {
  constexpr std::string_view kLetters =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    const std::size_t count = std::min<std::size_t>(3, bytes.size() - i);
    unsigned group = 0;
    for (std::size_t j = 0; j < 3; ++j) group = group << 8 | (j < count ? bytes[i + j] : 0U);
    for (std::size_t j = 0; j < 4; ++j)
      *out += j <= count ? kLetters[group >> (18 - 6 * j) & 63U] : '=';
  }
}

/// Encodes each head's triangle separately, so that the page decodes only those that are shown.
std::string EncodeWeights(const HeadsReport& report) {
  std::string out;
  const auto size = static_cast<std::size_t>(report.triangle());
  for (std::size_t begin = 0; begin < report.weights.size(); begin += size)
    AppendBase64(std::span(report.weights).subspan(begin, size), &out);
  return out;
}

Json MemoryJson(const HeadsReport& report) {
  Json rows = Json::array();
  for (const HeadsReport::Memory& memory : report.memory) {
    Json row;
    row["layer"] = memory.layer;
    row["kv_heads"] = memory.kv_heads;
    row["heads"] = memory.heads;
    row["type"] = memory.type;
    row["policy"] = memory.policy;
    row["per_token"] = FormatBytes(static_cast<double>(memory.token_bytes));
    row["bytes"] = memory.held_bytes;
    row["text"] = FormatBytes(static_cast<double>(memory.held_bytes));
    rows.push_back(std::move(row));
  }
  return rows;
}

/// Returns the head to show first: the one with the least weight on the first tokens and on the
/// last.
std::size_t FirstShown(const HeadsReport& report) {
  std::size_t best = 0;
  double least = 3;
  for (std::size_t i = 0; i < report.heads.size(); ++i) {
    double near = 0;
    bool known = true;
    for (std::size_t m = 0; m < report.metrics.size(); ++m) {
      const std::string& key = report.metrics[m].key;
      if (key != "sink_mass" && key != "recent_mass") continue;
      known = known && report.heads[i][m].has_value();
      near += report.heads[i][m].value_or(0);
    }
    if (known && near < least) least = near, best = i;
  }
  return best;
}

Json DataJson(const HeadsReport& report) {
  Json json;
  json["title"] = report.title;
  json["summary"] = report.summary;
  json["tokens"] = report.tokens;
  json["layers"] = Json::array();
  for (const LayerConfig& layer : report.layers)
    json["layers"].push_back({{"heads", layer.num_heads}, {"kv_heads", layer.num_kv_heads}});
  json["metrics"] = Json::array();
  for (const HeadsReport::Metric& metric : report.metrics)
    json["metrics"].push_back({{"key", metric.key},
                               {"name", metric.name},
                               {"unit", metric.unit},
                               {"help", metric.help},
                               {"digits", metric.digits},
                               {"signed", metric.is_signed}});
  json["heads"] = Json::array();
  for (const auto& values : report.heads) {
    Json row = Json::array();
    for (const std::optional<double>& value : values)
      row.push_back(value.has_value() ? Json(*value) : Json());
    json["heads"].push_back(std::move(row));
  }
  json["classes"] = report.class_names.empty()
                        ? Json()
                        : Json{{"names", report.class_names}, {"of", report.class_of}};
  json["memory"] = MemoryJson(report);
  json["memory_caption"] = "Keys and values of " + std::to_string(report.memory_tokens) +
                           " tokens, in whole pages, by layer and kind of head";
  json["attention_help"] =
      "Of the first " + std::to_string(report.tokens.size()) +
      " tokens of the text: each row is a token that looks, each column a token it looks at; "
      "colours show the root of the weight.";
  json["first_shown"] = FirstShown(report);
  return json;
}

}  // namespace

std::string HeadsReportPage(const HeadsReport& report) {
  const std::pair<std::string_view, std::string> parts[] = {
      {"%TITLE%", EscapeHtml(report.title)},
      {"%STYLE%", kReportStyle},
      {"%DATA%", ScriptJson(DataJson(report))},
      {"%WEIGHTS%", EncodeWeights(report)},
      {"%SCRIPT%", kReportScript}};
  std::string_view page = kReportPage;
  std::string out;
  // In the order of the page; inserted parts are not searched.
  for (const auto& [name, text] : parts) {
    const std::size_t place = page.find(name);
    out.append(page.substr(0, place)).append(text);
    page.remove_prefix(place + name.size());
  }
  return out.append(page);
}

}  // namespace manyhead::cli
