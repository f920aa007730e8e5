#include "tools/manyhead/heads_report_data.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <span>

#include "tools/manyhead/interrupt.h"
#include "tools/manyhead/parse.h"
#include "tools/manyhead/progress.h"
#include "tools/manyhead/report.h"

namespace manyhead::cli {
namespace {

/// Largest number of bytes of all weights: a page of this size still opens at once.
constexpr std::int64_t kMaxWeights = std::int64_t{6} << 20;
constexpr std::int64_t kStep = 512;

Status Invalid(const std::string& what) {
  return Status(StatusCode::kInvalidArgument, "heads report: " + what);
}

/// Returns the metrics of a profile, in the order of their values.
const std::vector<HeadsReport::Metric>& ProfileMetrics() {
  static const std::vector<HeadsReport::Metric> metrics = {
      {"entropy", "Entropy", "nats",
       "Of a row of weights, on average: 0 where one token gets all."},
      {"effective_tokens", "Effective tokens", "",
       "e to the entropy: how many tokens that shared a row evenly would make it.", 1},
      {"sink_mass", "Sink mass", "", "Weight of the first tokens of the text, on average.", 3},
      {"recent_mass", "Recent mass", "", "Weight of the last tokens before the query.", 3},
      {"mean_distance", "Mean distance", "tokens", "From the query to what it looks at.", 1},
      {"median_distance", "Median distance", "tokens", "Within which half of a row's weight lies.",
       1},
      {"max_weight", "Largest weight", "", "Of a row, on average.", 3},
      {"output_norm", "Output norm", "", "Of what the head adds to the residual stream.", 3},
      {"time", "Time", "\u00b5s per token",
       "Attention's work, over all threads; heads of one KV head get even parts."},
      {"kv_bytes", "KV read", "bytes per token",
       "Keys and values that had to be read; heads of one KV head get even parts.", 0}};
  return metrics;
}

std::vector<std::optional<double>> ValuesOf(const HeadStats& head, std::int64_t tokens) {
  const double per_token = 1 / static_cast<double>(std::max<std::int64_t>(1, tokens));
  const double time = head.seconds * 1e6 * per_token, bytes = head.kv_bytes * per_token;
  if (head.rows == 0) return {{}, {}, {}, {}, {}, {}, {}, {}, time, bytes};
  return {head.entropy,
          head.effective_tokens(),
          head.sink_mass,
          head.recent_mass,
          head.mean_distance,
          head.median_distance,
          head.max_weight,
          head.output_norm,
          time,
          bytes};
}

/// Collects the rows of the first tokens.
class WeightCollector {
 public:
  explicit WeightCollector(HeadsReport* report) : report_(report) {
    std::int64_t heads = 0;
    for (const LayerConfig& layer : report->layers) {
      first_.push_back(heads);
      heads += layer.num_heads;
    }
    report->weights.resize(static_cast<std::size_t>(heads * report->triangle()));
  }

  void operator()(const CapturedRow& row) const {
    const std::int64_t head = first_[static_cast<std::size_t>(row.head.layer)] + row.head.head;
    const std::int64_t begin = head * report_->triangle() + row.position * (row.position + 1) / 2;
    std::ranges::transform(row.weights, report_->weights.begin() + begin, [](float w) {
      return static_cast<std::uint8_t>(std::lround(255 * std::sqrt(std::clamp(w, 0.0F, 1.0F))));
    });
  }

