#include <algorithm>
#include <cstddef>
#include <new>

#include "runtime/attention/plan_impl.h"
#include "runtime/platform/dispatch.h"
#include "runtime/platform/math.h"

namespace manyhead {
namespace {

using kernels::kAttentionBlock;
using kernels::kAttentionRows;
using kernels::kKvTile;

constexpr std::align_val_t kAlignment{64};

}  // namespace

bool SameAttention(Isa a, Isa b) noexcept {
  return KernelsFor(a).attention == KernelsFor(b).attention;
}

void AttentionPlan::Impl::FreeScratch::operator()(float* memory) const noexcept {
  ::operator delete(memory, kAlignment);
}

AttentionPlan::Impl::Impl(const AttentionParams& params)
    : params_(params),
      kernels_(KernelsFor(*params.isa).attention),
      v_row_(RoundUp(params.head_dim_v, kKvTile)),
      partition_(params),
      requests_(static_cast<std::size_t>(params.max_q_len)) {
  const AttentionScratch scratch = AttentionScratchOf(params);
  thread_floats_ = scratch.thread_floats;
  parts_floats_ = scratch.parts_floats;
  const std::int64_t floats = params.threads * thread_floats_ + parts_floats_;
  scratch_.reset(static_cast<float*>(
      ::operator new(static_cast<std::size_t>(floats * kFloatBytes), kAlignment)));
}

kernels::AttentionState AttentionPlan::Impl::PartOf(const AttentionWork& work) const noexcept {
  const AttentionPartition::PartPlace place = partition_.PlaceOf(work);
  float* m = scratch_.get() + params_.threads * thread_floats_ + place.offset;
  return {m, m + place.room, m + 2 * place.room};
}

AttentionPlan::Impl::Scratch AttentionPlan::Impl::ScratchOf(int thread) const noexcept {
  float* next = scratch_.get() + thread * thread_floats_;
  const auto take = [&next](std::int64_t floats) {
    float* taken = next;
    next += RoundUp(floats, kKvTile);
    return taken;
  };
  Scratch scratch{};
  scratch.q = take(kAttentionRows * params_.head_dim + kKvTile);
  scratch.probs = take(kAttentionRows * kAttentionBlock);
  scratch.k = take(kAttentionBlock * params_.head_dim);
  scratch.v = take(kAttentionBlock * v_row_);
  for (kernels::AttentionState* state : {&scratch.total, &scratch.part}) {
    state->m = take(kAttentionRows);
    state->d = take(kAttentionRows);
    state->o = take(kAttentionRows * v_row_);
  }
  return scratch;
}

}  // namespace manyhead
