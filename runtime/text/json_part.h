#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "manyhead/status.h"
#include "runtime/platform/errors.h"
#include "runtime/platform/json.h"

namespace manyhead {

/// One object of tokenizer.json with its path, as messages name it. null counts as absent.
class JsonPart {
 public:
  using Json = nlohmann::ordered_json;

  JsonPart(const Json& json, std::string path) : json_(&json), path_(std::move(path)) {}

  const Json& json() const noexcept { return *json_; }
  const std::string& path() const noexcept { return path_; }
  bool Has(const char* key) const { return !Value(key).is_null(); }
  JsonPart operator[](const char* key) const { return {Value(key), path_ + "." + key}; }
  JsonPart operator[](std::size_t index) const {
    return {(*json_)[index], path_ + "[" + std::to_string(index) + "]"};
  }

  /// The value at `key`, or `absent` where there is none; a value of another type is the first
  /// error that `status` keeps.
  std::string String(const char* key, std::string absent, Status* status) const {
    const Json& value = Value(key);
    if (value.is_null()) return absent;
    if (value.is_string()) return value.get<std::string>();
    Fail(status, key, "a string");
    return absent;
  }
  bool Bool(const char* key, bool absent, Status* status) const {
    const Json& value = Value(key);
    if (value.is_null()) return absent;
    if (value.is_boolean()) return value.get<bool>();
    Fail(status, key, "true or false");
    return absent;
  }
  std::int64_t Int(const char* key, std::int64_t low, std::int64_t high, std::int64_t absent,
                   Status* status) const {
    const Json& value = Value(key);
    if (value.is_null()) return absent;
    const bool fits = value.is_number_integer() &&
                      !(value.is_number_unsigned() && value.get<std::uint64_t>() > INT64_MAX);
    if (fits && value.get<std::int64_t>() >= low && value.get<std::int64_t>() <= high)
      return value.get<std::int64_t>();
    Fail(status, key, Concat("a whole number from ", low, " to ", high));
    return absent;
  }
  /// The elements of the list at `key`; none where it is absent.
  std::size_t Count(const char* key, Status* status) const {
    const Json& value = Value(key);
    if (value.is_null()) return 0;
    if (value.is_array()) return value.size();
    Fail(status, key, "a list");
    return 0;
  }

  Status Wrong(std::string_view expected) const {
    return IoError("tokenizer.json", path_, " = ", ShowJson(*json_), "; expected ", expected);
  }
  Status NotSupported(const char* key, std::string_view expected) const {
    return Unsupported("tokenizer.json", path_, ".", key, " = ", ShowJson(Value(key)),
                       "; expected ", expected);
  }

 private:
  const Json& Value(const char* key) const {
    static const Json null;
    if (!json_->is_object()) return null;
    const auto found = json_->find(key);
    return found == json_->end() ? null : *found;
  }
  void Fail(Status* status, const char* key, std::string_view expected) const {
    if (status->ok()) *status = (*this)[key].Wrong(expected);
  }

  const Json* json_;
  std::string path_;
};

}  // namespace manyhead
