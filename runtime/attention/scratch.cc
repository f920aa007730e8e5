#include "runtime/attention/scratch.h"

#include <cstddef>
#include <new>

#include "runtime/platform/math.h"

namespace manyhead {
namespace {

using kernels::kAttentionBlock;
using kernels::kAttentionRows;
using kernels::kKvTile;

constexpr std::align_val_t kAlignment{64};

}  // namespace

void AttentionScratchMemory::Free::operator()(float* memory) const noexcept {
  ::operator delete(memory, kAlignment);
}

std::int64_t AttentionScratchMemory::Bytes(const AttentionParams& params) noexcept {
  const AttentionScratch sizes = AttentionScratchOf(params);
  return (params.threads * sizes.thread_floats + sizes.parts_floats) *
         static_cast<std::int64_t>(sizeof(float));
}

AttentionScratchMemory::AttentionScratchMemory(const AttentionSetup& setup)
    : setup_(setup),
      sizes_(AttentionScratchOf(setup.params)),
      memory_(static_cast<float*>(
          ::operator new(static_cast<std::size_t>(Bytes(setup.params)), kAlignment))) {}

kernels::AttentionState AttentionScratchMemory::PartOf(const AttentionWork& work) const noexcept {
  const AttentionPartition::PartPlace place = setup_.partition.PlaceOf(work);
  float* m = memory_.get() + setup_.params.threads * sizes_.thread_floats + place.offset;
  return {m, m + place.room, m + 2 * place.room};
}

AttentionThreadScratch AttentionScratchMemory::Of(int thread) const noexcept {
  float* next = memory_.get() + thread * sizes_.thread_floats;
  const auto take = [&next](std::int64_t floats) {
    float* taken = next;
    next += RoundUp(floats, kKvTile);
    return taken;
  };
  AttentionThreadScratch scratch{};
  scratch.q = take(kAttentionRows * setup_.params.head_dim + kKvTile);
  scratch.probs = take(kAttentionRows * kAttentionBlock);
  scratch.k = take(kAttentionBlock * setup_.params.head_dim);
  scratch.v = take(kAttentionBlock * setup_.v_row);
  for (kernels::AttentionState* state : {&scratch.total, &scratch.part}) {
    state->m = take(kAttentionRows);
    state->d = take(kAttentionRows);
    state->o = take(kAttentionRows * setup_.v_row);
  }
  return scratch;
}

}  // namespace manyhead
