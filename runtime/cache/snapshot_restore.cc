#include "runtime/cache/snapshot_restore.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "runtime/cache/snapshot_file.h"
#include "runtime/cache/table_bytes.h"

/// Restores sequences from a file.

namespace manyhead {
namespace {

/// The pages of a restored snapshot, in its order; they are released unless they are kept.
class NewPages {
 public:
  /// `snapshot` must outlive it.
  NewPages(PageStore& store, const Snapshot& snapshot)
      : store_(store), pages_(store.heads().size()) {
    for (std::size_t head = 0; head < pages_.size(); ++head)
      pages_[head].reserve(static_cast<std::size_t>(snapshot.head_pages[head]));
  }
  NewPages(const NewPages&) = delete;
  NewPages& operator=(const NewPages&) = delete;
  ~NewPages() {
    for (std::size_t head = 0; head < pages_.size(); ++head)
      for (const Entry& entry : pages_[head]) store_.Release(head, entry.page);
    store_.ReturnToOs();
  }

  std::byte* Allocate(std::size_t head) noexcept {
    return pages_[head].emplace_back(Entry{store_.Allocate(head)}).page;
  }
  /// Returns page `index` of a head for one more table.
  std::byte* Use(std::size_t head, std::int64_t index) noexcept {
    Entry& entry = pages_[head][static_cast<std::size_t>(index)];
    if (entry.used) store_.Share(head, entry.page);
    entry.used = true;
    return entry.page;
  }
  void Keep() noexcept { pages_.clear(); }

 private:
  struct Entry {
    std::byte* page = nullptr;
    bool used = false;
  };
  PageStore& store_;
  std::vector<std::vector<Entry>> pages_;  ///< [head] pages
};

/// Returns the bytes of the tables of all its sequences.
std::int64_t TableBytesOf(const CacheHeads& heads, const Snapshot& snapshot) noexcept {
  std::int64_t bytes = 0;
  for (const SnapshotSequence& sequence : snapshot.sequences) {
    bytes += SequenceTableBytes(static_cast<std::int64_t>(heads.size()));
    for (std::size_t head = 0; head < heads.size(); ++head)
      bytes +=
          heads[head].NewTableBytes(static_cast<std::int64_t>(sequence.heads[head].pages.size()),
                                    static_cast<std::int64_t>(sequence.heads[head].gaps.size()));
  }
  return bytes;
}

/// Returns a sequence without its pages.
KvSequence MakeSequence(const CacheHeads& heads, const SnapshotSequence& from) {
  KvSequence sequence;
  sequence.length = from.length;
  sequence.first_query = from.first_query;
  sequence.heads = std::make_unique<HeadTable[]>(heads.size());
  for (std::size_t head = 0; head < heads.size(); ++head) {
    const SnapshotTable& saved = from.heads[head];
    HeadTable& table = sequence.heads[head];
    table = MakeHeadTable(heads[head], static_cast<std::int64_t>(saved.pages.size()),
                          static_cast<std::int64_t>(saved.gaps.size()));
    for (const std::int64_t score : saved.scores) table.scores.Push(score);
    for (const kernels::KvSpan& gap : saved.gaps) table.gaps.Push(gap);
    for (std::size_t p = 0; p < saved.pages.size(); ++p) table.pages.Push(nullptr);
  }
  return sequence;
}

/// Reads pages, and converts them to other types where necessary. Numbers that keep their type keep
/// their bits.
class PageReader {
 public:
  PageReader(const CacheHeads& heads, const kernels::KvKernels& kernels, SnapshotFile& file)
      : heads_(heads), kernels_(kernels), file_(file) {
    const KvCacheParams& saved = file.snapshot().params;
    std::int64_t page_bytes = 0, head_dim = 0, head_dim_v = 0;
    for (std::size_t l = 0; l < saved.layers.size(); ++l)
      for (const KvHeadParams& params : saved.heads[l]) {
        const KvLayerShape& shape = saved.layers[l];
        layouts_.push_back(MakeKvHead(shape, params, saved.page_size).layout);
        page_bytes = std::max(page_bytes, layouts_.back().page_bytes);
        head_dim = std::max(head_dim, shape.head_dim);
        head_dim_v = std::max(head_dim_v, shape.head_dim_v);
      }
    image_.resize(static_cast<std::size_t>(page_bytes));
    k_.resize(static_cast<std::size_t>(head_dim));
    v_.resize(static_cast<std::size_t>(head_dim_v));
  }

