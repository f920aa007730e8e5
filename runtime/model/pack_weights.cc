#include <algorithm>
#include <cstdint>
#include <span>

#include "runtime/linear/pack.h"
#include "runtime/model/weights.h"
#include "runtime/platform/math.h"
#include "runtime/platform/team.h"

namespace manyhead {
namespace {

/// Bytes of a matrix that are packed before the file's pages under them are released.
constexpr std::int64_t kChunkBytes = std::int64_t{4} << 20;

/// Returns every matrix that products read. An embedding that is not also the output matrix is only
/// used for look-ups.
std::vector<WeightView*> Matrices(ModelWeights& weights) {
  std::vector<WeightView*> matrices;
  for (LayerWeights& w : weights.layers)
    for (WeightView* matrix : {&w.query, &w.key, &w.value, &w.output, &w.gate, &w.up, &w.down})
      matrices.push_back(matrix);
  matrices.push_back(&weights.head);
  matrices.erase(std::remove_if(matrices.begin(), matrices.end(),
                                [](const WeightView* matrix) { return !CanPack(*matrix); }),
                 matrices.end());
  return matrices;
}

std::int64_t PackedBytes(const WeightView& weight) {
  return PackedGroups(weight) * PackedGroupBytes(weight);
}

/// Drops what was read from memory, wherever it lies.
void ReleasePages(const Checkpoint& file, ReservedMemory& rewritten,
                  std::span<const std::byte> part) {
  const std::uintptr_t begin = reinterpret_cast<std::uintptr_t>(part.data()),
                       first = reinterpret_cast<std::uintptr_t>(rewritten.data());
  const std::uintptr_t bytes = static_cast<std::uintptr_t>(rewritten.bytes());
  if (begin < first || begin - first >= bytes) return file.ReleasePages(part);
  const auto offset = static_cast<std::int64_t>(begin - first);
  rewritten.Release(offset, offset + static_cast<std::int64_t>(part.size()));
}

void PackMatrix(Worker& worker, const Checkpoint& file, ReservedMemory& rewritten,
                const WeightView& weight, std::byte* out) {
  const std::int64_t group_bytes = PackedGroupBytes(weight), groups = PackedGroups(weight);
  const std::int64_t at_once = std::max<std::int64_t>(1, kChunkBytes / group_bytes);
  worker.ForEach(CeilDiv(groups, at_once), [&](std::int64_t chunk) {
    const std::int64_t begin = chunk * at_once, end = std::min(groups, begin + at_once);
    for (std::int64_t group = begin; group < end; ++group)
      PackGroup(weight, group, out + group * group_bytes);
    const std::int64_t bytes =
        std::min(end * group_bytes, weight.rows * WeightRowBytes(weight)) - begin * group_bytes;
    ReleasePages(file, rewritten,
                 {weight.data + begin * group_bytes, static_cast<std::size_t>(bytes)});
  });
}

}  // namespace

Result<ReservedMemory> PackWeights(const Checkpoint& file, ReservedMemory& rewritten,
                                   ModelWeights& weights, int threads) {
  const std::vector<WeightView*> matrices = Matrices(weights);
  std::int64_t bytes = 0;
  for (const WeightView* matrix : matrices) bytes += PackedBytes(*matrix);
  std::optional<ReservedMemory> memory = ReservedMemory::Reserve(bytes);
  if (!memory)
    return Status(StatusCode::kUnsupported,
                  "the operating system does not give " + std::to_string(bytes) +
                      " bytes for packed weights; WeightStorage::kMapped needs none");
  memory->PreferHugePages();
  RunTeam(threads, [&](Worker& worker) {
    std::byte* out = memory->data();
    for (const WeightView* matrix : matrices) {
      PackMatrix(worker, file, rewritten, *matrix, out);
      out += PackedBytes(*matrix);
    }
  });
  const bool tied = weights.embedding.data == weights.head.data;
  std::byte* at = memory->data();
  for (WeightView* matrix : matrices) {
    const std::int64_t size = PackedBytes(*matrix);
    matrix->data = at;
    matrix->packed = true;
    at += size;
  }
  // Look-ups use the same copy: the pages of the file would become resident again row by row.
  if (tied) weights.embedding = weights.head;
  return *std::move(memory);
}

}  // namespace manyhead
