#include "tests/cache/kv_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "runtime/cache/kv_cache_impl.h"
#include "tests/cache/cache_testing.h"

namespace manyhead::testing {
namespace {

using State = ModelToken::State;

std::int64_t CeilDiv(std::int64_t n, std::int64_t by) { return (n + by - 1) / by; }

}  // namespace

std::int64_t ModelHead::HeldIn(std::int64_t begin, std::int64_t end) const {
  std::int64_t held = 0;
  for (std::int64_t s = begin; s < end; ++s) held += Held(s);
  return held;
}

std::int64_t ModelHead::Gaps() const {
  std::int64_t gaps = 0;
  for (std::size_t s = 0; s < tokens.size(); ++s)
    gaps +=
        !Held(static_cast<std::int64_t>(s)) && (s == 0 || Held(static_cast<std::int64_t>(s) - 1));
  return gaps;
}

KvModel::KvModel(KvCache cache, unsigned seed, Caller caller)
    : cache_(std::move(cache)), caller_(std::move(caller)), random_(seed) {
  std::vector<std::int64_t> sizes;
  const KvCacheParams& params = cache_.params();
  for (std::size_t l = 0; l < params.layers.size(); ++l)
    for (std::size_t h = 0; h < params.heads[l].size(); ++h) {
      HeadInfo info;
      info.layer = static_cast<std::int64_t>(l);
      info.head = static_cast<std::int64_t>(h);
      info.shape = params.layers[l];
      info.params = params.heads[l][h];
      info.page_size = info.scored() ? 16 : params.page_size;
      info.page_bytes = cache_.impl().Head(info.layer, info.head).layout.page_bytes;
      const auto size = std::find(sizes.begin(), sizes.end(), info.page_bytes);
      info.size_class = static_cast<std::size_t>(size - sizes.begin());
      if (size == sizes.end()) sizes.push_back(info.page_bytes);
      heads_.push_back(info);
    }
  num_size_classes_ = sizes.size();
  state_.most_pages.resize(sizes.size(), 0);
}

SequenceId KvModel::AnyId() {
  auto at = state_.sequences.begin();
  std::advance(at, Below(static_cast<std::int64_t>(state_.sequences.size())));
  return at->first;
}

void KvModel::Step() {
  const std::uint32_t choice = Below(100);
  const bool few = state_.sequences.size() < 10;
  if (state_.sequences.empty() || (choice < 6 && few)) {
    Create();
  } else if (choice < 12 && few) {
    Fork();
  } else if (choice < 60) {
    Append(choice < 40 ? 1 : Below(40));
  } else if (choice < 65) {
    Evict();
  } else if (choice < 75) {
    Truncate();
  } else if (choice < 80) {
    Drop();
  } else if (choice < 87) {
    Copy();
  } else if (choice < 91) {
    Rewrite();
  } else if (choice < 92) {
    Save();
  } else if (choice < 93) {
    Restore();
  } else {
    Free(AnyId());
  }
  CheckUsage();
}

bool KvModel::IsShared(const ModelState& state, std::size_t index, int page) const {
  int holders = 0;
  for (const auto& [id, sequence] : state.sequences) {
    const std::vector<int>& pages = sequence.heads[index].pages;
    holders += std::count(pages.begin(), pages.end(), page) > 0;
  }
  return holders > 1;
}

ModelSequence KvModel::Empty() const {
  ModelSequence sequence;
  sequence.heads.resize(heads_.size());
  for (std::size_t i = 0; i < heads_.size(); ++i)
    sequence.heads[i].pages_room = heads_[i].off() ? 0 : 64;
  return sequence;
}

void KvModel::Settle(ModelState next, const Status& status) {
  NoteMost(next);
  const bool fits = Fits(next);
  ASSERT_EQ(status.ok(), fits) << status.message();
  ++(fits ? successes_ : refusals_);
  if (fits) {
    state_ = std::move(next);
  } else {
    ASSERT_EQ(status.code(), StatusCode::kOutOfPages) << status.message();
  }
}

void KvModel::Add(ModelState& next, const std::vector<SequenceId>& ids,
                  const std::vector<ModelSequence>& sequences) {
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    const SequenceId id = ids.empty() ? SequenceId{-1 - static_cast<int>(i)} : ids[i];
    ASSERT_TRUE(next.sequences.try_emplace(id, sequences[i]).second) << "an id that is in use";
  }
  next.most_sequences = std::max(next.most_sequences,
                                 static_cast<std::int64_t>(next.sequences.size()) + next.retired);
}

