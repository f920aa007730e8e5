#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>

#include "manyhead/ablation.h"
#include "runtime/heads/ablate/ablation_impl.h"
#include "runtime/heads/ablate/number_range.h"
#include "runtime/platform/errors.h"
#include "runtime/platform/json.h"

/// Parses and formats ablations: the form of the command line, and JSON.

namespace manyhead {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kName = "ParseAblation";

/// Returns `text` quoted for a message, whatever bytes it holds.
std::string Quote(std::string_view text) { return ShowJson(Json(std::string(text))); }

enum class Action : std::uint8_t { kScale, kMean, kKeep };

/// The action that one item of the text states for some heads of some layers.
struct Item {
  std::string where;  ///< begins messages: the function and the item
  NumberRange layers;
  NumberRange heads;
  bool kv = false;  ///< `heads` are KV heads
  Action action = Action::kScale;
  float scale = 0;
};

/// Reads "zero", "mean", "keep" or a number; returns false for any other text.
bool ReadAction(std::string_view text, Item* item) {
  item->action = text == "mean" ? Action::kMean : text == "keep" ? Action::kKeep : Action::kScale;
  if (item->action != Action::kScale || text == "zero") return true;
  const char* const end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, item->scale);
  return read.ec == std::errc() && read.ptr == end && std::isfinite(item->scale);
}

class Builder {
 public:
  explicit Builder(const ModelConfig& config) : config_(config), kept_(config.layers.size()) {}

  Status Add(const Item& item) {
    const auto layers = static_cast<std::int64_t>(config_.layers.size());
    if (item.layers.first >= layers || item.layers.last >= layers)
      return InvalidArgument(item.where, "layer = ", std::max(item.layers.first, item.layers.last),
                             "; expected 0..", layers - 1);
    const std::int64_t last = item.layers.last < 0 ? layers - 1 : item.layers.last;
    for (std::int64_t layer = item.layers.first; layer <= last; ++layer)
      if (Status status = AddLayer(item, layer); !status.ok()) return status;
    return Status();
  }

  /// In layers with a head to keep, switches off all heads that no item names.
  Ablation Finish() {
    for (std::size_t l = 0; l < kept_.size(); ++l) {
      if (!kept_[l]) continue;
      for (std::int64_t head = 0; head < config_.layers[l].num_heads; ++head) {
        const HeadId id{static_cast<std::int64_t>(l), head};
        if (!named_.contains(id)) ablation_.edits.push_back({id});
      }
    }
    return std::move(ablation_);
  }

 private:
  Status AddLayer(const Item& item, std::int64_t layer) {
    const LayerConfig& shape = config_.layers[static_cast<std::size_t>(layer)];
    const std::int64_t count = item.kv ? shape.num_kv_heads : shape.num_heads;
    const std::int64_t group = item.kv ? shape.num_heads / shape.num_kv_heads : 1;
    const NumberRange& heads = item.heads;
    if (heads.first >= count || heads.last >= count)
      return InvalidArgument(item.where,
                             item.kv ? "KV head = " : "head = ", std::max(heads.first, heads.last),
                             " of layer ", layer, "; expected 0..", count - 1);
    const std::int64_t last = heads.last < 0 ? count - 1 : heads.last;
    for (std::int64_t head = heads.first * group; head < (last + 1) * group; ++head) {
      const HeadId id{layer, head};
      if (!named_.insert(id).second)
        return InvalidArgument(item.where, "head ", layer, ".", head,
                               " is named by two items; expected one");
      if (item.action == Action::kKeep)
        kept_[static_cast<std::size_t>(layer)] = true;
      else
        ablation_.edits.push_back(
            {id, item.action == Action::kMean ? HeadEditKind::kMean : HeadEditKind::kScale,
             item.scale});
    }
    return Status();
  }

  const ModelConfig& config_;
  std::vector<bool> kept_;  // [layer]
  std::set<HeadId> named_;
  Ablation ablation_;
};

Status ReadItem(const char* function, std::string_view text, Item* item) {
  item->where = Concat(function, ": item ", Quote(text));
  const auto bad = [&](const char* expected) {
    return MakeError(StatusCode::kInvalidArgument, item->where, "; expected ", expected);
  };
  const std::size_t equals = text.find('=');
  const std::string_view heads = text.substr(0, equals);
  const std::size_t dot = heads.find('.');
  if (dot == heads.npos) return bad("LAYER.HEAD or LAYER.HEAD=EDIT, such as 3.1, 4.*=0.5 or 5.k1");
  const std::optional<NumberRange> layers = ReadNumberRange(heads.substr(0, dot));
  if (!layers) return bad("a layer, a range such as 2-5, or * before the dot");
  std::string_view head = heads.substr(dot + 1);
  item->kv = head.starts_with('k');
  if (item->kv) head.remove_prefix(1);
  const std::optional<NumberRange> range = ReadNumberRange(head);
  if (!range) return bad("a head, a range such as 0-3, or *, k before it for KV heads");
  item->layers = *layers;
  item->heads = *range;
  if (equals != text.npos && !ReadAction(text.substr(equals + 1), item))
    return bad("a finite number, zero, mean or keep after =");
  return Status();
}

Status AddItems(std::string_view text, Builder* builder) {
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    Item item;
    if (Status status = ReadItem(kName, text.substr(begin, end - begin), &item); !status.ok())
      return status;
    if (Status status = builder->Add(item); !status.ok()) return status;
    begin = end + 1;
  }
  return Status();
}

