#include <algorithm>
#include <numeric>

#include "manyhead/heads.h"

namespace manyhead {
namespace {

CaptureRingOptions AtLeastOne(CaptureRingOptions options) {
  options.max_rows = std::max<std::int64_t>(1, options.max_rows);
  options.max_weights = std::max<std::int64_t>(1, options.max_weights);
  options.top_k = std::max<std::int64_t>(0, options.top_k);
  return options;
}

}  // namespace

CaptureRing::CaptureRing(const CaptureRingOptions& options)
    : options_(AtLeastOne(options)),
      places_(static_cast<std::size_t>(options_.max_rows)),
      weights_(static_cast<std::size_t>(options_.max_weights)),
      keys_(options_.top_k > 0 ? weights_.size() : 0) {}

void CaptureRing::Clear() noexcept { first_ = count_ = end_ = dropped_ = 0; }

void CaptureRing::DropOldest() noexcept {
  first_ = (first_ + 1) % options_.max_rows;
  --count_;
  ++dropped_;
}

/// Returns the position of the next row. Rows lie one after another and start again at 0 where the
/// rest of the memory does not suffice; the rows that are overwritten are the oldest.
std::int64_t CaptureRing::MakeRoom(std::int64_t length) noexcept {
  if (count_ == options_.max_rows) DropOldest();
  const bool wraps = end_ + length > options_.max_weights;
  // From here to the end of the memory, all rows are older than those from 0 on.
  while (wraps && count_ > 0 && Oldest().begin >= end_) DropOldest();
  const std::int64_t begin = wraps ? 0 : end_;
  while (count_ > 0 && Oldest().begin >= begin && Oldest().begin < begin + length) DropOldest();
  return begin;
}

void CaptureRing::Add(const CapturedRow& row) noexcept {
  const auto size = static_cast<std::int64_t>(row.weights.size());
  const std::int64_t length = options_.top_k > 0 ? std::min(options_.top_k, size) : size;
  if (length > options_.max_weights) {
    ++dropped_;
    return;
  }
  const std::int64_t begin = MakeRoom(length);
  Place& place = places_[static_cast<std::size_t>((first_ + count_) % options_.max_rows)];
  place = {row.head, row.position, begin, length, row.lse, row.sink_share};
  if (options_.top_k > 0) {
    SelectTop(row.weights, begin, length);
  } else {
    std::copy(row.weights.begin(), row.weights.end(), weights_.begin() + begin);
  }
  end_ = begin + length;
  ++count_;
}

/// Keeps a heap of the best keys so far, the worst on top: the row is read once, and most keys are
/// worse.
void CaptureRing::SelectTop(std::span<const float> weights, std::int64_t begin,
                            std::int64_t count) noexcept {
  const auto better = [&](std::int64_t a, std::int64_t b) {
    const float x = weights[static_cast<std::size_t>(a)], y = weights[static_cast<std::size_t>(b)];
    return x > y || (x == y && a < b);
  };
  const auto first = keys_.begin() + begin, last = first + count;
  std::iota(first, last, std::int64_t{0});
  std::make_heap(first, last, better);
  for (std::int64_t key = count; key < static_cast<std::int64_t>(weights.size()); ++key) {
    if (!better(key, *first)) continue;
    std::pop_heap(first, last, better);
    *(last - 1) = key;
    std::push_heap(first, last, better);
  }
  std::sort_heap(first, last, better);
  std::transform(first, last, weights_.begin() + begin,
                 [&](std::int64_t key) { return weights[static_cast<std::size_t>(key)]; });
}

CaptureRing::Row CaptureRing::operator[](std::int64_t index) const noexcept {
  const Place& place = places_[static_cast<std::size_t>((first_ + index) % options_.max_rows)];
  const auto begin = static_cast<std::size_t>(place.begin);
  const auto length = static_cast<std::size_t>(place.length);
  Row row{place.head, place.position, place.lse, place.sink_share, {}, {}};
  row.weights = std::span(weights_).subspan(begin, length);
  if (options_.top_k > 0) row.keys = std::span(keys_).subspan(begin, length);
  return row;
}

}  // namespace manyhead
