#include "runtime/session/stop_text.h"

#include <algorithm>

namespace manyhead {

std::string StopText::Push(std::string_view piece) {
  if (stopped_) return {};
  held_ += piece;
  // The first occurrence of a stop string is also the one that ends first.
  std::size_t begin = std::string::npos, end = std::string::npos;
  for (const std::string& stop : stops_) {
    const std::size_t at = held_.find(stop);
    if (at == std::string::npos || at + stop.size() > end) continue;
    begin = at + stop.size() < end ? at : std::min(begin, at);
    end = at + stop.size();
  }
  if (begin != std::string::npos) {
    stopped_ = true;
    return held_.substr(0, begin);
  }
  std::size_t keep = 0;  // the longest end of held_ that a stop string begins with
  for (const std::string& stop : stops_)
    for (std::size_t n = std::min(stop.size() - 1, held_.size()); n > keep; --n)
      if (std::string_view(held_).substr(held_.size() - n) == std::string_view(stop).substr(0, n)) {
        keep = n;
        break;
      }
  std::string shown = held_.substr(0, held_.size() - keep);
  held_.erase(0, held_.size() - keep);
  return shown;
}

std::string StopText::Flush() {
  std::string rest;
  if (!stopped_) rest.swap(held_);
  return rest;
}

}  // namespace manyhead
