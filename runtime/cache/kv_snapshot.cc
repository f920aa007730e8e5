#include <algorithm>
#include <utility>

#include "runtime/cache/kv_cache_impl.h"
#include "runtime/cache/page_layout.h"
#include "runtime/cache/snapshot_file.h"

/// How sequences go to a file and come back.

namespace manyhead {

/// Pages of a restored snapshot, in its order; given back unless they are kept.
class KvCache::Impl::NewPages {
 public:
  /// `snapshot` outlives it.
  NewPages(Impl& impl, const Snapshot& snapshot) : impl_(impl), pages_(impl.heads_.size()) {
    for (std::size_t head = 0; head < pages_.size(); ++head)
      pages_[head].reserve(static_cast<std::size_t>(snapshot.head_pages[head]));
  }
  NewPages(const NewPages&) = delete;
  NewPages& operator=(const NewPages&) = delete;
  ~NewPages() {
    for (std::size_t head = 0; head < pages_.size(); ++head)
      for (const Entry& entry : pages_[head]) impl_.Give(head, entry.page);
    impl_.pool_.Trim();
  }

  std::byte* Take(std::size_t head) noexcept {
    return pages_[head].emplace_back(Entry{impl_.Take(head)}).page;
  }
  /// Page `index` of a head, for one table more.
  std::byte* Use(std::size_t head, std::int64_t index) noexcept {
    Entry& entry = pages_[head][static_cast<std::size_t>(index)];
    if (entry.used) impl_.pool_.Share(impl_.heads_[head].arena, entry.page);
    entry.used = true;
    return entry.page;
  }
  void Keep() noexcept { pages_.clear(); }

