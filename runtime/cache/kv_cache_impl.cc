#include "runtime/cache/kv_cache_impl.h"

#include <algorithm>
#include <sstream>
#include <utility>

#include "runtime/cache/page_layout.h"
#include "runtime/platform/dcheck.h"
#include "runtime/platform/dispatch.h"

namespace manyhead {
namespace {

// An id is a slot and how often the slot was used before, so that a freed id stays invalid. A slot
// whose generations are used up is not used again.
constexpr int kSlotBits = 20;
constexpr std::uint32_t kMaxSlots = 1U << kSlotBits;
constexpr std::uint32_t kMaxGeneration = (1U << (31 - kSlotBits)) - 1;

SequenceId MakeId(std::uint32_t slot, std::uint32_t generation) noexcept {
  return static_cast<SequenceId>(generation << kSlotBits | slot);
}

// Page pointers a new sequence has room for, so that short ones never grow their tables.
constexpr std::int64_t kFirstTablePages = 64;

}  // namespace

KvCache::Impl::Impl(KvCacheParams params, PagePool pool) noexcept
    : params_(std::move(params)), kernels_(KernelsFor(*params_.isa).kv), pool_(std::move(pool)) {}

Result<std::unique_ptr<KvCache::Impl>> KvCache::Impl::Create(KvCacheParams params) {
  std::vector<Layer> layers;
  std::vector<std::int64_t> sizes;  // of pages, each once: an arena each
  std::vector<std::size_t> arena_heads;
  std::size_t heads = 0;
  std::int64_t row_bytes = 0;
  for (const KvLayerShape& shape : params.layers) {
    Layer layer;
    layer.layout = MakeKvPageLayout(shape, params.k_type, params.v_type, params.page_size);
    layer.num_kv_heads = shape.num_kv_heads;
    layer.first_head = heads;
    const auto size = std::find(sizes.begin(), sizes.end(), layer.layout.page_bytes);
    layer.arena = static_cast<std::size_t>(size - sizes.begin());
    if (size == sizes.end()) {
      sizes.push_back(layer.layout.page_bytes);
      arena_heads.push_back(0);
    }
    arena_heads[layer.arena] += static_cast<std::size_t>(shape.num_kv_heads);
    heads += static_cast<std::size_t>(shape.num_kv_heads);
    row_bytes += shape.num_kv_heads * layer.layout.page_bytes;
    layers.push_back(layer);
  }
  Result<PagePool> pool = PagePool::Create(params.capacity_bytes, sizes);
  if (!pool.ok()) return pool.status();

  std::unique_ptr<Impl> impl(new Impl(std::move(params), std::move(*pool)));
  impl->layers_ = std::move(layers);
  impl->arena_heads_ = std::move(arena_heads);
  impl->head_pages_.resize(heads, 0);
  impl->page_row_bytes_ = row_bytes;
  return impl;
}

const KvCache::Impl::Sequence* KvCache::Impl::Find(SequenceId id) const noexcept {
  if (static_cast<std::int32_t>(id) < 0) return nullptr;
  const std::uint32_t bits = static_cast<std::uint32_t>(id), slot = bits & (kMaxSlots - 1);
  if (slot >= slots_.size() || slots_[slot].generation != bits >> kSlotBits) return nullptr;
  return slots_[slot].sequence.heads.empty() ? nullptr : &slots_[slot].sequence;
}

KvCache::Impl::Sequence* KvCache::Impl::Find(SequenceId id) noexcept {
  return const_cast<Sequence*>(std::as_const(*this).Find(id));
}

template <class S, class Fn>
void KvCache::Impl::ForEachHead(S& sequence, Fn&& fn) const {
  for (std::size_t l = 0; l < layers_.size(); ++l)
    for (std::int64_t h = 0; h < layers_[l].num_kv_heads; ++h)
      fn(layers_[l], l, h, sequence.heads[layers_[l].first_head + h]);
}

kernels::KvHeadView KvCache::Impl::HeadView(SequenceId id, std::int64_t layer,
                                            std::int64_t head) const noexcept {
  const Sequence* sequence = Find(id);
  MANYHEAD_DCHECK(sequence != nullptr && head >= 0 && head < layers_[layer].num_kv_heads);
  const HeadTable& table = sequence->heads[layers_[layer].first_head + head];
  return {&layers_[layer].layout, table.pages.data(), sequence->length};
}

void KvCache::Impl::WriteOn(Worker& worker, SequenceId id, std::int64_t layer,
                            std::int64_t position, std::int64_t count, const float* k,
                            const float* v, std::int64_t k_stride, std::int64_t v_stride) noexcept {
  const Sequence* sequence = Find(id);
  MANYHEAD_DCHECK(sequence != nullptr && position >= 0 && position + count <= sequence->length);
  const kernels::KvPageLayout& layout = layers_[layer].layout;
  const std::int64_t heads = layers_[layer].num_kv_heads;
  const std::int64_t page_size = layout.page_size;
  const std::int64_t first_page = position / page_size;
  const std::int64_t items = count == 0 ? 0 : heads * (PagesFor(position + count) - first_page);
  // Items are alike, so a fixed share each needs no counter; neighbours are heads of one block,
  // whose input rows lie side by side.
  for (std::int64_t i = worker.index(); i < items; i += worker.count()) {
    const std::int64_t head = i % heads, page = first_page + i / heads;
    const std::int64_t begin = std::max(position, page * page_size);
    const std::int64_t end = std::min(position + count, (page + 1) * page_size);
    kernels_->store_rows(layout, sequence->heads[layers_[layer].first_head + head].pages[page],
                         begin - page * page_size, end - begin,
                         k + (begin - position) * k_stride + head * layout.head_dim, k_stride,
                         v + (begin - position) * v_stride + head * layout.head_dim_v, v_stride);
  }
  worker.Barrier();
}

void KvCache::Impl::ReadRow(SequenceId id, std::int64_t layer, std::int64_t head,
                            std::int64_t position, float* k, float* v) const noexcept {
  const kernels::KvHeadView view = HeadView(id, layer, head);
  const std::int64_t page_size = view.layout->page_size;
  kernels_->load_row(*view.layout, view.pages[position / page_size], position % page_size, k, v);
}

Result<SequenceId> KvCache::Impl::CreateSequence() {
  Sequence sequence;
  sequence.heads.resize(head_pages_.size());
  for (HeadTable& table : sequence.heads)
    table.pages.reserve(
        static_cast<std::size_t>(std::min(kFirstTablePages, PagesFor(params_.max_tokens))));
  if (free_slots_.empty()) {
    if (slots_.size() == kMaxSlots) {
      std::ostringstream message;
      message << "KvCache::CreateSequence: " << slots_.size() << " sequences; at most "
              << kMaxSlots;
      return Status(StatusCode::kUnsupported, message.str());
    }
    if (slots_.size() == slots_.capacity()) {
      const std::size_t grown = std::max<std::size_t>(8, 2 * slots_.size());
      free_slots_.reserve(grown);  // for FreeSequence, which must not fail
      slots_.reserve(grown);
    }
    slots_.push_back({0, std::move(sequence)});
    return MakeId(static_cast<std::uint32_t>(slots_.size() - 1), 0);
  }
  const std::uint32_t slot = free_slots_.back();
  free_slots_.pop_back();
  slots_[slot].sequence = std::move(sequence);
  return MakeId(slot, slots_[slot].generation);
}

void KvCache::Impl::FreeSequence(SequenceId id) noexcept {
  Truncate(id, 0);
  const std::uint32_t slot = static_cast<std::uint32_t>(id) & (kMaxSlots - 1);
  slots_[slot].sequence = Sequence();
  if (slots_[slot].generation == kMaxGeneration) return;
  ++slots_[slot].generation;
  free_slots_.push_back(slot);
}

Status KvCache::Impl::CheckRoom(const Sequence& sequence, std::int64_t count) const {
  std::ostringstream message;
  if (count > params_.max_tokens - sequence.length) {
    message << "KvCache::Reserve: " << sequence.length << " + " << count
            << " tokens; max_tokens = " << params_.max_tokens;
    return Status(StatusCode::kOutOfPages, message.str());
  }
  const std::int64_t added = PagesFor(sequence.length + count) - PagesFor(sequence.length);
  if (added > pool_.free_bytes() / page_row_bytes_) {
    message << "KvCache::Reserve: " << sequence.length << " + " << count << " tokens need " << added
            << " more pages of each head, " << page_row_bytes_ << " bytes for one of each; "
            << pool_.free_bytes() << " of capacity_bytes = " << pool_.capacity_bytes()
            << " are free";
    return Status(StatusCode::kOutOfPages, message.str());
  }
  return Status();
}

Status KvCache::Impl::Reserve(SequenceId id, std::int64_t count) {
  Sequence& sequence = *Find(id);
  if (Status status = CheckRoom(sequence, count); !status.ok()) return status;
  const std::size_t pages = static_cast<std::size_t>(PagesFor(sequence.length + count));
  const std::int64_t added = PagesFor(sequence.length + count) - PagesFor(sequence.length);
  if (added > 0) {
    // All that can throw comes first, so that it leaves every table and count as it was.
    for (HeadTable& table : sequence.heads)
      if (table.pages.capacity() < pages)
        table.pages.reserve(std::max(pages, 2 * table.pages.capacity()));
    for (std::size_t a = 0; a < arena_heads_.size(); ++a)
      pool_.Prepare(a, static_cast<std::int64_t>(arena_heads_[a]) * added);
    // Head by head: the pages of a prompt are neighbours, which streams better than every n-th.
    ForEachHead(sequence, [&](const Layer& layer, std::size_t, std::int64_t h, HeadTable& table) {
      while (table.pages.size() < pages) table.pages.push_back(pool_.Take(layer.arena));
      head_pages_[layer.first_head + h] += added;
    });
  }
  sequence.length += count;
  return Status();
}

void KvCache::Impl::ShrinkTo(Sequence& sequence, std::int64_t pages) noexcept {
  const std::size_t kept = static_cast<std::size_t>(pages);
  ForEachHead(sequence, [&](const Layer& layer, std::size_t, std::int64_t h, HeadTable& table) {
    head_pages_[layer.first_head + h] -= static_cast<std::int64_t>(table.pages.size() - kept);
    for (; table.pages.size() > kept; table.pages.pop_back())
      pool_.Give(layer.arena, table.pages.back());
  });
  pool_.Trim();
}

void KvCache::Impl::Truncate(SequenceId id, std::int64_t length) noexcept {
  Sequence& sequence = *Find(id);
  MANYHEAD_DCHECK(length >= 0 && length <= sequence.length);
  if (PagesFor(length) < PagesFor(sequence.length)) ShrinkTo(sequence, PagesFor(length));
  sequence.length = length;
}

KvUsage KvCache::Impl::Usage() const {
  KvUsage usage{pool_.capacity_bytes(), pool_.used_bytes(), {}};
  for (const Layer& layer : layers_) {
    usage.head_bytes.emplace_back();
    for (std::int64_t h = 0; h < layer.num_kv_heads; ++h)
      usage.head_bytes.back().push_back(head_pages_[layer.first_head + h] *
                                        layer.layout.page_bytes);
  }
  return usage;
}

KvUsage KvCache::Impl::Usage(SequenceId id) const {
  KvUsage usage{pool_.capacity_bytes(), 0, std::vector<std::vector<std::int64_t>>(layers_.size())};
  ForEachHead(*Find(id),
              [&](const Layer& layer, std::size_t l, std::int64_t, const HeadTable& table) {
                const std::int64_t bytes =
                    static_cast<std::int64_t>(table.pages.size()) * layer.layout.page_bytes;
                usage.head_bytes[l].push_back(bytes);
                usage.used_bytes += bytes;
              });
  return usage;
}

}  // namespace manyhead
