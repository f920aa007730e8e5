#include <algorithm>
#include <functional>

#include "manyhead/memory.h"
#include "runtime/memory/shape_spec.h"
#include "runtime/platform/errors.h"

namespace manyhead {
namespace {

constexpr std::int64_t kMostBatch = std::int64_t{1} << 20;  // limit of PlanMemory

/// Returns the greatest n in [1, most] whose plan takes at most `bytes`, or 0. A plan grows with n.
Result<std::int64_t> Largest(std::int64_t most, std::int64_t bytes,
                             const std::function<Result<MemoryPlan>(std::int64_t)>& plan) {
  // A plan that overflows does not fit; a wrong shape or option, however, also fails at 1.
  const Result<MemoryPlan> one = plan(1);
  if (!one.ok()) return one.status();
  std::int64_t fits = 0, high = most;
  while (fits < high) {
    const std::int64_t middle = fits + (high - fits + 1) / 2;
    const Result<MemoryPlan> planned = plan(middle);
    if (planned.ok() && planned->total_bytes <= bytes) {
      fits = middle;
    } else {
      high = middle - 1;
    }
  }
  return fits;
}

Status CheckBytes(const char* name, std::int64_t bytes) {
  if (bytes >= 1) return {};
  return OutOfRange(name, "bytes", bytes, 1, INT64_MAX);
}

}  // namespace

Result<std::int64_t> LargestContext(const ModelShape& shape, const MemoryOptions& options,
                                    std::int64_t bytes) {
  if (Status status = CheckBytes("LargestContext", bytes); !status.ok()) return status;
  const std::int64_t most = shape.config.positions == PositionKind::kLearned
                                ? std::min(shape.config.num_positions, kMaxShapeContext)
                                : kMaxShapeContext;
  return Largest(most, bytes, [&](std::int64_t context) {
    MemoryOptions wanted = options;
    wanted.session.context = context;
    return PlanMemory(shape, wanted);
  });
}

Result<std::int64_t> LargestBatch(const ModelShape& shape, const MemoryOptions& options,
                                  std::int64_t bytes) {
  if (Status status = CheckBytes("LargestBatch", bytes); !status.ok()) return status;
  return Largest(kMostBatch, bytes, [&](std::int64_t batch) {
    MemoryOptions wanted = options;
    wanted.batch = batch;
    return PlanMemory(shape, wanted);
  });
}

}  // namespace manyhead
