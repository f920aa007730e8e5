#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "manyhead/step_profile.h"
#include "runtime/attention/plan_impl.h"
#include "runtime/model/decoder.h"
#include "runtime/model/decoder_call.h"

namespace manyhead {
namespace {

/// Returns the tokens that a query sees under `policy` in a sequence without end.
std::int64_t MostTokensSeen(const KvPolicy& policy) noexcept {
  switch (policy.kind) {
    case KvPolicyKind::kOff:
      return 0;
    case KvPolicyKind::kWindow:
    case KvPolicyKind::kSinkRecent:
      return policy.sink + policy.recent;
    case KvPolicyKind::kBudget:
      return policy.budget;
    case KvPolicyKind::kFull:
      break;
  }
  return INT64_MAX;
}

}  // namespace

void Decoder::AddProduct(StepPhase phase, const WeightView* weight, std::int64_t rows) noexcept {
  if (timer_.profile() == nullptr || weight == nullptr) return;
  PhaseCost& cost = (*timer_.profile())[phase];
  cost.bytes += weight->rows * WeightRowBytes(*weight);
  cost.flops += 2 * rows * weight->rows * weight->cols;
}

std::vector<ProductPath> Decoder::ProductPaths() const {
  std::vector<ProductPath> paths;
  const auto add = [&](StepPhase phase, const WeightView* weight, bool both_roles = true) {
    if (weight == nullptr || weight->rows == 0) return;
    const auto name = [&](RowRole role) {
      return std::string(LinearPathName(*weight, limits_.isa, limits_.math, role));
    };
    ProductPath path{phase, weight->type, 1, name(RowRole::kDecode), {}};
    path.prefill = both_roles ? name(RowRole::kPrefill) : path.decode;
    const auto same = std::find_if(paths.begin(), paths.end(), [&](const ProductPath& other) {
      return other.phase == phase && other.type == path.type && other.decode == path.decode &&
             other.prefill == path.prefill;
    });
    if (same == paths.end())
      paths.push_back(std::move(path));
    else
      ++same->matrices;
  };
  for (const LayerWeights& w : model_->weights.layers)
    for (const WeightView* weight : {&w.query, &w.key, &w.value})
      add(StepPhase::kQueryKeyValue, weight);
  for (const Layer& layer : layers_) add(StepPhase::kAttentionOutput, layer.attention.output);
  for (const Layer& layer : layers_) {
    add(StepPhase::kGateUp, layer.feed_forward.gate);
    add(StepPhase::kGateUp, layer.feed_forward.up);
  }
  for (const Layer& layer : layers_) add(StepPhase::kDown, layer.feed_forward.down);
  add(StepPhase::kHead, &model_->weights.head, /*both_roles=*/false);
  return paths;
}

/// Adds the bytes that the last step had to read and the operations it computed.
void Decoder::AddCosts(const Call& call) {
  StepProfile& profile = *timer_.profile();
  const std::int64_t rows = rows_.count();
  ++profile.steps;
  profile.tokens += rows;
  for (std::size_t index = call.part.first; index < call.part.last; ++index) {
    const Layer& layer = layers_[index];
    for (const WeightView& weight : layer.inputs.weights)
      AddProduct(StepPhase::kQueryKeyValue, &weight, rows);
    AddProduct(StepPhase::kAttentionOutput, layer.attention.output, rows);
    AddProduct(StepPhase::kGateUp, layer.feed_forward.gate, rows);
    AddProduct(StepPhase::kGateUp, layer.feed_forward.up, rows);
    AddProduct(StepPhase::kDown, layer.feed_forward.down, rows);
  }
  if (!call.batch.logit_rows.empty())
    AddProduct(StepPhase::kHead, &model_->weights.head, std::ssize(call.batch.logit_rows));
  profile[StepPhase::kEmbedding].bytes += rows * WeightRowBytes(model_->weights.embedding);
  for (const StepRequest& request : rows_.requests())
    AddAttentionCosts(call.cache, request.rows, request.sequence->position + request.rows);
}

/// Adds the costs of attention; heads of one layer shape with equal types and policies cost the
/// same.
void Decoder::AddAttentionCosts(const KvCache& cache, std::int64_t rows, std::int64_t length) {
  struct Group {
    std::size_t plan;
    KvHeadParams head;
    std::int64_t count;
  };
  std::vector<Group> groups;
  for (std::size_t layer = 0; layer < plan_index_.size(); ++layer)
    for (const KvHeadParams& head : cache.params().heads[layer]) {
      const auto found = std::find_if(groups.begin(), groups.end(), [&](const Group& group) {
        return group.plan == plan_index_[layer] && group.head == head;
      });
      if (found != groups.end())
        ++found->count;
      else
        groups.push_back({plan_index_[layer], head, 1});
    }
  PhaseCost& attention = (*timer_.profile())[StepPhase::kAttention];
  for (const Group& group : groups) {
    const std::int64_t most = MostTokensSeen(group.head.policy);
    if (most == 0) continue;
    const AttentionPlan::Impl& plan = plans_[group.plan].impl();
    const auto explain = [&](std::int64_t q_len, std::int64_t kv_len) {
      return plan.Explain(group.head.k_type, group.head.v_type, q_len, kv_len);
    };
    // The costs of all heads of a layer. Where every query sees `most` keys, the keys of the rows
    // overlap.
    const bool cut = most <= length - rows;
    const AttentionExplanation all = explain(rows, cut ? most + rows - 1 : length);
    const std::int64_t flops = cut ? rows * explain(1, most).flops : all.flops;
    attention.bytes += group.count * all.bytes / plan.params().num_kv_heads;
    attention.flops += group.count * flops / plan.params().num_kv_heads;
  }
}

}  // namespace manyhead
