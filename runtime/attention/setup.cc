#include "runtime/attention/setup.h"

#include "runtime/platform/dispatch.h"
#include "runtime/platform/math.h"

namespace manyhead {

AttentionSetup::AttentionSetup(const AttentionParams& plan_params)
    : params(plan_params),
      kernels(KernelsFor(*plan_params.isa).attention),
      v_row(RoundUp(plan_params.head_dim_v, kernels::kKvTile)),
      partition(plan_params) {}

bool SameAttention(Isa a, Isa b) noexcept {
  return KernelsFor(a).attention == KernelsFor(b).attention;
}

}  // namespace manyhead
