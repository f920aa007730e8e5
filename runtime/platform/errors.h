#pragma once

#include <cstdint>
#include <sstream>
#include <string>
#include <string_view>

#include "manyhead/status.h"

/// Every error of the library is made here. A message begins with the function or the file that
/// refuses, and names the thing, its value and what was expected.

namespace manyhead {

/// Returns the parts, each as an output stream prints it, without anything between them.
template <class... Parts>
std::string Concat(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  return text.str();
}

/// Returns an error whose message is the parts alone.
template <class... Parts>
Status MakeError(StatusCode code, const Parts&... parts) {
  return {code, Concat(parts...)};
}

/// Returns kInvalidArgument with the message "where: parts".
template <class... Parts>
Status InvalidArgument(std::string_view where, const Parts&... parts) {
  return MakeError(StatusCode::kInvalidArgument, where, ": ", parts...);
}

/// Returns kUnsupported with the message "where: parts".
template <class... Parts>
Status Unsupported(std::string_view where, const Parts&... parts) {
  return MakeError(StatusCode::kUnsupported, where, ": ", parts...);
}

/// Returns kOutOfPages with the message "where: parts".
template <class... Parts>
Status OutOfPages(std::string_view where, const Parts&... parts) {
  return MakeError(StatusCode::kOutOfPages, where, ": ", parts...);
}

/// Returns kIoError with the message "where: parts".
template <class... Parts>
Status IoError(std::string_view where, const Parts&... parts) {
  return MakeError(StatusCode::kIoError, where, ": ", parts...);
}

/// Returns kInvalidArgument with the message "where: name = value; expected low to high".
inline Status OutOfRange(std::string_view where, std::string_view name, std::int64_t value,
                         std::int64_t low, std::int64_t high) {
  return InvalidArgument(where, name, " = ", value, "; expected ", low, " to ", high);
}

/// Returns an error unless `value` lies in low..high.
inline Status CheckRange(std::string_view where, std::string_view name, std::int64_t value,
                         std::int64_t low, std::int64_t high) {
  if (value >= low && value <= high) return {};
  return InvalidArgument(where, name, " = ", value, "; expected ", low, "..", high);
}

}  // namespace manyhead