 private:
  HeadsReport* report_;
  std::vector<std::int64_t> first_;
};

std::int64_t TokensShown(const HeadsReport& report, std::int64_t text, std::int64_t wanted) {
  std::int64_t heads = 0, T = std::min(text, wanted);
  for (const LayerConfig& layer : report.layers) heads += layer.num_heads;
  while (T > 1 && heads * (T * (T + 1) / 2) > kMaxWeights) --T;
  return T;
}

/// Calls fn for each object in a list of heads, or in the member "heads" of an object, with its
/// head's index.
template <class Fn>
Status ForEachHead(const HeadsReport& report, const std::string& text, const char* what,
                   const Fn& fn) {
  const Json root = ParseJson(text).value_or(Json());
  const Json& json = root.is_object() && root.contains("heads") ? root["heads"] : root;
  if (!json.is_array()) return Invalid(std::string(what) + " is no JSON list of heads");
  for (std::size_t i = 0; i < json.size(); ++i) {
    const std::string place = std::string(what).append("[").append(std::to_string(i)).append("]");
    const Json& entry = json[i];
    const auto whole = [&](const char* key) {
      return entry.is_object() && entry.contains(key) && entry[key].is_number_integer()
                 ? entry[key].get<std::int64_t>()
                 : -1;
    };
    const std::optional<std::size_t> index = report.IndexOf({whole("layer"), whole("head")});
    if (!index) return Invalid(place + " names no head of this model by layer and head");
    if (Status status = fn(entry, *index, place); !status.ok()) return status;
  }
  return {};
}

Status AddClasses(const std::string& text, HeadsReport* report) {
  if (text.empty()) return {};
  constexpr std::size_t kUnknown = SIZE_MAX;
  std::vector<std::size_t> of(report->heads.size(), kUnknown);
  const auto name_index = [&](const std::string& name) {
    auto& names = report->class_names;
    const auto found = std::ranges::find(names, name);
    if (found == names.end()) return names.push_back(name), names.size() - 1;
    return static_cast<std::size_t>(found - names.begin());
  };
  Status status = ForEachHead(*report, text, "classes",
                              [&](const Json& entry, std::size_t index, const std::string& place) {
                                if (!entry.contains("class") || !entry["class"].is_string())
                                  return Invalid(place + " has no text \"class\"");
                                of[index] =
                                    name_index(VisibleToken(entry["class"].get<std::string>()));
                                return Status();
                              });
  if (!status.ok()) return status;
  for (std::size_t& index : of)
    if (index == kUnknown) index = name_index("unknown");
  report->class_of = std::move(of);
  return {};
}

/// Reads the rise of the loss for each head; it is absent where it was not measured.
Status ReadEffects(const std::string& text, const HeadsReport& report,
                   std::vector<std::optional<double>>* rises) {
  if (text.empty()) return {};
  rises->resize(report.heads.size());
  return ForEachHead(
      report, text, "effects", [&](const Json& entry, std::size_t index, const std::string& place) {
        for (const char* key : {"loss_before", "loss_after"})
          if (!entry.contains(key) || !entry[key].is_number())
            return Invalid(place + " has no number \"" + key + "\"");
        (*rises)[index] = entry["loss_after"].get<double>() - entry["loss_before"].get<double>();
        return Status();
      });
}

void AddEffects(const std::vector<std::optional<double>>& rises, HeadsReport* report) {
  if (rises.empty()) return;
  report->metrics.push_back({"loss_rise", "Loss rise", "nats",
                             "Of the mean loss per token when this head alone is switched off.", 4,
                             true});
  for (std::size_t i = 0; i < rises.size(); ++i) report->heads[i].push_back(rises[i]);
}

Status AddMemory(const Session& session, HeadsReport* report) {
  const KvCache& cache = session.cache();
  const auto usage = cache.head_usage(cache.sequences().front());
  if (!usage.ok()) return usage.status();
  report->memory_tokens = session.length();
  for (std::size_t l = 0; l < usage->size(); ++l) {
    const std::int64_t group = report->layers[l].num_heads / report->layers[l].num_kv_heads;
    for (std::size_t k = 0; k < (*usage)[l].size(); ++k) {
      const KvHeadParams& head = cache.params().heads[l][k];
      const KvHeadUsage& held = (*usage)[l][k];
      const std::string type = FormatKvTypes({head.k_type, head.v_type});
      const std::string policy = FormatKvPolicy(head.policy);
      const auto layer = static_cast<std::int64_t>(l);
      auto& rows = report->memory;
      if (rows.empty() || rows.back().layer != layer || rows.back().type != type ||
          rows.back().policy != policy)
        rows.push_back({layer, 0, 0, type, policy,
                        cache.bytes_per_token(layer, static_cast<std::int64_t>(k)), 0});
      rows.back().kv_heads += 1;
      rows.back().heads += group;
      rows.back().held_bytes += held.pages * held.page_bytes;
    }
  }
  return {};
}

void AddSummary(const Model& model, const Session& session, const HeadProfile& profile,
                HeadsReport* report) {
  const ModelConfig& config = model.config();
  std::int64_t heads = 0, kv_heads = 0;
  for (const LayerConfig& layer : config.layers)
    heads += layer.num_heads, kv_heads += layer.num_kv_heads;
  const std::string name = VisibleToken(config.name);
  report->title = "Heads of " + (name.empty() ? ModelType(model) : name);
  report->summary = {
      {"Model", ModelType(model)},
      {"Weights", FormatBytes(static_cast<double>(model.weight_bytes()))},
      {"Layers", std::to_string(config.layers.size())},
      {"Query heads", std::to_string(heads)},
      {"KV heads", std::to_string(kv_heads)},
      {"Head dim", std::to_string(config.layers.front().head_dim)},
      {"d_model", std::to_string(config.d_model)},
      {"KV cache",
       FormatBytes(static_cast<double>(session.cache().bytes_per_token())) + " per token"},
      {"Text", std::to_string(profile.tokens) + " tokens"},
      {"Sampled", "every " + std::to_string(profile.options.every) +
                      (profile.options.every == 1 ? " token" : " tokens")},
      {"Sink", "first " + std::to_string(profile.options.sink_tokens)},
      {"Recent", "last " + std::to_string(profile.options.recent)},
      {"ISA", IsaName(session.isa())},
      {"Threads", std::to_string(session.threads())}};
}

Status Evaluate(Session& session, std::span<const TokenId> ids) {
  Progress progress("looking at heads", "tokens");
  const auto total = std::ssize(ids);
  while (!ids.empty()) {
    if (Interrupted().load())
      return Status(StatusCode::kIoError, "heads report: interrupted before the text's end");
    const auto step = ids.first(std::min(ids.size(), static_cast<std::size_t>(kStep)));
    if (const auto logits = session.Append(step, RowRole::kPrefill); !logits.ok())
      return logits.status();
    ids = ids.subspan(step.size());
    progress.Update(session.length(), total);
  }
  return {};
}

/// The first character of `bytes`, and its length; length 0 for bytes that are not UTF-8.
struct Character {
  char32_t code = 0;
  std::size_t length = 0;
};

Character FirstOf(std::string_view bytes) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(bytes[i]); };
  const unsigned lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  const std::size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || bytes.size() < length) return {};
  char32_t code = lead & (0x7FU >> length);
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0U) != 0x80) return {};
    code = code << 6 | (byte(i) & 0x3FU);
  }
  constexpr char32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  if (code < kLeast[length] || code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) return {};
  return {code, length};
}

