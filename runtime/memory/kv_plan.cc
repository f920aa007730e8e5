#include "runtime/memory/kv_plan.h"

#include <algorithm>
#include <map>
#include <utility>

#include "runtime/cache/kv_head.h"
#include "runtime/cache/kv_resolve.h"
#include "runtime/cache/page_pool.h"
#include "runtime/cache/table_bytes.h"
#include "runtime/memory/checked.h"
#include "runtime/platform/math.h"

namespace manyhead {

Held HeldAfterEviction(const KvHead& head, std::int64_t length) noexcept {
  const std::int64_t page = head.layout.page_size;
  if (head.off()) return {};
  if (head.scored()) {
    // Whole pages are evicted until the rest is within the budget; the protected tokens always are.
    const std::int64_t over = std::max<std::int64_t>(0, length - head.params.policy.budget);
    const std::int64_t tokens = length - CeilDiv(over, page) * page;
    return {tokens, CeilDiv(tokens, page), over > 0};
  }
  if (head.kept == kernels::kSeesAll) return {length, head.PagesFor(length), false};
  const std::int64_t first = CeilDiv(head.sink, page);
  const std::int64_t gone = std::max<std::int64_t>(0, (length - head.kept + 1) / page - first);
  return {length - gone * page, head.PagesFor(length) - gone, gone > 0};
}

namespace {

/// Returns the pages after a step of `count` tokens from `length` on, before which the head evicts.
std::int64_t PagesAfterStep(const KvHead& head, std::int64_t length, std::int64_t count) noexcept {
  if (head.off()) return 0;
  return HeldAfterEviction(head, length).pages + head.PagesFor(length + count) -
         head.PagesFor(length);
}

/// Returns the number of gaps that the head's table has room for after `tokens` and a last
/// eviction.
std::int64_t GapRoom(const KvHead& head, std::int64_t tokens, std::int64_t most_pages) noexcept {
  if (!HeldAfterEviction(head, tokens).evicted) return 0;
  // A window has one gap, which is extended by one that adjoins it. A budget may keep every other
  // page, and evict as many at once.
  return KvHead::RoomForGaps(head.scored() ? 2 * std::min(most_pages, head.PagesFor(tokens)) : 2);
}

/// Heads that hold the same pages at any time, with their common values.
struct HeadClass {
  KvHead head;
  std::int64_t count = 0;
  std::int64_t most_pages = 0;
};

/// Returns the largest number of pages in use at once, by bytes of a page.
///
/// Two steps that are page_size steps apart differ only in a window's gap and in whole pages, and
/// the later one has at least as many pages of every head; so the maximum is reached after one of
/// the last page_size steps or the very last, which may be shorter.
std::map<std::int64_t, std::int64_t> MostPages(std::vector<HeadClass>& classes, std::int64_t tokens,
                                               std::int64_t step, std::int64_t page_size) {
  std::map<std::int64_t, std::int64_t> most;
  const std::int64_t steps = CeilDiv(tokens, step);
  for (std::int64_t i = std::max<std::int64_t>(0, steps - page_size - 1); i < steps; ++i) {
    std::map<std::int64_t, std::int64_t> now;
    const std::int64_t length = i * step, count = std::min(step, tokens - length);
    for (HeadClass& one : classes) {
      const std::int64_t pages = PagesAfterStep(one.head, length, count);
      one.most_pages = std::max(one.most_pages, pages);
      now[one.head.layout.page_bytes] += one.count * pages;
    }
    for (const auto& [page_bytes, pages] : now)
      most[page_bytes] = std::max(most[page_bytes], pages);
  }
  return most;
}

/// Returns the classes of the heads of all layers by layout and policy; `index` gets each head's
/// class, in order.
std::vector<HeadClass> Classify(const KvCacheParams& params, std::vector<std::size_t>& index) {
  std::vector<HeadClass> classes;
  for (std::size_t l = 0; l < params.layers.size(); ++l)
    for (const KvHeadParams& head_params : params.heads[l]) {
      const KvHead head = MakeKvHead(params.layers[l], head_params, params.page_size);
      const auto same = [&](const HeadClass& one) {
        return one.head.params == head_params &&
               one.head.layout.page_bytes == head.layout.page_bytes;
      };
      const auto found = std::find_if(classes.begin(), classes.end(), same);
      index.push_back(static_cast<std::size_t>(found - classes.begin()));
      if (found == classes.end()) classes.push_back({head});
      ++classes[index.back()].count;
    }
  return classes;
}

/// Adds the plan's bytes of each head, from its class.
void AddHeads(const KvCacheParams& params, std::int64_t sequences,
              const std::vector<HeadClass>& classes, const std::vector<std::size_t>& index,
              KvPlan& plan, CheckedMath& math) {
  std::size_t next = 0;
  std::int64_t row_bytes = 0;
  for (std::size_t l = 0; l < params.layers.size(); ++l) {
    plan.heads.emplace_back();
    for (std::size_t h = 0; h < params.heads[l].size(); ++h) {
      const KvHead& head = classes[index[next++]].head;
      const Held held = HeldAfterEviction(head, params.max_tokens);
      KvHeadBytes bytes;
      bytes.head = head;
      bytes.page_bytes = math.Product({sequences, held.pages, head.layout.page_bytes});
      bytes.tokens = held.tokens;
      const std::int64_t row = KvRowBytes(head, params.page_size);
      bytes.bytes_per_token = CeilDiv(row, params.page_size);
      row_bytes += row;
      math.Add(plan.used_bytes, bytes.page_bytes);
      plan.heads.back().push_back(bytes);
    }
  }
  plan.bytes_per_token = CeilDiv(row_bytes, params.page_size);
}

}  // namespace

Result<KvPlan> PlanKv(const KvCacheParams& params, std::int64_t sequences, std::int64_t step) {
  KvPlan plan;
  // This also checks every argument, and that nothing below exceeds 2^63 - 1.
  const Result<std::int64_t> peak = KvCapacityBytes(params, sequences, params.max_tokens, step);
  if (!peak.ok()) return peak.status();
  plan.peak_bytes = *peak;
  const Result<KvCacheParams> resolved = ResolveKvShapes(params, "PlanKv");
  if (!resolved.ok()) return resolved.status();
  const std::int64_t tokens = params.max_tokens;
  step = step == 0 ? tokens : std::min(step, tokens);

  CheckedMath math;
  std::vector<std::size_t> index;
  std::vector<HeadClass> classes = Classify(*resolved, index);
  const auto most = MostPages(classes, tokens, step, resolved->page_size);
  AddHeads(*resolved, sequences, classes, index, plan, math);
  for (const HeadClass& one : classes) {
    const std::int64_t table = one.head.TableBytes(one.head.RoomForPages(one.head.PagesFor(tokens)),
                                                   GapRoom(one.head, tokens, one.most_pages));
    math.Add(plan.table_bytes, math.Product({sequences, one.count, table}));
  }
  const auto num_heads = static_cast<std::int64_t>(index.size());
  math.Add(plan.table_bytes, math.Product({sequences, SequenceTableBytes(num_heads)}));
  math.Add(plan.table_bytes, SlotTableBytes(sequences));
  math.Add(plan.table_bytes, FixedTableBytes(*resolved));
  for (const auto& [page_bytes, pages] : most)
    math.Add(plan.table_bytes, PageArena::ListBytes(math.Product({sequences, pages})));
  if (math.overflow())
    return Status(StatusCode::kInvalidArgument,
                  "KV cache: the plan needs more than 2^63 - 1 bytes");
  return plan;
}

}  // namespace manyhead
