#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "manyhead/status.h"
#include "runtime/formats/checkpoint.h"
#include "runtime/platform/json.h"

namespace manyhead {

/// A JSON object as named values. The key "a.b" is the value at "b" of the object at "a"; null
/// counts as absent, and an object counts its members.
class JsonMetadata final : public Metadata {
 public:
  /// `name` stands for the text in messages.
  /// Errors   kIoError naming it where `text` is no JSON object, has a key twice or is nested too
  ///          deep.
  static Result<JsonMetadata> Parse(std::string_view text, const std::string& name);

  Result<std::optional<std::string_view>> GetString(std::string_view key) const override;
  Result<std::optional<std::int64_t>> GetInt(std::string_view key) const override;
  Result<std::optional<double>> GetFloat(std::string_view key) const override;
  Result<std::optional<bool>> GetBool(std::string_view key) const override;
  Result<std::optional<std::vector<std::string_view>>> GetStrings(
      std::string_view key) const override;
  Result<std::optional<std::vector<std::int64_t>>> GetInts(std::string_view key) const override;
  Result<std::optional<std::vector<float>>> GetFloats(std::string_view key) const override;
  std::int64_t Count(std::string_view key) const noexcept override;
  std::vector<Entry> entries() const override;

 private:
  JsonMetadata(JsonTree tree, std::string name) : tree_(std::move(tree)), name_(std::move(name)) {}

  /// Null when absent.
  const nlohmann::ordered_json* Find(std::string_view key) const noexcept;
  Status WrongType(std::string_view key, const nlohmann::ordered_json& value,
                   const char* expected) const;
  /// The elements of the array at `key`, or the one value there, each by `get`.
  template <class T, class Get>
  Result<std::optional<std::vector<T>>> GetAll(std::string_view key, bool single,
                                               const char* expected, Get get) const;

  JsonTree tree_;
  std::string name_;
};

}  // namespace manyhead
