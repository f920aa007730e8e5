#include "runtime/c_api/c_handles.h"

using manyhead::SequenceId;
using manyhead::Status;
using manyhead::c_api::Call;
using manyhead::c_api::CheckArray;
using manyhead::c_api::CheckPointer;
using manyhead::c_api::CheckSize;
using manyhead::c_api::Outcome;

namespace {

/// Reads [H] numbers, which may be absent; returns none for an H that Create refuses.
std::vector<float> ReadPerHead(const float* values, int64_t num_heads) {
  if (values == nullptr || num_heads < 1) return {};
  return {values, values + num_heads};
}

std::optional<Outcome> ReadParams(const mh_plan_params& params, manyhead::AttentionParams& result) {
  if (auto error = CheckSize(params, "mh_plan_params")) return error;
  result.num_heads = params.num_heads;
  result.num_kv_heads = params.num_kv_heads;
  result.head_dim = params.head_dim;
  result.head_dim_v = params.head_dim_v;
  result.max_q_len = params.max_q_len;
  result.max_kv_len = params.max_kv_len;
  result.softmax_scale = params.softmax_scale;
  result.logit_softcap = params.logit_softcap;
  result.causal = params.causal != 0;
  result.window = params.window;
  result.num_sink_tokens = params.num_sink_tokens;
  result.alibi_slopes = ReadPerHead(params.alibi_slopes, params.num_heads);
  result.sink_logits = ReadPerHead(params.sink_logits, params.num_heads);
  result.threads = params.threads;
  result.strict = params.strict != 0;
  return manyhead::c_api::ReadIsa(params.isa, result.isa);
}

}  // namespace

void mh_plan_params_init(mh_plan_params* params) {
  if (params == nullptr) return;
  *params = {};
  params->struct_size = sizeof *params;
  params->causal = 1;
}

mh_status mh_plan_create(const mh_plan_params* params, mh_plan** plan, mh_message* message) {
  return manyhead::c_api::CreateHandle(plan, message, [&](mh_plan*& place) -> Outcome {
    if (auto error = CheckPointer(params, "params")) return *error;
    manyhead::AttentionParams chosen;
    if (auto error = ReadParams(*params, chosen)) return *error;
    auto created = manyhead::AttentionPlan::Create(chosen);
    if (!created.ok()) return created.status();
    place = new mh_plan{std::move(*created)};
    return Status();
  });
}

void mh_plan_free(mh_plan** plan) { manyhead::c_api::FreeHandle(plan); }

const char* mh_plan_message(const mh_plan* plan) {
  return plan == nullptr ? "the plan is NULL" : plan->message.text;
}

mh_status mh_plan_run(mh_plan* plan, int64_t q_len, int64_t kv_len, const float* q, const float* k,
                      const float* v, float* out, float* lse) {
  return Call(plan, [&]() -> Outcome { return plan->plan.Run(q_len, kv_len, q, k, v, out, lse); });
}

mh_status mh_plan_run_cache(mh_plan* plan, const mh_cache* cache, int64_t layer,
                            const int32_t* sequences, size_t count, const int64_t* qo_indptr,
                            const float* q, float* out, float* lse) {
  return Call(plan, [&]() -> Outcome {
    if (auto error = CheckPointer(cache, "cache")) return *error;
    if (auto error = CheckArray(sequences, count, "sequences")) return *error;
    plan->sequences.clear();
    for (const int32_t id : std::span(sequences, count)) plan->sequences.push_back(SequenceId{id});
    return plan->plan.Run(cache->cache, layer, plan->sequences, qo_indptr, q, out, lse);
  });
}

mh_status mh_plan_explain(mh_plan* plan, mh_kv_type k_type, mh_kv_type v_type, int64_t q_len,
                          int64_t kv_len, const char** text) {
  return Call(plan, [&]() -> Outcome {
    if (auto error = CheckPointer(text, "text")) return *error;
    manyhead::KvType k{}, v{};
    if (auto error = manyhead::c_api::ReadKvType(k_type, "k_type", k)) return *error;
    if (auto error = manyhead::c_api::ReadKvType(v_type, "v_type", v)) return *error;
    const auto explained = plan->plan.Explain(k, v, q_len, kv_len);
    if (!explained.ok()) return explained.status();
    plan->explanation = explained->ToString();
    *text = plan->explanation.c_str();
    return Status();
  });
}

int64_t mh_plan_scratch_bytes(const mh_plan* plan) {
  return plan == nullptr ? 0 : plan->plan.scratch_bytes();
}
