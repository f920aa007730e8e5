#include "runtime/platform/json.h"

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "runtime/platform/printable.h"

namespace manyhead {

using Json = nlohmann::ordered_json;

Result<Json> ParseJson(std::string_view text, JsonKeys keys) {
  std::string error;
  std::vector<std::set<std::string>> seen;  // keys of the objects around
  const auto look = [&](int depth, Json::parse_event_t event, const Json& parsed) {
    if (depth > kMaxJsonDepth && error.empty())
      error = "the text is nested more than " + std::to_string(kMaxJsonDepth) + " deep";
    if (!error.empty()) return false;  // what is left is read over, not kept
    if (event == Json::parse_event_t::object_start) seen.emplace_back();
    if (event == Json::parse_event_t::object_end) seen.pop_back();
    if (event == Json::parse_event_t::key && keys == JsonKeys::kUnique &&
        !seen.back().insert(parsed.get_ref<const std::string&>()).second)
      error = "the text has the key " +
              Printable(parsed.dump(-1, ' ', true, Json::error_handler_t::replace)) + " twice";
    return error.empty();
  };
  Json json = Json::parse(text.begin(), text.end(), look, /*allow_exceptions=*/false);
  if (error.empty() && json.is_discarded()) error = "the text is no valid JSON";
  if (!error.empty()) return Status(StatusCode::kInvalidArgument, error);
  return json;
}

}  // namespace manyhead