void KvModel::Create() {
  Result<SequenceId> id = Status();
  caller_([&] { id = cache_.CreateSequence(); });
  ModelState next = state_;
  Add(next, id.ok() ? std::vector{*id} : std::vector<SequenceId>(), {Empty()});
  Settle(std::move(next), id.status());
}

ModelSequence KvModel::Fitted(ModelSequence from) const {
  for (std::size_t i = 0; i < heads_.size(); ++i) {
    ModelHead& head = from.heads[i];
    head.pages_room = head.gaps_room = 0;
    GrowRooms(heads_[i], head, static_cast<std::int64_t>(head.pages.size()), head.Gaps());
  }
  return from;
}

void KvModel::Fork() {
  const SequenceId from = AnyId();
  Result<SequenceId> id = Status();
  caller_([&] { id = cache_.Fork(from); });
  ModelState next = state_;
  Add(next, id.ok() ? std::vector{*id} : std::vector<SequenceId>(),
      {Fitted(state_.sequences[from])});
  Settle(std::move(next), id.status());
}

/// Whether anything went.
bool KvModel::EvictHead(const HeadInfo& info, ModelHead& head, std::int64_t length) {
  const KvPolicy& policy = info.params.policy;
  const std::int64_t N = info.page_size, gaps = head.Gaps();
  const auto evict = [&](std::int64_t p) {
    for (std::int64_t s = p * N; s < (p + 1) * N; ++s)
      if (head.Held(s)) head.tokens[s].state = State::kEvicted;
    head.pages[p] = -1;
  };
  if (policy.kind == KvPolicyKind::kWindow || policy.kind == KvPolicyKind::kSinkRecent) {
    std::int64_t first = CeilDiv(policy.sink, N);
    std::int64_t gone = first * N;
    while (gone < length && !head.Held(gone)) ++gone;
    if (first * N < length) first = std::max(first, gone / N);
    const std::int64_t last = (length - policy.recent - policy.margin + 1) / N;
    for (std::int64_t p = first; p < last; ++p) evict(p);
    GrowRooms(info, head, 0, first < last ? gaps + 1 : 0);
    return first < last;
  }
  if (!info.scored()) return false;
  std::int64_t evicted = 0;
  while (head.HeldIn(0, length) > policy.budget) {
    std::int64_t least = -1;
    for (std::int64_t p = CeilDiv(policy.sink, N); (p + 1) * N <= length - policy.recent; ++p)
      if (head.pages[p] >= 0 && (least < 0 || head.scores[p] < head.scores[least])) least = p;
    if (least < 0) break;
    evict(least);
    ++evicted;
  }
  GrowRooms(info, head, 0, evicted > 0 ? gaps + evicted : 0);
  return evicted > 0;
}

void KvModel::TryStep(ModelState& state, ModelSequence& sequence, std::int64_t count) {
  const std::int64_t length = sequence.length;
  for (std::size_t i = 0; i < heads_.size(); ++i) {
    const HeadInfo& info = heads_[i];
    ModelHead& head = sequence.heads[i];
    if (info.off()) continue;
    if (EvictHead(info, head, length))
      sequence.first_query = std::max(sequence.first_query, length - info.params.policy.margin);
    if (count == 0) continue;
    if (length % info.page_size != 0 &&
        (head.pages.back() < 0 || IsShared(state, i, head.pages.back())))
      head.pages.back() = next_page_++;
    while (static_cast<std::int64_t>(head.pages.size()) < info.PagesFor(length + count)) {
      head.pages.push_back(next_page_++);
      head.scores.push_back(0);
    }
    for (std::int64_t s = 0; s < count; ++s)
      head.tokens.push_back({State::kHeld, next_serial_ + s});
    GrowRooms(info, head, static_cast<std::int64_t>(head.pages.size()), 0);
  }
  sequence.length += count;
}

