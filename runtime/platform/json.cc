#include "runtime/platform/json.h"

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "runtime/platform/printable.h"

namespace manyhead {
namespace {

using Json = nlohmann::ordered_json;

/// Builds the value of a text from the events of the parser. Arrays and objects are made when they
/// are complete, because an object that grows copies its elements.
class Builder : public nlohmann::json_sax<Json> {
 public:
  explicit Builder(JsonKeys keys) : keys_(keys) {}

  JsonTree TakeRoot() noexcept { return JsonTree(std::move(root_)); }
  /// The error in the text, where it is not one of grammar.
  const std::string& error() const noexcept { return error_; }

  ~Builder() override { JsonTree::Empty(root_); }
  bool null() override { return Add(JsonTree()); }
  bool boolean(bool value) override { return Add(JsonTree(value)); }
  bool number_integer(number_integer_t value) override { return Add(JsonTree(value)); }
  bool number_unsigned(number_unsigned_t value) override { return Add(JsonTree(value)); }
  bool number_float(number_float_t value, const string_t&) override { return Add(JsonTree(value)); }
  bool string(string_t& value) override { return Add(JsonTree(std::move(value))); }
  bool binary(binary_t&) override { return false; }  // a text holds no binary value

  bool start_object(std::size_t) override { return Open(Json::value_t::object); }
  bool key(string_t& value) override {
    if (keys_ == JsonKeys::kUnique && !open_.back().keys.insert(value).second) {
      error_ = "the text has the key " +
               Printable(Json(value).dump(-1, ' ', true, Json::error_handler_t::replace)) +
               " twice";
      return false;
    }
    key_ = std::move(value);
    return true;
  }
  bool end_object() override { return Close(); }
  bool start_array(std::size_t) override { return Open(Json::value_t::array); }
  bool end_array() override { return Close(); }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception&) override {
    return false;
  }

 private:
  /// An array or object that is not complete yet.
  struct Part {
    Json::value_t type;
    std::vector<std::pair<std::string, JsonTree>> elements{};  // arrays have no keys
    std::set<std::string> keys{};
  };

  bool Add(JsonTree value) {
    if (open_.empty())
      root_ = std::move(value.root());
    else
      open_.back().elements.emplace_back(std::move(key_), std::move(value));
    return true;
  }
  bool Open(Json::value_t type) {
    if (open_.size() == kMaxJsonDepth) {
      error_ = "the text is nested more than " + std::to_string(kMaxJsonDepth) + " deep";
      return false;
    }
    names_.push_back(std::move(key_));
    open_.push_back(Part{type});
    return true;
  }
  bool Close() {
    Part part = std::move(open_.back());
    open_.pop_back();
    JsonTree whole{Json(part.type)};
    if (part.type == Json::value_t::array) {
      whole.root().get_ref<Json::array_t&>().reserve(part.elements.size());
      for (auto& element : part.elements) whole.root().push_back(std::move(element.second.root()));
    } else {
      MakeObject(part, whole.root().get_ref<Json::object_t&>());
    }
    key_ = std::move(names_.back());
    names_.pop_back();
    return Add(std::move(whole));
  }

  /// Fills `object`, without the search for equal keys that its own insertion makes for each.
  static void MakeObject(Part& part, Json::object_t& object) {
    std::map<std::string_view, std::size_t> places;
    object.reserve(part.elements.size());
    Json::object_t::Container& values = object;
    for (auto& [name, value] : part.elements) {
      const auto place = places.find(name);
      if (place == places.end()) {
        values.emplace_back(std::move(name), std::move(value.root()));
        places.emplace(values.back().first, values.size() - 1);
      } else {
        Json& old = values[place->second].second;
        JsonTree::Empty(old);  // the earlier value of a repeated key
        old = std::move(value.root());
      }
    }
  }

  JsonKeys keys_;
  Json root_;
  std::string error_;
  std::string key_;                 // key of the next value
  std::vector<Part> open_;          // arrays and objects around it, the innermost last
  std::vector<std::string> names_;  // keys of `open_`
};

}  // namespace

void JsonTree::Empty(Json& json) noexcept {
  if (!json.is_structured()) return;
  for (Json& element : json) Empty(element);
  json.clear();
}

Result<JsonTree> ParseJson(std::string_view text, JsonKeys keys) {
  // The parser would take a NUL byte for the end of the text.
  if (text.find('\0') != text.npos)
    return Status(StatusCode::kInvalidArgument,
                  "the text has a NUL byte, which JSON does not allow");
  Builder builder(keys);
  if (Json::sax_parse(text.begin(), text.end(), &builder)) return builder.TakeRoot();
  return Status(StatusCode::kInvalidArgument,
                builder.error().empty() ? "the text is no valid JSON" : builder.error());
}

std::string ShowJson(const nlohmann::ordered_json& json) {
  return Printable(json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
}

}  // namespace manyhead
