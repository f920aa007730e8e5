#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

/// JSON behind a type of our own: the library that reads and writes it takes longer to compile than
/// any subcommand, so that only json.cc includes it.

namespace manyhead::cli {

/// A JSON value that is built, looked at and printed. An object keeps its members in the order in
/// which they were set. Nothing here fails: a value asked for as another kind than it is reads as 0
/// or empty, and what is not there as null.
class Json {
 public:
  struct Member;

  /// Constructs null.
  Json();
  Json(std::nullptr_t) : Json() {}  // NOLINT(google-explicit-constructor): as all below
  template <class T>
  requires std::is_arithmetic_v<T> Json(T value) : Json() {  // NOLINT(google-explicit-constructor)
    if constexpr (std::is_same_v<T, bool>) {
      SetBool(value);
    } else if constexpr (std::is_floating_point_v<T>) {
      SetReal(static_cast<double>(value));
    } else if constexpr (std::is_unsigned_v<T>) {
      SetUnsigned(value);
    } else {
      SetInteger(value);
    }
  }
  Json(std::string text);       // NOLINT(google-explicit-constructor)
  Json(std::string_view text);  // NOLINT(google-explicit-constructor)
  Json(const char* text);       // NOLINT(google-explicit-constructor)
  /// Constructs an object from {{"name", value}, ...}, an array from any other list.
  Json(std::initializer_list<Json> list);  // NOLINT(google-explicit-constructor)
  /// Constructs an array of two values.
  template <class A, class B>
  Json(const std::pair<A, B>& pair) : Json() {  // NOLINT(google-explicit-constructor)
    push_back(pair.first);
    push_back(pair.second);
  }
  /// Constructs an array of all elements.
  template <class T>
  Json(const std::vector<T>& elements) : Json(array()) {  // NOLINT(google-explicit-constructor)
    for (const T& element : elements) push_back(element);
  }
  Json(const Json& other);
  Json(Json&& other) noexcept;
  Json& operator=(const Json& other);
  Json& operator=(Json&& other) noexcept;
  ~Json();

  static Json array();
  static Json object();

  bool is_null() const noexcept { return kind_ == Kind::kNull; }
  bool is_string() const noexcept { return kind_ == Kind::kString; }
  bool is_number() const noexcept;
  /// Whether it is a number written without point and exponent.
  bool is_number_integer() const noexcept;
  bool is_array() const noexcept { return kind_ == Kind::kArray; }
  bool is_object() const noexcept { return kind_ == Kind::kObject; }

  /// Returns the value as a bool, a number or a std::string.
  template <class T>
  T get() const {
    if constexpr (std::is_same_v<T, bool>) {
      return boolean();
    } else if constexpr (std::is_floating_point_v<T>) {
      return static_cast<T>(real());
    } else if constexpr (std::is_integral_v<T>) {
      return static_cast<T>(integer());
    } else {
      static_assert(std::is_same_v<T, std::string>);
      return text_;
    }
  }

  /// Returns the member `name`; adds null where the object has none. Null becomes an object.
  Json& operator[](std::string_view name);
  const Json& operator[](std::string_view name) const noexcept;
  Json& operator[](const char* name) { return (*this)[std::string_view(name)]; }
  const Json& operator[](const char* name) const noexcept {
    return (*this)[std::string_view(name)];
  }
  /// Returns an element of an array.
  template <class Index>
  requires std::is_integral_v<Index>
  const Json& operator[](Index index) const noexcept {
    return Element(static_cast<std::size_t>(index));
  }
  bool contains(std::string_view name) const noexcept;
  /// Sets the members of another object in this one.
  void update(const Json& other);
  /// Appends to an array. Null becomes an array.
  void push_back(Json element);

  /// Returns the number of elements of an array or members of an object.
  std::size_t size() const noexcept;
  const std::vector<Member>& items() const noexcept { return members_; }
  // The elements of an array.
  const Json* begin() const noexcept;
  const Json* end() const noexcept;

  /// Returns the value as text: on one line, or on many lines that are indented by `indent` spaces
  /// for each level. It is valid JSON whatever strings hold: bytes that are no UTF-8 become U+FFFD,
  /// numbers that are not finite null.
  std::string dump(int indent = -1) const;

  /// Whether both have the same kind, numbers of all kinds being one, and the same value.
  bool operator==(const Json& other) const noexcept;

 private:
  enum class Kind : std::uint8_t {
    kNull,
    kBool,
    kInteger,
    kUnsigned,
    kReal,
    kString,
    kArray,
    kObject
  };

  void SetBool(bool value) noexcept;
  void SetInteger(std::int64_t value) noexcept;
  void SetUnsigned(std::uint64_t value) noexcept;
  void SetReal(double value) noexcept;
  bool boolean() const noexcept;
  std::int64_t integer() const noexcept;
  double real() const noexcept;
  const Json& Element(std::size_t index) const noexcept;
  const Json* Find(std::string_view name) const noexcept;
  void Print(int indent, int depth, std::string* out) const;

  Kind kind_ = Kind::kNull;
  union {
    bool bool_;
    std::int64_t integer_ = 0;
    std::uint64_t unsigned_;
    double real_;
  };
  std::string text_;
  std::vector<Json> elements_;
  std::vector<Member> members_;
};

struct Json::Member {
  std::string name;
  Json value;
};

/// Returns the value of a text; nothing where it is no JSON, or where arrays and objects lie more
/// than 64 deep inside each other: walks over a value are recursive.
std::optional<Json> ParseJson(std::string_view text);

}  // namespace manyhead::cli
