#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace manyhead {

/// Ends a stream of text before the first of several stop strings: the one that ends first, and of
/// those that end together the one that begins first. The result does not depend on how the stream
/// is divided into pieces. Text that may be the beginning of a stop string is held back.
class StopText {
 public:
  explicit StopText(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  /// Returns the text that is final after `piece`; once stopped() it returns nothing more.
  std::string Push(std::string_view piece);
  /// Returns the text that was held back when the stream ends without a stop.
  std::string Flush();
  bool stopped() const noexcept { return stopped_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace manyhead
