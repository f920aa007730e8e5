#include <algorithm>

#include "manyhead/step_profile.h"
#include "runtime/attention/plan_impl.h"
#include "runtime/model/decoder.h"

namespace manyhead {

void Decoder::AddProduct(StepPhase phase, const WeightView& weight, std::int64_t rows) noexcept {
  if (timer_.profile() == nullptr) return;
  PhaseCost& cost = (*timer_.profile())[phase];
  cost.bytes += weight.rows * WeightRowBytes(weight);
  cost.flops += 2 * rows * weight.rows * weight.cols;
}

void Decoder::AddCosts(const KvCache& cache, std::int64_t rows, std::int64_t length,
                       bool with_logits) {
  StepProfile* const profile = timer_.profile();
  if (profile == nullptr) return;
  ++profile->steps;
  profile->tokens += rows;
  for (const LayerWeights& w : model_->weights.layers) {
    for (const WeightView* weight : {&w.query, &w.key, &w.value})
      AddProduct(StepPhase::kQueryKeyValue, *weight, rows);
    AddProduct(StepPhase::kAttentionOutput, w.output, rows);
    AddProduct(StepPhase::kGateUp, w.gate, rows);
    AddProduct(StepPhase::kGateUp, w.up, rows);
    AddProduct(StepPhase::kDown, w.down, rows);
  }
  if (with_logits) AddProduct(StepPhase::kHead, model_->weights.head, 1);
  (*profile)[StepPhase::kEmbedding].bytes += rows * WeightRowBytes(model_->weights.embedding);

  PhaseCost& attention = (*profile)[StepPhase::kAttention];
  for (std::size_t plan = 0; plan < plans_.size(); ++plan) {
    const AttentionExplanation one =
        plans_[plan].impl().Explain(cache.params().k_type, cache.params().v_type, rows, length);
    const std::int64_t layers = std::count(plan_index_.begin(), plan_index_.end(), plan);
    attention.bytes += layers * one.bytes;
    attention.flops += layers * one.flops;
  }
}

}  // namespace manyhead
