#include <algorithm>
#include <utility>

#include "runtime/cache/kv_cache_impl.h"
#include "runtime/cache/page_layout.h"
#include "runtime/platform/dcheck.h"
#include "runtime/platform/errors.h"

/// How sequences come, go and share pages.

namespace manyhead {
namespace {

// An id is a slot and how often the slot was used before, so that a freed id stays invalid. A slot
// whose generations are used up is not used again.
constexpr int kSlotBits = 20;
constexpr std::uint32_t kMaxSlots = 1U << kSlotBits;
constexpr std::uint32_t kMaxGeneration = (1U << (31 - kSlotBits)) - 1;
constexpr std::int64_t kFirstSlots = 8;

}  // namespace

std::int64_t KvCache::Impl::SlotBytes(std::int64_t sequences) noexcept {
  // A freed slot's number needs a place too. There are never more slots, whoever asks.
  return RoomFor(std::min<std::int64_t>(sequences, kMaxSlots), kFirstSlots) *
         static_cast<std::int64_t>(sizeof(Slot) + sizeof(std::uint32_t));
}

const KvCache::Impl::Sequence* KvCache::Impl::Find(SequenceId id) const noexcept {
  if (static_cast<std::int32_t>(id) < 0) return nullptr;
  const std::uint32_t bits = static_cast<std::uint32_t>(id), slot = bits & (kMaxSlots - 1);
  if (slot >= slots_.size() || slots_[slot].generation != bits >> kSlotBits) return nullptr;
  return slots_[slot].sequence.heads == nullptr ? nullptr : &slots_[slot].sequence;
}

KvCache::Impl::Sequence* KvCache::Impl::Find(SequenceId id) noexcept {
  return const_cast<Sequence*>(std::as_const(*this).Find(id));
}

bool KvCache::Impl::NeedsSlots(std::int64_t count) const noexcept {
  const auto unused = static_cast<std::int64_t>(slots_.capacity() - slots_.size());
  return count > unused + static_cast<std::int64_t>(free_slots_.size());
}

std::int64_t KvCache::Impl::SlotsWith(std::int64_t count) const noexcept {
  const auto reused = std::min(count, static_cast<std::int64_t>(free_slots_.size()));
  return static_cast<std::int64_t>(slots_.size()) + count - reused;
}

Status KvCache::Impl::PlanSlots(Change& change, std::int64_t count) const {
  if (SlotsWith(count) > kMaxSlots)
    return Unsupported(change.function, slots_.size(), " + ", count, " sequences; at most ",
                       kMaxSlots);
  if (NeedsSlots(count)) change.table_bytes += SlotBytes(SlotsWith(count)) - slot_bytes_;
  return Status();
}

KvCache::Impl::SlotRoom KvCache::Impl::MakeSlots(std::int64_t count) const {
  SlotRoom room;
  if (!NeedsSlots(count)) return room;
  const auto grown = static_cast<std::size_t>(RoomFor(SlotsWith(count), kFirstSlots));
  room.free_slots.reserve(grown);  // for FreeSequence, which must not fail
  room.slots.reserve(grown);
  return room;
}

void KvCache::Impl::PutSlots(SlotRoom room) noexcept {
  if (room.slots.capacity() == 0) return;
  for (Slot& slot : slots_) room.slots.push_back(std::move(slot));
  for (const std::uint32_t slot : free_slots_) room.free_slots.push_back(slot);
  slots_.swap(room.slots);
  free_slots_.swap(room.free_slots);
  slot_bytes_ = SlotBytes(static_cast<std::int64_t>(slots_.capacity()));
}

SequenceId KvCache::Impl::IdOf(std::uint32_t slot) const noexcept {
  return static_cast<SequenceId>(slots_[slot].generation << kSlotBits | slot);
}

SequenceId KvCache::Impl::PutSequence(Sequence sequence) noexcept {
  if (free_slots_.empty()) {
    slots_.push_back({0, std::move(sequence)});
    return IdOf(static_cast<std::uint32_t>(slots_.size() - 1));
  }
  const std::uint32_t slot = free_slots_.back();
  free_slots_.pop_back();
  slots_[slot].sequence = std::move(sequence);
  return IdOf(slot);
}

Result<SequenceId> KvCache::Impl::CreateSequence(const char* function, const Sequence* like) {
  const auto for_each_head = [&](auto&& fn) {
    for (std::size_t head = 0; head < heads_.size(); ++head)
      fn(head, like == nullptr ? 0 : like->heads[head].pages.size(),
         like == nullptr ? 0 : like->heads[head].holes.size());
  };
  std::int64_t bytes = SequenceBytes(static_cast<std::int64_t>(heads_.size()));
  for_each_head([&](std::size_t head, std::int64_t pages, std::int64_t holes) {
    bytes += heads_[head].NewTableBytes(pages, holes);
  });
  Change change = Begin(function);
  change.table_bytes = bytes;
  if (Status status = PlanSlots(change, 1); !status.ok()) return status;
  if (Status status = Admit(change); !status.ok()) return status;
  Sequence sequence;
  sequence.heads = std::make_unique<HeadTable[]>(heads_.size());
  for_each_head([&](std::size_t head, std::int64_t pages, std::int64_t holes) {
    sequence.heads[head] = MakeHeadTable(heads_[head], pages, holes);
  });
  PutSlots(MakeSlots(1));
  sequence_bytes_ += bytes;
  return PutSequence(std::move(sequence));
}

Result<SequenceId> KvCache::Impl::CreateSequence() {
  return CreateSequence("KvCache::CreateSequence", nullptr);
}

void KvCache::Impl::FreeSequence(SequenceId id) noexcept {
  Truncate(id, 0);
  const std::uint32_t slot = static_cast<std::uint32_t>(id) & (kMaxSlots - 1);
  Sequence& sequence = slots_[slot].sequence;
  sequence_bytes_ -= SequenceBytes(static_cast<std::int64_t>(heads_.size()));
  for (std::size_t head = 0; head < heads_.size(); ++head)
    sequence_bytes_ -= sequence.heads[head].bytes();
  sequence = Sequence();
  if (slots_[slot].generation == kMaxGeneration) return;
  ++slots_[slot].generation;
  free_slots_.push_back(slot);
}

void KvCache::Impl::TurnOff(std::int64_t layer, std::int64_t index) noexcept {
  const std::size_t head = HeadIndex(layer, index);
  KvHead& info = heads_[head];
  if (info.off()) return;
  for (Slot& slot : slots_) {
    if (slot.sequence.heads == nullptr) continue;
    HeadTable& table = slot.sequence.heads[head];
    for (std::byte* page : table.pages)
      if (page != nullptr) Give(head, page);
    sequence_bytes_ -= table.bytes();
    table = HeadTable();
  }
  pool_.Trim();
  page_row_bytes_ -= KvRowBytes(info, params_.page_size);
  params_.heads[static_cast<std::size_t>(layer)][static_cast<std::size_t>(index)].policy =
      KvPolicy::Off();
  const std::size_t arena = info.arena;
  info = MakeKvHead(params_.layers[static_cast<std::size_t>(layer)],
                    params_.heads[static_cast<std::size_t>(layer)][static_cast<std::size_t>(index)],
                    params_.page_size);
  info.arena = arena;  // of no page any more
}

Result<SequenceId> KvCache::Impl::Fork(SequenceId id) {
  const Result<SequenceId> made = CreateSequence("KvCache::Fork", Find(id));
  if (!made.ok()) return made.status();
  const Sequence& from = *Find(id);
  Sequence& fork = *Find(*made);
  fork.length = from.length;
  fork.first_query = from.first_query;
  for (std::size_t head = 0; head < heads_.size(); ++head) {
    HeadTable& table = fork.heads[head];
    table.pages.Assign(from.heads[head].pages);
    table.scores.Assign(from.heads[head].scores);
    table.holes.Assign(from.heads[head].holes);
    for (std::byte* page : table.pages)
      if (page != nullptr) pool_.Share(heads_[head].arena, page);
  }
  return *made;
}

void KvCache::Impl::GiveEmpty(std::size_t head, HeadTable& table, std::int64_t first,
                              std::int64_t last, std::int64_t length) noexcept {
  const std::int64_t page_size = heads_[head].layout.page_size;
  for (std::int64_t p = first; p < last; ++p) {
    if (table.pages[p] == nullptr ||
        table.HeldIn(p * page_size, std::min(length, (p + 1) * page_size)) > 0)
      continue;
    Give(head, table.pages[p]);
    table.pages[p] = nullptr;
  }
}

std::int64_t KvCache::Impl::ExactLength(SequenceId id, std::int64_t length) const noexcept {
  const Sequence& sequence = *Find(id);
  for (std::int64_t before = -1; before != length;) {
    before = length;
    for (std::size_t head = 0; head < heads_.size(); ++head)
      length = ExactLengthOf(heads_[head], sequence.heads[head], sequence.length, length);
  }
  return length;
}

bool KvCache::Impl::Truncate(SequenceId id, std::int64_t length) noexcept {
  Sequence& sequence = *Find(id);
  MANYHEAD_DCHECK(length >= 0 && length <= sequence.length);
  const bool exact = ExactLength(id, length) == length;
  for (std::size_t head = 0; head < heads_.size(); ++head) {
    HeadTable& table = sequence.heads[head];
    const std::int64_t kept = heads_[head].PagesFor(length);
    for (; table.pages.size() > kept; table.pages.Pop())
      if (table.pages.back() != nullptr) Give(head, table.pages.back());
    table.CutHoles(length);
    if (heads_[head].scored()) table.scores.Shorten(kept);
    if (kept > 0) GiveEmpty(head, table, kept - 1, kept, length);
  }
  pool_.Trim();
  sequence.length = length;
  sequence.first_query = std::min(sequence.first_query, length);
  return exact;
}

void KvCache::Impl::PlanDrop(Change& change, std::size_t head, const Sequence& sequence,
                             std::int64_t begin, std::int64_t end) {
  const HeadTable& table = sequence.heads[head];
  const std::int64_t page_size = heads_[head].layout.page_size;
  std::int64_t freed = 0;
  for (std::int64_t p = begin / page_size; p < heads_[head].PagesFor(end); ++p) {
    const std::int64_t first = p * page_size, last = std::min(sequence.length, first + page_size);
    const std::int64_t dropped = table.HeldIn(std::max(begin, first), std::min(end, last));
    freed += IsOwn(head, table.pages[p]) && table.HeldIn(first, last) == dropped;
  }
  PlanPages(change, head, -freed);
  PlanRoom(change, head, table, 0, table.holes.size() + 1);
}

Status KvCache::Impl::Drop(SequenceId id, std::int64_t begin, std::int64_t end) {
  if (begin == end) return Status();
  Sequence& sequence = *Find(id);
  Change change = Begin("KvCache::Drop");
  for (std::size_t head = 0; head < heads_.size(); ++head)
    if (!heads_[head].off()) PlanDrop(change, head, sequence, begin, end);
  if (Status status = Admit(change); !status.ok()) return status;
  PutTables(change, sequence);
  for (std::size_t head = 0; head < heads_.size(); ++head) {
    if (heads_[head].off()) continue;
    HeadTable& table = sequence.heads[head];
    table.AddHole(begin, end);
    GiveEmpty(head, table, begin / heads_[head].layout.page_size, heads_[head].PagesFor(end),
              sequence.length);
  }
  pool_.Trim();
  return Status();
}

}  // namespace manyhead