void KvModel::Append(std::int64_t count) {
  const SequenceId id = AnyId();
  ModelState next = state_;
  ModelSequence& sequence = next.sequences[id];
  const std::int64_t begin = sequence.length;
  Status status;
  caller_([&] { status = cache_.Reserve(id, count); });
  if (count > cache_.params().max_tokens - begin) {
    ASSERT_EQ(status.code(), StatusCode::kOutOfPages);
    ++refusals_;
    return;
  }
  TryStep(next, sequence, count);
  ASSERT_NO_FATAL_FAILURE(Settle(std::move(next), status));
  if (!status.ok()) return;
  const std::vector<std::int64_t> serials = Serials(next_serial_, count);
  const std::vector<KvLayerShape>& layers = cache_.params().layers;
  for (std::size_t l = 0; l < layers.size(); ++l) {
    const Rows rows = MakeRows(layers[l], static_cast<std::int64_t>(l), serials);
    caller_([&] {
      status = cache_.Write(id, static_cast<std::int64_t>(l), begin, count, rows.k.data(),
                            rows.v.data(), rows.k_stride, rows.v_stride);
    });
    ASSERT_TRUE(status.ok()) << status.message();
  }
  next_serial_ += count;
  // This adds the scores that attention would add.
  for (std::size_t i = 0; i < heads_.size(); ++i) {
    if (!heads_[i].scored()) continue;
    const kernels::KvHeadView view = cache_.impl().HeadView(id, heads_[i].layer, heads_[i].head);
    ModelHead& head = state_.sequences[id].heads[i];
    for (std::size_t p = 0; p < head.pages.size(); ++p) {
      const std::int64_t added = Below(100);
      if (head.pages[p] < 0) continue;
      view.scores[p] += added;
      head.scores[p] += added;
    }
  }
  CheckSample(id);
}

void KvModel::Evict() {
  const SequenceId id = AnyId();
  ModelState next = state_;
  TryStep(next, next.sequences[id], 0);
  Status status;
  caller_([&] { status = cache_.Evict(id); });
  Settle(std::move(next), status);
  CheckSample(id);
}

void KvModel::ReleaseEmpty(const HeadInfo& info, ModelHead& head, std::int64_t first,
                           std::int64_t last) {
  const auto length = static_cast<std::int64_t>(head.tokens.size());
  for (std::int64_t p = first; p < last; ++p)
    if (head.HeldIn(p * info.page_size, std::min(length, (p + 1) * info.page_size)) == 0)
      head.pages[p] = -1;
}

/// Whether no query from `length` on misses what a policy would still show it.
bool KvModel::IsExact(const ModelSequence& sequence, std::int64_t length) const {
  for (std::size_t i = 0; i < heads_.size(); ++i) {
    const KvPolicy& policy = heads_[i].params.policy;
    if (heads_[i].scored() && length != sequence.length && length != 0) return false;
    if (policy.kind != KvPolicyKind::kWindow && policy.kind != KvPolicyKind::kSinkRecent) continue;
    for (std::int64_t s = 0; s < length; ++s) {
      const bool seen = s < policy.sink || s > length - policy.recent;
      if (seen && length != sequence.length && sequence.heads[i].tokens[s].state == State::kEvicted)
        return false;
    }
  }
  return true;
}

bool KvModel::HasDrops(const ModelSequence& sequence) const {
  for (const ModelHead& head : sequence.heads)
    for (const ModelToken& token : head.tokens)
      if (token.state == State::kDropped) return true;
  return false;
}

