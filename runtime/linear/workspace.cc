#include <algorithm>
#include <new>
#include <utility>
#include <vector>

#include "manyhead/threads.h"
#include "runtime/linear/linear_impl.h"
#include "runtime/platform/dcheck.h"
#include "runtime/platform/errors.h"
#include "runtime/platform/isa.h"

namespace manyhead {
namespace {

constexpr std::int64_t kMaxSize = std::int64_t{1} << 31;
constexpr std::align_val_t kAlignment{64};

Status CheckLimits(const LinearLimits& limits) {
  constexpr const char* kName = "LinearWorkspace";
  const struct {
    const char* name;
    std::int64_t value, most;
  } sizes[] = {{"max_cols", limits.max_cols, kMaxSize},
               {"max_rows", limits.max_rows, kMaxSize},
               {"threads", limits.threads, kMaxThreads}};
  for (const auto& [name, value, most] : sizes)
    if (value < 1 || value > most)
      return InvalidArgument(kName, name, " = ", value, "; expected 1 to ", most);
  return CheckIsa(kName, limits.isa);
}

}  // namespace

namespace linear {

namespace {

/// Allocates `rows` rounded rows of max_cols, in blocks of 32 and of 256.
void AllocateQuantizedRows(const LinearLimits& limits, std::int64_t rows, BumpAllocator& allocator,
                           kernels::QuantizedRows& xq_32, kernels::QuantizedRows& xq_256) noexcept {
  const std::int64_t stride = RoundUp(limits.max_cols, 256), size = rows * stride;
  xq_32.stride = xq_256.stride = stride;
  xq_32.q = allocator.Allocate<std::int8_t>(size);
  xq_32.scales = allocator.Allocate<float>(size / 32);
  xq_32.scaled_sums = allocator.Allocate<float>(size / 32);
  xq_32.sums = allocator.Allocate<std::int32_t>(size / 32);
  xq_256.q = allocator.Allocate<std::int8_t>(size);
  xq_256.scales = allocator.Allocate<float>(size / 32);
  xq_256.half_sums = allocator.Allocate<std::int16_t>(size / 16);
  xq_256.pair_sums = allocator.Allocate<std::int16_t>(size / 16);
  xq_256.wide_sums = allocator.Allocate<std::int16_t>(size / 32);
}

}  // namespace

ThreadBuffers::ThreadBuffers(const LinearLimits& limits, BumpAllocator& allocator) noexcept {
  if (limits.math == MathMode::kFast) {
    const bool packed = KernelsFor(limits.isa).packed != nullptr;
    const std::int64_t most = packed ? SplitRows(limits.max_rows) : limits.max_rows;
    const std::int64_t few = std::min(most, kMatvecRows);
    AllocateQuantizedRows(limits, few, allocator, xq_32, xq_256);
    if (packed) {
      AllocateQuantizedRows(limits, few, allocator, tiles_32, tiles_256);
      rest = allocator.Allocate<float>(limits.max_cols);
      split_y = allocator.Allocate<float>(std::min(most, kMostSplitRows) * kSplitPanel);
    }
  }
  rows = allocator.Allocate<std::byte>(kernels::kPackedRows * MostPackableBytes(limits.max_cols));
  panel = allocator.Allocate<float>(kPanelRows * std::min(kPanelCols, limits.max_cols));
  tail_y = allocator.Allocate<float>(kGemmRows * kPanelRows);
  if (!HasTiles(limits)) return;
  tile_weights = allocator.Allocate<std::uint16_t>(kTilePanelRows * kTilePanelCols);
  tile_sums =
      allocator.Allocate<float>(kTilePanelRows * RoundUp(limits.max_rows, kernels::kTileRows));
  tile_totals = allocator.Allocate<float>(
      RoundUp(std::clamp(limits.max_rows, kMostSplitRows, kMostTileInt8Rows),
              kernels::kTileInt8Rows) *
      kernels::kTileInt8Rows);
}

SharedBuffers::SharedBuffers(const LinearLimits& limits, BumpAllocator& allocator) noexcept {
  tail_x = allocator.Allocate<float>(kGemmRows * limits.max_cols);
  if (HasTiles(limits))
    tile_x = allocator.Allocate<std::uint16_t>(RoundUp(limits.max_rows, kernels::kTileRows) *
                                               RoundUp(limits.max_cols, kernels::kTileCols));
  if (limits.math == MathMode::kExact) return;
  const bool packed = KernelsFor(limits.isa).packed != nullptr;
  const std::int64_t most = std::min(limits.max_rows, HasTiles(limits) ? kMostTileInt8Rows
                                                      : packed         ? limits.max_rows
                                                                       : kDecodeRows);
  quantized_rows = most;
  const std::int64_t split =
      packed ? SplitRows(std::min(limits.max_rows, kMostAccurateRows)) : std::int64_t{0};
  if (std::max(most, split) > kMatvecRows)
    AllocateQuantizedRows(limits, RoundUp(std::max(most, split), kernels::kTileInt8Rows), allocator,
                          xq_32, xq_256);
}

namespace {

std::int64_t ThreadBytes(const LinearLimits& limits) noexcept {
  BumpAllocator counter(nullptr);
  ThreadBuffers(limits, counter);
  return counter.used();
}

std::int64_t SharedBytes(const LinearLimits& limits) noexcept {
  BumpAllocator counter(nullptr);
  SharedBuffers(limits, counter);
  return counter.used();
}

}  // namespace

}  // namespace linear

void LinearWorkspace::Impl::Free::operator()(std::byte* p) const noexcept {
  ::operator delete[](p, kAlignment);
}

LinearWorkspace::Impl::Impl(const LinearLimits& wanted)
    : limits(wanted), shared([&] {
        thread_bytes = linear::ThreadBytes(limits);
        size_bytes = SizeBytes(limits);
        arena.reset(new (kAlignment) std::byte[static_cast<std::size_t>(size_bytes)]);
        linear::BumpAllocator allocator(arena.get() + limits.threads * thread_bytes);
        return linear::SharedBuffers(limits, allocator);
      }()) {}

linear::ThreadBuffers LinearWorkspace::Impl::Buffers(int thread) const noexcept {
  MANYHEAD_DCHECK(thread < limits.threads);
  linear::BumpAllocator allocator(arena.get() + thread * thread_bytes);
  return {limits, allocator};
}

Result<LinearWorkspace> LinearWorkspace::Create(const LinearLimits& limits) {
  if (Status status = CheckLimits(limits); !status.ok()) return status;
  ConfigureGemm();
  return LinearWorkspace(std::make_unique<Impl>(limits));
}

LinearWorkspace::LinearWorkspace(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
LinearWorkspace::LinearWorkspace(LinearWorkspace&&) noexcept = default;
LinearWorkspace& LinearWorkspace::operator=(LinearWorkspace&&) noexcept = default;
LinearWorkspace::~LinearWorkspace() = default;

std::int64_t LinearWorkspace::size_bytes() const noexcept { return impl_->size_bytes; }

std::int64_t LinearWorkspace::SizeBytes(const LinearLimits& limits) noexcept {
  return limits.threads * linear::ThreadBytes(limits) + linear::SharedBytes(limits);
}

}  // namespace manyhead
