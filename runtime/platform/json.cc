#include "runtime/platform/json.h"

#include <set>
#include <string>
#include <utility>
#include <vector>

namespace manyhead {
namespace {

using Json = nlohmann::ordered_json;

/// Builds the value of a text, piece by piece as the reader finds them.
class Builder : public nlohmann::json_sax<Json> {
 public:
  Builder(Json& root, JsonKeys keys) : root_(root), keys_(keys) {}

  /// What is wrong with the text, where that is not its grammar.
  const std::string& error() const noexcept { return error_; }

  bool null() override { return Add(nullptr) != nullptr; }
  bool boolean(bool value) override { return Add(value) != nullptr; }
  bool number_integer(number_integer_t value) override { return Add(value) != nullptr; }
  bool number_unsigned(number_unsigned_t value) override { return Add(value) != nullptr; }
  bool number_float(number_float_t value, const string_t&) override {
    return Add(value) != nullptr;
  }
  bool string(string_t& value) override { return Add(std::move(value)) != nullptr; }
  bool binary(binary_t&) override { return false; }  // not in a text

  bool start_object(std::size_t) override {
    seen_.emplace_back();
    return Open(Json::value_t::object);
  }
  bool key(string_t& value) override {
    if (keys_ == JsonKeys::kUnique && !seen_.back().insert(value).second) {
      error_ = "the text has the key " +
               Json(value).dump(-1, ' ', false, Json::error_handler_t::replace) + " twice";
      return false;
    }
    key_ = std::move(value);
    return true;
  }
  bool end_object() override {
    seen_.pop_back();
    return Close();
  }
  bool start_array(std::size_t) override { return Open(Json::value_t::array); }
  bool end_array() override { return Close(); }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception&) override {
    return false;
  }

 private:
  /// Puts a value, which holds no others, in its place.
  Json* Add(Json value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    Json& around = *open_.back();
    if (around.is_array()) {
      around.push_back(std::move(value));
      return &around.back();
    }
    Json& place = around[key_];
    JsonTree::Empty(place);  // what the key had before
    place = std::move(value);
    return &place;
  }
  bool Open(Json::value_t type) {
    if (open_.size() == kMaxJsonDepth) {
      error_ = "the text is nested more than " + std::to_string(kMaxJsonDepth) + " deep";
      return false;
    }
    open_.push_back(Add(Json(type)));
    return true;
  }
  bool Close() {
    open_.pop_back();
    return true;
  }

  Json& root_;
  JsonKeys keys_;
  std::string error_;
  std::string key_;                          // of the next value
  std::vector<Json*> open_;                  // arrays and objects around it
  std::vector<std::set<std::string>> seen_;  // keys of the objects around it
};

}  // namespace

void JsonTree::Empty(Json& json) noexcept {
  if (!json.is_structured()) return;
  for (Json& element : json) Empty(element);
  json.clear();
}

Result<JsonTree> ParseJson(std::string_view text, JsonKeys keys) {
  JsonTree tree;
  Builder builder(tree.root(), keys);
  if (Json::sax_parse(text.begin(), text.end(), &builder)) return Result<JsonTree>(std::move(tree));
  return Status(StatusCode::kInvalidArgument,
                builder.error().empty() ? "the text is no valid JSON" : builder.error());
}

}  // namespace manyhead
