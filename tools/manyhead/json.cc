#include "tools/manyhead/json.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

namespace manyhead::cli {
namespace {

using Tree = nlohmann::ordered_json;

const Json& Null() noexcept {
  static const Json null;
  return null;
}

std::string Quote(const std::string& text) {
  return Tree(text).dump(-1, ' ', false, Tree::error_handler_t::replace);
}

Json FromTree(const Tree& tree) {
  Json json;
  switch (tree.type()) {
    case Tree::value_t::boolean:
      return tree.get<bool>();
    case Tree::value_t::number_integer:
      return tree.get<std::int64_t>();
    case Tree::value_t::number_unsigned:
      return tree.get<std::uint64_t>();
    case Tree::value_t::number_float:
      return tree.get<double>();
    case Tree::value_t::string:
      return tree.get_ref<const std::string&>();
    case Tree::value_t::array:
      json = Json::array();
      for (const Tree& element : tree) json.push_back(FromTree(element));
      return json;
    case Tree::value_t::object:
      json = Json::object();
      for (const auto& [name, value] : tree.items()) json[name] = FromTree(value);
      return json;
    default:
      return json;
  }
}

}  // namespace

Json::Json() = default;
Json::Json(std::string text) : kind_(Kind::kString), text_(std::move(text)) {}
Json::Json(std::string_view text) : kind_(Kind::kString), text_(text) {}
Json::Json(const char* text) : kind_(Kind::kString), text_(text) {}

Json::Json(std::initializer_list<Json> list) : kind_(Kind::kArray) {
  const bool members = std::all_of(list.begin(), list.end(), [](const Json& entry) {
    return entry.is_array() && entry.size() == 2 && entry[0].is_string();
  });
  if (!members) {
    elements_ = list;
    return;
  }
  kind_ = Kind::kObject;
  for (const Json& entry : list) (*this)[entry[0].text_] = entry[1];
}

Json::Json(const Json& other) = default;
Json::Json(Json&& other) noexcept = default;
Json& Json::operator=(const Json& other) = default;
Json& Json::operator=(Json&& other) noexcept = default;
Json::~Json() = default;

Json Json::array() {
  Json json;
  json.kind_ = Kind::kArray;
  return json;
}

Json Json::object() {
  Json json;
  json.kind_ = Kind::kObject;
  return json;
}

void Json::SetBool(bool value) noexcept {
  kind_ = Kind::kBool;
  bool_ = value;
}

void Json::SetInteger(std::int64_t value) noexcept {
  kind_ = Kind::kInteger;
  integer_ = value;
}

void Json::SetUnsigned(std::uint64_t value) noexcept {
  kind_ = Kind::kUnsigned;
  unsigned_ = value;
}

void Json::SetReal(double value) noexcept {
  kind_ = Kind::kReal;
  real_ = value;
}

bool Json::is_number_integer() const noexcept {
  return kind_ == Kind::kInteger || kind_ == Kind::kUnsigned;
}

bool Json::is_number() const noexcept { return is_number_integer() || kind_ == Kind::kReal; }

bool Json::boolean() const noexcept { return kind_ == Kind::kBool && bool_; }

std::int64_t Json::integer() const noexcept {
  if (kind_ == Kind::kReal) return std::abs(real_) < 0x1p63 ? static_cast<std::int64_t>(real_) : 0;
  if (kind_ == Kind::kUnsigned) return static_cast<std::int64_t>(unsigned_);
  return kind_ == Kind::kInteger ? integer_ : 0;
}

double Json::real() const noexcept {
  if (kind_ == Kind::kReal) return real_;
  if (kind_ == Kind::kUnsigned) return static_cast<double>(unsigned_);
  return kind_ == Kind::kInteger ? static_cast<double>(integer_) : 0;
}

const Json* Json::Find(std::string_view name) const noexcept {
  const auto found = std::ranges::find(members_, name, &Member::name);
  return found == members_.end() ? nullptr : &found->value;
}

Json& Json::operator[](std::string_view name) {
  if (kind_ == Kind::kNull) kind_ = Kind::kObject;
  if (const Json* const value = Find(name); value != nullptr) return const_cast<Json&>(*value);
  members_.push_back({std::string(name), {}});
  return members_.back().value;
}

const Json& Json::operator[](std::string_view name) const noexcept {
  const Json* const value = Find(name);
  return value == nullptr ? Null() : *value;
}

const Json& Json::Element(std::size_t index) const noexcept {
  return index < elements_.size() ? elements_[index] : Null();
}

bool Json::contains(std::string_view name) const noexcept { return Find(name) != nullptr; }

void Json::update(const Json& other) {
  for (const auto& [name, value] : other.members_) (*this)[name] = value;
}

void Json::push_back(Json element) {
  if (kind_ == Kind::kNull) kind_ = Kind::kArray;
  elements_.push_back(std::move(element));
}

std::size_t Json::size() const noexcept {
  return kind_ == Kind::kObject ? members_.size() : elements_.size();
}

const Json* Json::begin() const noexcept { return elements_.data(); }

const Json* Json::end() const noexcept { return elements_.data() + elements_.size(); }

bool Json::operator==(const Json& other) const noexcept {
  if (is_number_integer() && other.is_number_integer()) return integer() == other.integer();
  if (is_number() && other.is_number()) return real() == other.real();
  return kind_ == other.kind_ && boolean() == other.boolean() && text_ == other.text_ &&
         elements_ == other.elements_ &&
         std::ranges::equal(members_, other.members_, [](const Member& a, const Member& b) {
           return a.name == b.name && a.value == b.value;
         });
}

void Json::Print(int indent, int depth, std::string* out) const {
  const auto begin_line = [&](int level) {
    if (indent >= 0) out->append(1, '\n').append(static_cast<std::size_t>(indent * level), ' ');
  };
  switch (kind_) {
    case Kind::kNull:
      out->append("null");
      return;
    case Kind::kBool:
      out->append(bool_ ? "true" : "false");
      return;
    case Kind::kInteger:
      out->append(std::to_string(integer_));
      return;
    case Kind::kUnsigned:
      out->append(std::to_string(unsigned_));
      return;
    case Kind::kReal:
      out->append(Tree(real_).dump());
      return;
    case Kind::kString:
      out->append(Quote(text_));
      return;
    default:
      break;
  }
  const bool is_list = kind_ == Kind::kArray;
  out->append(1, is_list ? '[' : '{');
  for (std::size_t i = 0; i < size(); ++i) {
    if (i > 0) out->append(1, ',');
    begin_line(depth + 1);
    if (!is_list) out->append(Quote(members_[i].name)).append(indent >= 0 ? ": " : ":");
    (is_list ? elements_[i] : members_[i].value).Print(indent, depth + 1, out);
  }
  if (size() > 0) begin_line(depth);
  out->append(1, is_list ? ']' : '}');
}

std::string Json::dump(int indent) const {
  std::string out;
  Print(indent, 0, &out);
  return out;
}

std::optional<Json> ParseJson(std::string_view text) {
  constexpr int kMaxDepth = 64;
  bool deep = false;
  const auto look = [&deep](int depth, Tree::parse_event_t, const Tree&) {
    deep = deep || depth > kMaxDepth;
    return !deep;
  };
  const Tree tree = Tree::parse(text, look, /*allow_exceptions=*/false);
  if (deep || tree.is_discarded()) return std::nullopt;
  return FromTree(tree);
}

}  // namespace manyhead::cli