/// Returns true for characters that show nothing, break lines or change the direction of text.
bool IsUnsafe(char32_t c) {
  return c < 0x20 || (c >= 0x7F && c < 0xA0) || c == 0xAD || c == 0x61C || c == 0x180E ||
         (c >= 0x200B && c <= 0x200F) || (c >= 0x2028 && c <= 0x202E) ||
         (c >= 0x2060 && c <= 0x206F) || c == 0xFEFF || (c >= 0xFFF9 && c <= 0xFFFB) ||
         (c >= 0xE0000 && c <= 0xE0FFF);
}

}  // namespace

std::optional<std::size_t> HeadsReport::IndexOf(HeadId id) const noexcept {
  if (id.layer < 0 || id.layer >= std::ssize(layers) || id.head < 0 ||
      id.head >= layers[static_cast<std::size_t>(id.layer)].num_heads)
    return std::nullopt;
  std::int64_t index = id.head;
  for (std::int64_t l = 0; l < id.layer; ++l)
    index += layers[static_cast<std::size_t>(l)].num_heads;
  return static_cast<std::size_t>(index);
}

double HeadsReport::Weight(std::size_t head, std::int64_t query, std::int64_t key) const noexcept {
  const std::int64_t place =
      static_cast<std::int64_t>(head) * triangle() + query * (query + 1) / 2 + key;
  const double root = weights[static_cast<std::size_t>(place)] / 255.0;
  return root * root;
}

std::string VisibleToken(std::string_view bytes) {
  std::string out;
  while (!bytes.empty()) {
    const Character first = FirstOf(bytes);
    std::array<char, 16> code{};
    if (first.length == 0) {
      std::snprintf(code.data(), code.size(), "\\x%02x", static_cast<unsigned char>(bytes[0]));
    } else if (first.code == '\n') {
      std::snprintf(code.data(), code.size(), "\\n");
    } else if (first.code == '\t') {
      std::snprintf(code.data(), code.size(), "\\t");
    } else if (IsUnsafe(first.code)) {
      std::snprintf(code.data(), code.size(), first.code < 0x100 ? "\\x%02x" : "\\u{%x}",
                    static_cast<unsigned>(first.code));
    } else {
      out += bytes.substr(0, first.length);
    }
    out += code.data();
    bytes.remove_prefix(std::max<std::size_t>(1, first.length));
  }
  return out;
}

Result<HeadsReport> CollectHeadsReport(const Model& model, const SessionOptions& session_options,
                                       std::vector<TokenId> ids,
                                       const HeadsReportOptions& options) {
  HeadsReport report;
  report.layers = model.config().layers;
  report.metrics = ProfileMetrics();
  for (const LayerConfig& layer : report.layers)
    report.heads.resize(report.heads.size() + static_cast<std::size_t>(layer.num_heads));
  std::vector<std::optional<double>> rises;
  Status status = AddClasses(options.classes, &report);
  if (status.ok()) status = ReadEffects(options.effects, report, &rises);
  if (!status.ok()) return status;

  HeadProfile profile;  // must outlive the session, which writes to it
  Result<Session> session = Session::Create(model, session_options);
  if (!session.ok()) return session.status();
  if (std::ssize(ids) > session->context())
    ids.resize(static_cast<std::size_t>(session->context()));
  if (std::ssize(ids) < options.profile.every)
    return Invalid("the text has " + std::to_string(ids.size()) +
                   " tokens; expected at least every = " + std::to_string(options.profile.every));
  const std::int64_t shown = TokensShown(report, std::ssize(ids), options.tokens);
  for (const TokenId id : std::span(ids).first(static_cast<std::size_t>(shown)))
    report.tokens.push_back(VisibleToken(model.tokenizer().Piece(id, true)));
  CaptureOptions capture;
  capture.last = shown - 1;
  capture.on_row = WeightCollector(&report);
  status = session->SetCapture(&capture);
  if (status.ok()) status = session->SetHeadProfile(&profile, options.profile);
  if (status.ok()) status = Evaluate(*session, ids);
  if (!status.ok()) return status;

  std::size_t index = 0;
  for (const std::vector<HeadStats>& layer : profile.heads)
    for (const HeadStats& head : layer) report.heads[index++] = ValuesOf(head, profile.tokens);
  AddEffects(rises, &report);
  if (status = AddMemory(*session, &report); !status.ok()) return status;
  AddSummary(model, *session, profile, &report);
  return report;
}

}  // namespace manyhead::cli
