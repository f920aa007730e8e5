#include "runtime/formats/json_metadata.h"

#include <cmath>
#include <limits>
#include <utility>

#include "runtime/platform/errors.h"
#include "runtime/platform/printable.h"

namespace manyhead {
namespace {

using Json = nlohmann::ordered_json;

std::optional<std::string_view> AsString(const Json& value) {
  if (!value.is_string()) return std::nullopt;
  return std::string_view(value.get_ref<const std::string&>());
}

std::optional<std::int64_t> AsInt(const Json& value) {
  if (value.is_number_unsigned() && value.get<std::uint64_t>() > INT64_MAX) return std::nullopt;
  if (value.is_number_integer()) return value.get<std::int64_t>();
  return std::nullopt;
}

std::optional<double> AsFloat(const Json& value) {
  if (!value.is_number()) return std::nullopt;
  return value.get<double>();
}

/// Only numbers that do not become infinite.
std::optional<float> AsFloat32(const Json& value) {
  const std::optional<double> number = AsFloat(value);
  constexpr auto kMost = static_cast<double>(std::numeric_limits<float>::max());
  if (!number || !(std::abs(*number) <= kMost)) return std::nullopt;
  return static_cast<float>(*number);
}

}  // namespace

Result<JsonMetadata> JsonMetadata::Parse(std::string_view text, const std::string& name) {
  Result<JsonTree> tree = ParseJson(text, JsonKeys::kUnique);
  if (!tree.ok()) return IoError(name, tree.status().message());
  if (!tree->root().is_object())
    return IoError(name, "holds ", ShowJson(tree->root()), "; expected an object");
  return JsonMetadata(*std::move(tree), name);
}

const Json* JsonMetadata::Find(std::string_view key) const noexcept {
  const Json* at = &tree_.root();
  while (true) {
    const std::size_t dot = key.find('.');
    if (!at->is_object()) return nullptr;
    const auto& object = at->get_ref<const Json::object_t&>();
    const Json* found = nullptr;
    for (const auto& [name, value] : object)
      if (name == key.substr(0, dot)) found = &value;
    if (found == nullptr || found->is_null()) return nullptr;
    if (dot == std::string_view::npos) return found;
    at = found;
    key.remove_prefix(dot + 1);
  }
}

Status JsonMetadata::WrongType(std::string_view key, const Json& value,
                               const char* expected) const {
  return IoError(name_, Printable(key), " = ", ShowJson(value), "; expected ", expected);
}

Result<std::optional<std::string_view>> JsonMetadata::GetString(std::string_view key) const {
  using Value = std::optional<std::string_view>;
  const Json* const value = Find(key);
  if (value == nullptr) return Value();
  if (!value->is_string()) return WrongType(key, *value, "a string");
  return AsString(*value);
}

Result<std::optional<std::int64_t>> JsonMetadata::GetInt(std::string_view key) const {
  using Value = std::optional<std::int64_t>;
  const Json* const value = Find(key);
  if (value == nullptr) return Value();
  const Value number = AsInt(*value);
  if (!number) return WrongType(key, *value, "a whole number");
  return number;
}

Result<std::optional<double>> JsonMetadata::GetFloat(std::string_view key) const {
  using Value = std::optional<double>;
  const Json* const value = Find(key);
  if (value == nullptr) return Value();
  if (!value->is_number()) return WrongType(key, *value, "a number");
  return AsFloat(*value);
}

Result<std::optional<bool>> JsonMetadata::GetBool(std::string_view key) const {
  using Value = std::optional<bool>;
  const Json* const value = Find(key);
  if (value == nullptr) return Value();
  if (!value->is_boolean()) return WrongType(key, *value, "true or false");
  return Value(value->get<bool>());
}

template <class T, class Get>
Result<std::optional<std::vector<T>>> JsonMetadata::GetAll(std::string_view key, bool single,
                                                           const char* expected, Get get) const {
  using Value = std::optional<std::vector<T>>;
  const Json* const value = Find(key);
  if (value == nullptr) return Value();
  if (!value->is_array() && !single) return WrongType(key, *value, expected);
  std::vector<T> all;
  const auto add = [&](const Json& one) {
    const std::optional<T> element = get(one);
    if (element) all.push_back(*element);
    return element.has_value();
  };
  if (!value->is_array()) {
    if (!add(*value)) return WrongType(key, *value, expected);
    return Value(std::move(all));
  }
  all.reserve(value->size());
  for (const Json& one : *value)
    if (!add(one)) return WrongType(key, *value, expected);
  return Value(std::move(all));
}

Result<std::optional<std::vector<std::string_view>>> JsonMetadata::GetStrings(
    std::string_view key) const {
  return GetAll<std::string_view>(key, /*single=*/false, "a list of strings", AsString);
}

Result<std::optional<std::vector<std::int64_t>>> JsonMetadata::GetInts(std::string_view key) const {
  return GetAll<std::int64_t>(key, /*single=*/true, "whole numbers", AsInt);
}

Result<std::optional<std::vector<float>>> JsonMetadata::GetFloats(std::string_view key) const {
  return GetAll<float>(key, /*single=*/true, "numbers", AsFloat32);
}

std::int64_t JsonMetadata::Count(std::string_view key) const noexcept {
  const Json* const value = Find(key);
  if (value == nullptr) return 0;
  return value->is_structured() ? static_cast<std::int64_t>(value->size()) : 1;
}

std::vector<Metadata::Entry> JsonMetadata::entries() const {
  std::vector<Entry> entries;
  for (const auto& [key, value] : tree_.root().get_ref<const Json::object_t&>())
    entries.push_back({key, static_cast<std::int64_t>(value.type()), ShowJson(value)});
  return entries;
}

}  // namespace manyhead
