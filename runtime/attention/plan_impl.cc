#include "runtime/attention/plan_impl.h"

#include "runtime/attention/explain.h"
#include "runtime/attention/run.h"
#include "runtime/platform/dcheck.h"

namespace manyhead {

void AttentionPlan::Impl::RunOn(Worker& worker, std::int64_t layer,
                                const TensorView<const float>& q, const TensorView<float>& out,
                                const TensorView<float>& lse) noexcept {
  MANYHEAD_DCHECK(worker.count() <= params().threads);
  const AttentionThreadScratch scratch = scratch_.Of(worker.index());
  AttentionRun(setup_, requests_, scratch, scratch_, {layer, q, out, lse}).On(worker, times_);
}

void AttentionPlan::Impl::RunOn(Worker& worker, std::int64_t layer, const float* q, float* out,
                                float* lse) noexcept {
  const std::int64_t heads = params().num_heads, d = params().head_dim, dv = params().head_dim_v;
  RunOn(worker, layer, {q, 0, heads * d, d}, {out, 0, heads * dv, dv}, {lse, 0, heads, 1});
}

AttentionExplanation AttentionPlan::Impl::Explain(KvType k_type, KvType v_type, std::int64_t q_len,
                                                  std::int64_t kv_len) const {
  return ExplainAttention(setup_, scratch_bytes(), k_type, v_type, q_len, kv_len);
}

}  // namespace manyhead
