#include <algorithm>
#include <bit>
#include <set>

#include "runtime/cache/table_bytes.h"
#include "tests/cache/kv_model.h"

/// Computes the bytes of the plain cache's pages and tables, and whether the cap allows them.

namespace manyhead::testing {
namespace {

std::int64_t PowerOfTwo(std::int64_t least) {
  return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(least)));
}

}  // namespace

void KvModel::GrowRooms(const HeadInfo& info, ModelHead& head, std::int64_t pages,
                        std::int64_t gaps) const {
  if (info.off()) return;
  head.pages_room = std::max(head.pages_room, PowerOfTwo(std::max<std::int64_t>(64, pages)));
  if (gaps > head.gaps_room) head.gaps_room = PowerOfTwo(std::max<std::int64_t>(4, gaps));
}

std::vector<std::int64_t> KvModel::PagesOf(const ModelState& state) const {
  std::vector<std::int64_t> pages(heads_.size(), 0);
  for (std::size_t i = 0; i < heads_.size(); ++i) {
    std::set<int> numbers;
    for (const auto& [id, sequence] : state.sequences)
      numbers.insert(sequence.heads[i].pages.begin(), sequence.heads[i].pages.end());
    numbers.erase(-1);
    pages[i] = static_cast<std::int64_t>(numbers.size());
  }
  return pages;
}

std::int64_t KvModel::PageBytes(const ModelState& state) const {
  const std::vector<std::int64_t> pages = PagesOf(state);
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < heads_.size(); ++i) bytes += pages[i] * heads_[i].page_bytes;
  return bytes;
}

std::int64_t KvModel::SequenceTableBytes(const ModelSequence& sequence) const {
  std::int64_t bytes = manyhead::SequenceTableBytes(static_cast<std::int64_t>(heads_.size()));
  for (std::size_t i = 0; i < heads_.size(); ++i)
    bytes += sequence.heads[i].pages_room * (heads_[i].scored() ? 16 : 8) +
             sequence.heads[i].gaps_room * 16;
  return bytes;
}

std::int64_t KvModel::TableBytes(const ModelState& state) const {
  std::int64_t bytes = FixedTableBytes(cache_.params());
  if (state.most_sequences > 0) bytes += SlotTableBytes(state.most_sequences);
  for (const auto& [id, sequence] : state.sequences) bytes += SequenceTableBytes(sequence);
  // Two bits and four bytes a page, for powers of two of 64 pages.
  for (const std::int64_t pages : state.most_pages)
    if (pages > 0) bytes += PowerOfTwo((pages + 63) / 64) * (2 * 8 + 64 * 4);
  return bytes;
}

void KvModel::NoteMost(ModelState& state) const {
  const std::vector<std::int64_t> pages = PagesOf(state);
  std::vector<std::int64_t> sums(num_size_classes_, 0);
  for (std::size_t i = 0; i < heads_.size(); ++i) sums[heads_[i].size_class] += pages[i];
  for (std::size_t c = 0; c < sums.size(); ++c)
    state.most_pages[c] = std::max(state.most_pages[c], sums[c]);
}

bool KvModel::Fits(const ModelState& next) const {
  const std::int64_t before = PageBytes(state_) + TableBytes(state_);
  const std::int64_t after = PageBytes(next) + TableBytes(next);
  return after <= before || after <= cache_.params().capacity_bytes;
}

}  // namespace manyhead::testing