  Status Read(std::size_t head, std::byte* page) {
    const kernels::KvPageLayout &from = layouts_[head], &to = heads_[head].layout;
    const auto bytes = static_cast<std::size_t>(from.page_bytes);
    const bool same = from.k_type == to.k_type && from.v_type == to.v_type;
    const std::span<std::byte> image(same ? page : image_.data(), bytes);
    Status status = file_.ReadPage(image);
    if (status.ok() && !same) Convert(from, to, page);
    return status;
  }

 private:
  void Convert(const kernels::KvPageLayout& from, const kernels::KvPageLayout& to,
               std::byte* page) noexcept {
    for (std::int64_t t = 0; t < to.page_size; ++t) {
      kernels_.load_row(from, image_.data(), t, k_.data(), v_.data());
      kernels_.store_rows(to, page, t, 1, k_.data(), 0, v_.data(), 0);
    }
    const std::byte* image = image_.data();
    if (from.k_type == to.k_type) std::copy_n(image, to.v_offset_bytes, page);
    if (from.v_type == to.v_type)
      std::copy_n(image + from.v_offset_bytes, to.page_bytes - to.v_offset_bytes,
                  page + to.v_offset_bytes);
  }

  const CacheHeads& heads_;
  const kernels::KvKernels& kernels_;
  SnapshotFile& file_;
  std::vector<kernels::KvPageLayout> layouts_;  ///< [head] layouts in the file
  std::vector<std::byte> image_;
  std::vector<float> k_, v_;
};

/// Plans the memory of the snapshot, and checks that there is room for it.
Status PlanRestore(PageStore& pages, SequenceStore& sequences, PrefixStore& prefixes,
                   const Snapshot& snapshot) {
  CacheChange change = pages.Begin("KvCache::Restore");
  const Result<std::int64_t> growth =
      sequences.slots().GrowthFor(std::ssize(snapshot.sequences), change.function);
  if (!growth.ok()) return growth.status();
  change.table_bytes = TableBytesOf(pages.heads(), snapshot) + *growth;
  for (std::size_t head = 0; head < pages.heads().size(); ++head)
    pages.PlanPages(change, head, snapshot.head_pages[head]);
  for (;;) {
    Status status = pages.CheckRoom(change);
    if (status.ok() || !prefixes.DropOldest()) return status;
  }
}

}  // namespace

Result<KvRestored> RestoreSequences(PageStore& pages, SequenceStore& sequences,
                                    PrefixStore& prefixes, const kernels::KvKernels& kernels,
                                    const std::string& path, const KvRestoreOptions& options) {
  const CacheHeads& heads = pages.heads();
  Result<SnapshotFile> file =
      SnapshotFile::Open(path, heads.params(), options.fingerprint, options.convert_types);
  if (!file.ok()) return file.status();
  const Snapshot& snapshot = file->snapshot();
  if (Status status = PlanRestore(pages, sequences, prefixes, snapshot); !status.ok())
    return status;

  // Everything that may fail comes before the first change.
  KvRestored restored;
  restored.user_data = std::move(file->snapshot().user_data);
  restored.sequences.reserve(snapshot.sequences.size());
  std::vector<KvSequence> made;
  made.reserve(snapshot.sequences.size());
  for (const SnapshotSequence& one : snapshot.sequences) made.push_back(MakeSequence(heads, one));
  PageReader reader(heads, kernels, *file);
  SequenceSlots& slots = sequences.slots();
  SequenceSlots::Room room = slots.MakeRoom(std::ssize(snapshot.sequences));
  NewPages new_pages(pages, snapshot);
  pages.Prepare();

  for (std::size_t head = 0; head < heads.size(); ++head)
    for (std::int64_t i = 0; i < snapshot.head_pages[head]; ++i)
      if (Status status = reader.Read(head, new_pages.Allocate(head)); !status.ok()) return status;
  if (Status status = file->CheckUnchanged(); !status.ok()) return status;

  const std::int64_t slot_bytes = slots.bytes();
  slots.PutRoom(std::move(room));
  pages.AddTableBytes(TableBytesOf(heads, snapshot) + slots.bytes() - slot_bytes);
  for (std::size_t i = 0; i < made.size(); ++i) {
    for (std::size_t head = 0; head < heads.size(); ++head) {
      const std::vector<std::int64_t>& stored = snapshot.sequences[i].heads[head].pages;
      for (std::size_t p = 0; p < stored.size(); ++p)
        if (stored[p] >= 0)
          made[i].heads[head].pages[static_cast<std::int64_t>(p)] = new_pages.Use(head, stored[p]);
    }
    restored.sequences.push_back(slots.Put(std::move(made[i])));
  }
  new_pages.Keep();
  return restored;
}

}  // namespace manyhead