/// Reads the numbers and ranges of the list `key`; an absent list stands for everything.
Status ReadList(const std::string& where, const Json& entry, const char* key,
                std::vector<NumberRange>* ranges) {
  if (!entry.contains(key)) {
    ranges->assign(1, NumberRange());
    return Status();
  }
  const Json& list = entry[key];
  if (!list.is_array())
    return InvalidArgument(kName, where, ".", key, " = ", ShowJson(list),
                           "; expected a list of numbers and ranges");
  for (const Json& value : list) {
    const std::string text = value.is_string() ? value.get<std::string>() : ShowJson(value);
    const std::optional<NumberRange> range = ReadNumberRange(text);
    if (!range)
      return InvalidArgument(kName, where, ".", key, " has ", ShowJson(value),
                             "; expected numbers, or texts such as \"2-5\"");
    ranges->push_back(*range);
  }
  return Status();
}

Status AddEntry(const std::string& where, const Json& entry, Builder* builder) {
  if (!entry.is_object())
    return InvalidArgument(kName, where, " = ", ShowJson(entry), "; expected an object");
  for (const auto& [key, value] : entry.items())
    if (key != "layers" && key != "heads" && key != "kv_heads" && key != "edit")
      return InvalidArgument(kName, where, " has the key ", ShowJson(Json(key)),
                             "; expected layers, heads or kv_heads, edit");
  if (entry.contains("heads") && entry.contains("kv_heads"))
    return InvalidArgument(kName, where, " has heads and kv_heads; expected one of them");
  Item item;
  item.where = Concat(kName, ": ", where);
  item.kv = entry.contains("kv_heads");
  std::vector<NumberRange> layers, heads;
  if (Status status = ReadList(where, entry, "layers", &layers); !status.ok()) return status;
  if (Status status = ReadList(where, entry, item.kv ? "kv_heads" : "heads", &heads); !status.ok())
    return status;
  if (entry.contains("edit")) {
    const Json& edit = entry["edit"];
    if (!ReadAction(edit.is_string() ? edit.get<std::string>() : ShowJson(edit), &item))
      return InvalidArgument(kName, where, ".edit = ", ShowJson(edit),
                             "; expected a finite number, \"zero\", \"mean\" or \"keep\"");
  }
  for (const NumberRange& layer : layers)
    for (const NumberRange& head : heads) {
      item.layers = layer;
      item.heads = head;
      if (Status status = builder->Add(item); !status.ok()) return status;
    }
  return Status();
}

Status AddJson(std::string_view text, Builder* builder) {
  const Result<JsonTree> parsed = ParseJson(text, JsonKeys::kUnique);
  if (!parsed.ok()) return InvalidArgument(kName, parsed.status().message());
  const Json& json = parsed->root();
  if (!json.is_array()) return InvalidArgument(kName, "expected a list of edits");
  std::size_t index = 0;
  for (const Json& entry : json) {
    const std::string where = "edits[" + std::to_string(index++) + "]";
    if (Status status = AddEntry(where, entry, builder); !status.ok()) return status;
  }
  return Status();
}

}  // namespace

Result<std::vector<HeadId>> ParseHeads(const char* function, std::string_view text,
                                       const ModelConfig& config) {
  Item item;
  if (Status status = ReadItem(function, text, &item); !status.ok()) return status;
  if (text.find('=') != text.npos)
    return MakeError(StatusCode::kInvalidArgument, item.where, "; expected no =EDIT");
  Builder builder(config);
  if (Status status = builder.Add(item); !status.ok()) return status;
  std::vector<HeadId> heads;
  for (const HeadEdit& edit : builder.Finish().edits) heads.push_back(edit.head);
  return heads;
}

Result<Ablation> ParseAblation(std::string_view text, const ModelConfig& config) {
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first == text.npos)
    return InvalidArgument(kName, "the text is empty; expected edits such as 3.1,4.*=0.5");
  text = text.substr(first, text.find_last_not_of(" \t\r\n") + 1 - first);
  Builder builder(config);
  const bool json = text.front() == '[' || text.front() == '{';
  if (Status status = json ? AddJson(text, &builder) : AddItems(text, &builder); !status.ok())
    return status;
  Ablation ablation = builder.Finish();
  Ablation checked = ablation;  // the caller supplies the means
  std::erase_if(checked.edits,
                [](const HeadEdit& edit) { return edit.kind == HeadEditKind::kMean; });
  if (Status status = CheckAblation(config, checked); !status.ok()) return status;
  return ablation;
}

std::string FormatAblation(const Ablation& ablation) {
  // The text is not built by Json, whose destructor needs memory of its own.
  const auto value = [](const HeadEdit& edit) -> std::string {
    if (edit.kind == HeadEditKind::kMean) return "\"mean\"";
    if (edit.scale == 0) return "\"zero\"";
    std::array<char, 32> digits;
    return {digits.data(), std::to_chars(digits.begin(), digits.end(), edit.scale).ptr};
  };
  std::string text = "[";
  for (const HeadEdit& edit : ablation.edits)
    text += (text.size() == 1 ? "\n  " : ",\n  ") +
            ("{\"layers\":[" + std::to_string(edit.head.layer)) + "],\"heads\":[" +
            std::to_string(edit.head.head) + "],\"edit\":" + value(edit) + "}";
  return text + "\n]\n";
}

}  // namespace manyhead
