#include <algorithm>
#include <map>

#include "runtime/cache/kv_head.h"
#include "runtime/cache/kv_resolve.h"
#include "runtime/cache/page_pool.h"
#include "runtime/cache/table_bytes.h"
#include "runtime/platform/errors.h"
#include "runtime/platform/math.h"

/// Computes the bytes of a cache before it is created.

namespace manyhead {
namespace {

/// Returns the largest number of pages that a head holds of a sequence which grows to `tokens`
/// tokens in steps of up to `step`: those of a step, and those kept before it.
std::int64_t MostPages(const KvHead& head, std::int64_t tokens, std::int64_t step) noexcept {
  const std::int64_t all = head.PagesFor(tokens), page = head.layout.page_size;
  if (head.off()) return 0;
  if (head.scored()) return std::min(all, CeilDiv(head.params.policy.budget + step, page));
  if (head.kept == kernels::kSeesAll) return all;
  // The number of pages kept at length L repeats with L once the window has left the sinks; before
  // that it grows with L. So the maximum is among the last page's lengths.
  const std::int64_t last = tokens - step;
  std::int64_t most = 0;
  for (std::int64_t length = std::max<std::int64_t>(0, last - page); length <= last; ++length) {
    const std::int64_t first = CeilDiv(head.sink, page);
    const std::int64_t evicted = std::max<std::int64_t>(0, (length - head.kept + 1) / page - first);
    most = std::max(most, head.PagesFor(length + step) - evicted);
  }
  return most;
}

/// Returns the largest number of gaps that the head's table needs room for.
std::int64_t MostGaps(const KvHead& head, std::int64_t tokens, std::int64_t pages) noexcept {
  if (head.off()) return 0;
  // A budget may keep every other page, and evict as many at once.
  if (head.scored()) return 2 * std::min(pages, head.PagesFor(tokens));
  // A window has one gap, which is extended by one that adjoins it.
  const std::int64_t sinks = CeilDiv(head.sink, head.layout.page_size);
  return (tokens - head.kept) / head.layout.page_size > sinks ? 2 : 0;
}

/// Adds to a sum of bytes; returns false once it would exceed 2^63 - 1.
class ByteSum {
 public:
  void Add(std::int64_t count, std::int64_t bytes) noexcept {
    std::int64_t product = 0;
    overflow_ |= __builtin_mul_overflow(count, bytes, &product) ||
                 __builtin_add_overflow(sum_, product, &sum_);
  }
  bool overflow() const noexcept { return overflow_; }
  std::int64_t sum() const noexcept { return sum_; }

 private:
  std::int64_t sum_ = 0;
  bool overflow_ = false;
};

}  // namespace

Result<std::int64_t> KvCapacityBytes(const KvCacheParams& params, std::int64_t sequences,
                                     std::int64_t tokens, std::int64_t step) {
  constexpr const char* kName = "KvCapacityBytes";
  const Result<KvCacheParams> resolved = ResolveKvShapes(params, kName);
  if (!resolved.ok()) return resolved.status();
  if (sequences < 1 || tokens < 1)
    return InvalidArgument(kName, "sequences = ", sequences, ", tokens = ", tokens,
                           "; expected 1 or more of each");
  if (step < 0) return InvalidArgument(kName, "step = ", step, "; expected 0 or more");
  step = step == 0 ? tokens : std::min(step, tokens);
  ByteSum bytes;
  std::map<std::int64_t, ByteSum> arena_pages;  // keyed by the bytes of a page
  std::int64_t num_heads = 0;
  for (std::size_t l = 0; l < resolved->layers.size(); ++l)
    for (const KvHeadParams& head_params : resolved->heads[l]) {
      const KvHead head = MakeKvHead(resolved->layers[l], head_params, resolved->page_size);
      const std::int64_t pages = MostPages(head, tokens, step);
      const std::int64_t gaps = MostGaps(head, tokens, pages);
      bytes.Add(sequences, head.TableBytes(head.RoomForPages(head.PagesFor(tokens)),
                                           KvHead::RoomForGaps(gaps)));
      arena_pages[head.layout.page_bytes].Add(sequences, pages);
      ++num_heads;
    }
  bytes.Add(sequences, SequenceTableBytes(num_heads));
  bytes.Add(1, SlotTableBytes(sequences));
  bytes.Add(1, FixedTableBytes(*resolved));
  bool overflow = bytes.overflow();
  for (const auto& [page_bytes, pages] : arena_pages) {
    bytes.Add(pages.sum(), page_bytes);
    overflow |= pages.overflow() || bytes.overflow();
    if (!overflow) bytes.Add(1, PageArena::ListBytes(pages.sum()));
  }
  if (overflow || bytes.overflow())
    return InvalidArgument(kName, "sequences = ", sequences, ", tokens = ", tokens,
                           " need more than 2^63 - 1 bytes");
  return bytes.sum();
}

}  // namespace manyhead