void KvModel::Truncate() {
  const SequenceId id = AnyId();
  ModelSequence& sequence = state_.sequences[id];
  const std::int64_t before = sequence.length;
  const std::int64_t length =
      Below(4) == 0 ? Below(before + 1) : before - Below(std::min<std::int64_t>(before, 9) + 1);
  std::int64_t longest = length;
  while (!IsExact(sequence, longest)) --longest;
  const std::int64_t exact_length = *cache_.ExactLength(id, length);
  Result<bool> exact = Status();
  caller_([&] { exact = cache_.Truncate(id, length); });
  ASSERT_TRUE(exact.ok());
  ASSERT_EQ(*exact, exact_length == length);
  if (HasDrops(sequence)) {
    ASSERT_TRUE(IsExact(sequence, exact_length)) << length << " " << exact_length;
  } else {
    ASSERT_EQ(exact_length, longest) << length << " of " << before;
  }
  for (std::size_t i = 0; i < heads_.size(); ++i) {
    if (heads_[i].off()) continue;
    ModelHead& head = sequence.heads[i];
    head.tokens.resize(length);
    head.pages.resize(heads_[i].PagesFor(length));
    head.scores.resize(head.pages.size());
    const auto last = static_cast<std::int64_t>(head.pages.size());
    ReleaseEmpty(heads_[i], head, std::max<std::int64_t>(0, last - 1), last);
  }
  sequence.length = length;
  sequence.first_query = std::min(sequence.first_query, length);
  CheckSample(id);
}

void KvModel::Drop() {
  const SequenceId id = AnyId();
  ModelState next = state_;
  ModelSequence& sequence = next.sequences[id];
  const std::int64_t begin = Below(sequence.length + 1);
  const std::int64_t end = begin + Below(std::min<std::int64_t>(sequence.length - begin, 40) + 1);
  Status status;
  caller_([&] { status = cache_.Drop(id, begin, end); });
  for (std::size_t i = 0; i < heads_.size() && begin < end; ++i) {
    if (heads_[i].off()) continue;
    ModelHead& head = sequence.heads[i];
    GrowRooms(heads_[i], head, 0, head.Gaps() + 1);
    for (std::int64_t s = begin; s < end; ++s) head.tokens[s].state = State::kDropped;
    ReleaseEmpty(heads_[i], head, begin / heads_[i].page_size, heads_[i].PagesFor(end));
  }
  Settle(std::move(next), status);
  CheckSample(id);
}

void KvModel::CopyHead(const ModelState& state, const HeadInfo& info, const ModelHead& from,
                       ModelHead& head, std::int64_t begin, std::int64_t end, std::size_t index) {
  const std::int64_t N = info.page_size;
  std::int64_t gaps = head.Gaps() + 1;
  for (std::int64_t s = 0; s < static_cast<std::int64_t>(from.tokens.size());) {
    const std::int64_t first = s;
    while (s < static_cast<std::int64_t>(from.tokens.size()) && !from.Held(s)) ++s;
    gaps += s > first && first < end && s > begin;
    if (s == first) ++s;
  }
  GrowRooms(info, head, info.PagesFor(end), gaps);
  const auto had = static_cast<std::int64_t>(head.pages.size());
  head.pages.resize(info.PagesFor(end), -1);
  head.scores.resize(head.pages.size(), 0);
  for (std::int64_t p = begin / N; p < info.PagesFor(end); ++p) {
    if (from.pages[p] < 0) continue;
    if (p < had && head.pages[p] >= 0) {
      if (IsShared(state, index, head.pages[p])) head.pages[p] = next_page_++;
    } else {
      head.pages[p] = from.pages[p];
      head.scores[p] = from.scores[p];
    }
  }
  head.tokens.resize(begin, {State::kDropped, 0});
  head.tokens.insert(head.tokens.end(), from.tokens.begin() + begin, from.tokens.begin() + end);
}

