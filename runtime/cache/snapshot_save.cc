#include "runtime/cache/snapshot_save.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "runtime/cache/page_layout.h"
#include "runtime/cache/snapshot_file.h"

/// Writes sequences to a file.

namespace manyhead {
namespace {

using Sequences = std::span<const KvSequence* const>;

/// A page of one head with a table that holds it.
struct PageHolder {
  std::byte* page = nullptr;
  const KvSequence* sequence = nullptr;
  std::size_t index = 0;   ///< index of the sequence among those that are saved
  std::int64_t place = 0;  ///< index in the table
};

/// Returns the pages of each head, in the order of their addresses, so that holders of the same
/// page are neighbours.
std::vector<std::vector<PageHolder>> HoldersOf(std::size_t num_heads, Sequences sequences) {
  std::vector<std::vector<PageHolder>> holders(num_heads);
  for (std::size_t i = 0; i < sequences.size(); ++i)
    for (std::size_t head = 0; head < num_heads; ++head) {
      const Table<std::byte*>& pages = sequences[i]->heads[head].pages;
      for (std::int64_t p = 0; p < pages.size(); ++p)
        if (pages[p] != nullptr) holders[head].push_back({pages[p], sequences[i], i, p});
    }
  for (std::vector<PageHolder>& one : holders)
    std::sort(one.begin(), one.end(),
              [](const PageHolder& a, const PageHolder& b) { return a.page < b.page; });
  return holders;
}

/// Calls fn(first, last) for the runs of `holders` that hold the same page.
template <class Holders, class Fn>
void ForEachPage(const Holders& holders, const Fn& fn) {
  for (auto first = holders.begin(); first != holders.end();) {
    const auto last = std::find_if(first, holders.end(), [page = first->page](const auto& holder) {
      return holder.page != page;
    });
    fn(first, last);
    first = last;
  }
}

Snapshot Describe(const CacheHeads& heads, Sequences sequences,
                  const std::vector<std::vector<PageHolder>>& holders) {
  Snapshot snapshot;
  snapshot.params.layers = heads.params().layers;
  snapshot.params.heads = heads.params().heads;
  snapshot.params.page_size = heads.params().page_size;
  snapshot.head_pages.resize(heads.size(), 0);
  for (const KvSequence* one : sequences) {
    const KvSequence& sequence = *one;
    SnapshotSequence& saved = snapshot.sequences.emplace_back();
    saved.length = sequence.length;
    saved.first_query = sequence.first_query;
    saved.heads.resize(heads.size());
    for (std::size_t head = 0; head < heads.size(); ++head) {
      const HeadTable& table = sequence.heads[head];
      saved.heads[head].gaps.assign(table.gaps.begin(), table.gaps.end());
      saved.heads[head].scores.assign(table.scores.begin(), table.scores.end());
      saved.heads[head].pages.resize(static_cast<std::size_t>(table.pages.size()), -1);
    }
  }
  for (std::size_t head = 0; head < heads.size(); ++head)
    ForEachPage(holders[head], [&](auto first, auto last) {
      for (; first != last; ++first)
        snapshot.sequences[first->index].heads[head].pages[static_cast<std::size_t>(first->place)] =
            snapshot.head_pages[head];
      ++snapshot.head_pages[head];
    });
  return snapshot;
}

/// Copies only the tokens that `holders` hold of their page: the page may also contain old data of
/// other sequences.
void FillImage(const KvHead& info, std::size_t head, std::span<const PageHolder> holders,
               std::span<std::byte> image) noexcept {
  std::fill(image.begin(), image.end(), std::byte{0});
  const kernels::KvPageLayout& layout = info.layout;
  for (const PageHolder& holder : holders) {
    const std::int64_t begin = holder.place * layout.page_size;
    const std::int64_t end = std::min(holder.sequence->length, begin + layout.page_size);
    ForEachHeld(holder.sequence->heads[head], begin, end,
                [&](std::int64_t first, std::int64_t last) {
                  CopyKvTokens(layout, holder.page, image.data(), first - begin, last - first);
                });
  }
}

}  // namespace

Status SaveSequences(const CacheHeads& heads, Sequences sequences, const std::string& path,
                     const KvSnapshotInfo& info) {
  const std::vector<std::vector<PageHolder>> holders = HoldersOf(heads.size(), sequences);
  Snapshot snapshot = Describe(heads, sequences, holders);
  snapshot.fingerprint = info.fingerprint;
  snapshot.user_data = info.user_data;
  std::vector<std::byte> image;
  for (const KvHead& head : heads)
    image.resize(std::max(image.size(), static_cast<std::size_t>(head.layout.page_bytes)));
  Result<AtomicFile> file = AtomicFile::Create(path);
  if (!file.ok()) return file.status();
  SnapshotWriter writer(*std::move(file));
  Status status = writer.Write(EncodeSnapshot(snapshot));
  for (std::size_t head = 0; head < heads.size(); ++head) {
    const auto page =
        std::span(image).first(static_cast<std::size_t>(heads[head].layout.page_bytes));
    ForEachPage(holders[head], [&](auto first, auto last) {
      if (!status.ok()) return;
      FillImage(heads[head], head, {first, last}, page);
      status = writer.Write(page);
    });
  }
  return status.ok() ? writer.Commit() : status;
}

}  // namespace manyhead
