#pragma once

#include <algorithm>
#include <cctype>
#include <string>

namespace manyhead::testing {

/// `text` as a name that GoogleTest accepts: what is no letter or digit becomes '_'.
inline std::string TestName(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](char c) { return !isalnum(static_cast<unsigned char>(c)); },
      '_');
  return text;
}

}  // namespace manyhead::testing