void KvModel::Copy() {
  const SequenceId source = AnyId(), id = AnyId();
  ModelState next = state_;
  ModelSequence& sequence = next.sequences[id];
  const ModelSequence& from = state_.sequences[source];
  if (from.length <= sequence.length) return;
  const std::int64_t begin =
      Below(2) == 0 ? sequence.length : sequence.length + Below(from.length - sequence.length + 1);
  const std::int64_t end = begin + Below(from.length - begin + 1);
  Status status;
  caller_([&] { status = cache_.Copy(source, begin, end, id); });
  if (begin < end) {
    const std::int64_t length = sequence.length;
    for (std::size_t i = 0; i < heads_.size(); ++i)
      if (!heads_[i].off())
        CopyHead(next, heads_[i], from.heads[i], sequence.heads[i], begin, end, i);
    sequence.first_query = std::min(end, std::max(sequence.first_query, from.first_query));
    sequence.length = end;
    NoteMost(next);
    const bool fits = Fits(next);  // the lists and pages are there before empty pages go
    for (std::size_t i = 0; fits && i < heads_.size(); ++i)
      if (!heads_[i].off())
        ReleaseEmpty(heads_[i], sequence.heads[i], length / heads_[i].page_size,
                     heads_[i].PagesFor(end));
  }
  Settle(std::move(next), status);
  CheckSample(id);
}

void KvModel::Rewrite() {
  const SequenceId id = AnyId();
  ModelState next = state_;
  ModelSequence& sequence = next.sequences[id];
  const std::int64_t begin = Below(sequence.length + 1);
  const std::int64_t count = Below(std::min<std::int64_t>(sequence.length - begin, 20) + 1);
  const std::int64_t layer = Below(static_cast<std::int64_t>(cache_.params().layers.size()));
  const Rows rows = MakeRows(cache_.params().layers[layer], layer, Serials(next_serial_, count));
  Status status;
  caller_([&] {
    status = cache_.Write(id, layer, begin, count, rows.k.data(), rows.v.data(), rows.k_stride,
                          rows.v_stride);
  });
  for (std::size_t i = 0; i < heads_.size(); ++i) {
    if (heads_[i].layer != layer || heads_[i].off() || count == 0) continue;
    ModelHead& head = sequence.heads[i];
    for (std::int64_t s = begin; s < begin + count; ++s)
      head.tokens[s].serial = next_serial_ + s - begin;
    for (std::int64_t p = begin / heads_[i].page_size; p < heads_[i].PagesFor(begin + count); ++p)
      if (head.pages[p] >= 0 && IsShared(state_, i, head.pages[p])) head.pages[p] = next_page_++;
  }
  Settle(std::move(next), status);
  next_serial_ += count;
  CheckSample(id);
}

void KvModel::Free(SequenceId id) {
  caller_([&] { ASSERT_TRUE(cache_.FreeSequence(id).ok()); });
  state_.sequences.erase(id);
  constexpr int kPlaceBits = 20, kLastUse = 2047;
  state_.retired += static_cast<std::int32_t>(id) >> kPlaceBits == kLastUse;
  ASSERT_EQ(cache_.length(id), -1);
}

void KvModel::FreeAll() {
  while (!state_.sequences.empty()) Free(state_.sequences.begin()->first);
  CheckUsage();
  EXPECT_EQ(cache_.usage().used_bytes, 0);
}

KvCacheParams ModelParams(std::int64_t page_size) {
  KvCacheParams params;
  params.layers = {{4, 16, 16}, {2, 5, 19}, {2, 40, 8}};
  params.heads = {{{KvType::kF16, KvType::kF16, KvPolicy::Full()},
                   {KvType::kInt8, KvType::kInt4, KvPolicy::Full()},
                   {KvType::kF32, KvType::kBf16, KvPolicy::Window(20)},
                   {KvType::kF16, KvType::kF16, KvPolicy::Off()}},
                  {{KvType::kInt4, KvType::kInt8, KvPolicy::SinkRecent(5, 33, 7)},
                   {KvType::kBf16, KvType::kF32, KvPolicy::Budget(64, 10, 3)}},
                  {{KvType::kInt8, KvType::kInt8, KvPolicy::Budget(48, 0)},
                   {KvType::kF32, KvType::kF32, KvPolicy::Full()}}};
  params.page_size = page_size;
  params.max_tokens = 200;
  params.capacity_bytes = *KvCapacityBytes(params, 4, 100);
  return params;
}

}  // namespace manyhead::testing