 private:
  struct Entry {
    std::byte* page = nullptr;
    bool used = false;
  };
  Impl& impl_;
  std::vector<std::vector<Entry>> pages_;  ///< by head
};

std::vector<SequenceId> KvCache::Impl::Sequences() const {
  std::vector<SequenceId> ids;
  for (std::uint32_t slot = 0; slot < slots_.size(); ++slot)
    if (Has(IdOf(slot))) ids.push_back(IdOf(slot));
  return ids;
}

/// Of each head all pages of `ids` in the order of their addresses, which brings those together who
/// hold the same one.
std::vector<std::vector<KvCache::Impl::PageHolder>> KvCache::Impl::HoldersOf(
    std::span<const SequenceId> ids) const {
  std::vector<std::vector<PageHolder>> holders(heads_.size());
  for (std::size_t i = 0; i < ids.size(); ++i)
    for (std::size_t head = 0; head < heads_.size(); ++head) {
      const Table<std::byte*>& pages = Find(ids[i])->heads[head].pages;
      for (std::int64_t p = 0; p < pages.size(); ++p)
        if (pages[p] != nullptr) holders[head].push_back({pages[p], Find(ids[i]), i, p});
    }
  for (std::vector<PageHolder>& one : holders)
    std::sort(one.begin(), one.end(),
              [](const PageHolder& a, const PageHolder& b) { return a.page < b.page; });
  return holders;
}

namespace {

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

}  // namespace

Snapshot KvCache::Impl::Describe(std::span<const SequenceId> ids,
                                 const std::vector<std::vector<PageHolder>>& holders) const {
  Snapshot snapshot;
  snapshot.params.layers = params_.layers;
  snapshot.params.heads = params_.heads;
  snapshot.params.page_size = params_.page_size;
  snapshot.head_pages.resize(heads_.size(), 0);
  for (const SequenceId id : ids) {
    const Sequence& sequence = *Find(id);
    SnapshotSequence& told = snapshot.sequences.emplace_back();
    told.length = sequence.length;
    told.first_query = sequence.first_query;
    told.heads.resize(heads_.size());
    for (std::size_t head = 0; head < heads_.size(); ++head) {
      const HeadTable& table = sequence.heads[head];
      told.heads[head].holes.assign(table.holes.begin(), table.holes.end());
      told.heads[head].scores.assign(table.scores.begin(), table.scores.end());
      told.heads[head].pages.resize(static_cast<std::size_t>(table.pages.size()), -1);
    }
  }
  for (std::size_t head = 0; head < heads_.size(); ++head)
    ForEachPage(holders[head], [&](auto first, auto last) {
      for (; first != last; ++first)
        snapshot.sequences[first->index].heads[head].pages[static_cast<std::size_t>(first->place)] =
            snapshot.head_pages[head];
      ++snapshot.head_pages[head];
    });
  return snapshot;
}

/// The page of `holders` with nothing in it but what they hold: a page may still have what others
/// once stored there.
void KvCache::Impl::FillImage(std::size_t head, std::span<const PageHolder> holders,
                              std::span<std::byte> image) const noexcept {
  std::fill(image.begin(), image.end(), std::byte{0});
  const kernels::KvPageLayout& layout = heads_[head].layout;
  for (const PageHolder& holder : holders) {
    const std::int64_t begin = holder.place * layout.page_size;
    const std::int64_t end = std::min(holder.sequence->length, begin + layout.page_size);
    ForEachHeld(holder.sequence->heads[head], begin, end,
                [&](std::int64_t first, std::int64_t last) {
                  CopyKvTokens(layout, holder.page, image.data(), first - begin, last - first);
                });
  }
}

Status KvCache::Impl::Save(const std::string& path, std::span<const SequenceId> ids,
                           const KvSnapshotInfo& info) const {
  const std::vector<std::vector<PageHolder>> holders = HoldersOf(ids);
  Snapshot snapshot = Describe(ids, holders);
  snapshot.fingerprint = info.fingerprint;
  snapshot.user_data = info.user_data;
  std::vector<std::byte> image;
  for (const KvHead& head : heads_)
    image.resize(std::max(image.size(), static_cast<std::size_t>(head.layout.page_bytes)));
  Result<AtomicFile> file = AtomicFile::Create(path);
  if (!file.ok()) return file.status();
  SnapshotWriter writer(*std::move(file));
  Status status = writer.Write(EncodeSnapshot(snapshot));
  for (std::size_t head = 0; head < heads_.size(); ++head) {
    const auto page =
        std::span(image).first(static_cast<std::size_t>(heads_[head].layout.page_bytes));
    ForEachPage(holders[head], [&](auto first, auto last) {
      if (!status.ok()) return;
      FillImage(head, {first, last}, page);
      status = writer.Write(page);
    });
  }
  return status.ok() ? writer.Commit() : status;
}

std::int64_t KvCache::Impl::TableBytesOf(const Snapshot& snapshot) const noexcept {
  std::int64_t bytes = 0;
  for (const SnapshotSequence& sequence : snapshot.sequences) {
    bytes += SequenceBytes(static_cast<std::int64_t>(heads_.size()));
    for (std::size_t head = 0; head < heads_.size(); ++head)
      bytes +=
          heads_[head].NewTableBytes(static_cast<std::int64_t>(sequence.heads[head].pages.size()),
                                     static_cast<std::int64_t>(sequence.heads[head].holes.size()));
  }
  return bytes;
}

/// Without its pages.
KvCache::Impl::Sequence KvCache::Impl::MakeSequence(const SnapshotSequence& from) const {
  Sequence sequence;
  sequence.length = from.length;
  sequence.first_query = from.first_query;
  sequence.heads = std::make_unique<HeadTable[]>(heads_.size());
  for (std::size_t head = 0; head < heads_.size(); ++head) {
    const SnapshotTable& told = from.heads[head];
    HeadTable& table = sequence.heads[head];
    table = MakeHeadTable(heads_[head], static_cast<std::int64_t>(told.pages.size()),
                          static_cast<std::int64_t>(told.holes.size()));
    for (const std::int64_t score : told.scores) table.scores.Push(score);
    for (const kernels::KvSpan& hole : told.holes) table.holes.Push(hole);
    for (std::size_t p = 0; p < told.pages.size(); ++p) table.pages.Push(nullptr);
  }
  return sequence;
}

/// A page in other types. What keeps its type keeps its bits.
class KvCache::Impl::PageReader {
 public:
  PageReader(const Impl& impl, SnapshotFile& file) : impl_(impl), file_(file) {
    const KvCacheParams& saved = file.snapshot().params;
    std::int64_t page_bytes = 0, head_dim = 0, head_dim_v = 0;
    for (std::size_t l = 0; l < impl.layers_.size(); ++l)
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
    const kernels::KvPageLayout &from = layouts_[head], &to = impl_.heads_[head].layout;
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
      impl_.kernels_->load_row(from, image_.data(), t, k_.data(), v_.data());
      impl_.kernels_->store_rows(to, page, t, 1, k_.data(), 0, v_.data(), 0);
    }
    const std::byte* image = image_.data();
    if (from.k_type == to.k_type) std::copy_n(image, to.v_offset_bytes, page);
    if (from.v_type == to.v_type)
      std::copy_n(image + from.v_offset_bytes, to.page_bytes - to.v_offset_bytes,
                  page + to.v_offset_bytes);
  }

  const Impl& impl_;
  SnapshotFile& file_;
  std::vector<kernels::KvPageLayout> layouts_;  ///< of the file, by head
  std::vector<std::byte> image_;
  std::vector<float> k_, v_;
};

Result<KvRestored> KvCache::Impl::Restore(const std::string& path,
                                          const KvRestoreOptions& options) {
  Result<SnapshotFile> file =
      SnapshotFile::Open(path, params_, options.fingerprint, options.convert_types);
  if (!file.ok()) return file.status();
  const Snapshot& snapshot = file->snapshot();
  Change change = Begin("KvCache::Restore");
  const std::int64_t sequence_bytes = TableBytesOf(snapshot);
  change.table_bytes = sequence_bytes;
  const auto count = static_cast<std::int64_t>(snapshot.sequences.size());
  if (Status status = PlanSlots(change, count); !status.ok()) return status;
  for (std::size_t head = 0; head < heads_.size(); ++head)
    PlanPages(change, head, snapshot.head_pages[head]);
  for (;;) {
    Status status = CheckRoom(change);
    if (status.ok()) break;
    if (!DropOldestPrefix()) return status;
  }

  // Everything that may fail comes before the first change.
  KvRestored restored;
  restored.user_data = std::move(file->snapshot().user_data);
  restored.sequences.reserve(snapshot.sequences.size());
  std::vector<Sequence> sequences;
  sequences.reserve(snapshot.sequences.size());
  for (const SnapshotSequence& one : snapshot.sequences) sequences.push_back(MakeSequence(one));
  PageReader reader(*this, *file);
  SlotRoom slots = MakeSlots(count);
  NewPages pages(*this, snapshot);
  pool_.Prepare(added_pages_);

  for (std::size_t head = 0; head < heads_.size(); ++head)
    for (std::int64_t i = 0; i < snapshot.head_pages[head]; ++i)
      if (Status status = reader.Read(head, pages.Take(head)); !status.ok()) return status;
  if (Status status = file->CheckUnchanged(); !status.ok()) return status;

  PutSlots(std::move(slots));
  sequence_bytes_ += sequence_bytes;
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    for (std::size_t head = 0; head < heads_.size(); ++head) {
      const std::vector<std::int64_t>& stored = snapshot.sequences[i].heads[head].pages;
      for (std::size_t p = 0; p < stored.size(); ++p)
        if (stored[p] >= 0)
          sequences[i].heads[head].pages[static_cast<std::int64_t>(p)] = pages.Use(head, stored[p]);
    }
    restored.sequences.push_back(PutSequence(std::move(sequences[i])));
  }
  pages.Keep();
  return restored;
}

}  // namespace manyhead
