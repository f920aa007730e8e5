#include <algorithm>
#include <cmath>

#include "manyhead/head_classes.h"

namespace manyhead {
namespace {

// Tokens that heads need which attend only to the first and to near tokens. The widest of the
// patterns, the last 16 tokens, fits four times into the recent ones.
constexpr std::int64_t kPolicySink = 4;
constexpr std::int64_t kNearRecent = 64;
constexpr std::int64_t kSyntacticRecent = 256;  // length of a long sentence
constexpr std::int64_t kIdleRecent = 16;

/// Returns true where the relation's accuracy exceeds that of the best fixed distance clearly.
bool StandsOut(const DependencyScore& score, const HeadThresholds& thresholds) noexcept {
  if (score.count < thresholds.syntactic_count) return false;
  const double gain = score.accuracy - score.baseline;
  const double deviation =
      std::sqrt(score.baseline * (1 - score.baseline) / static_cast<double>(score.count));
  return gain >= thresholds.syntactic_gain && gain >= thresholds.syntactic_deviations * deviation;
}

KvPolicy PolicyOf(HeadClass head_class) noexcept {
  switch (head_class) {
    case HeadClass::kPreviousToken:
    case HeadClass::kFixedOffset:
    case HeadClass::kLocal:
      return KvPolicy::SinkRecent(kPolicySink, kNearRecent);
    case HeadClass::kSyntactic:
      return KvPolicy::SinkRecent(kPolicySink, kSyntacticRecent);
    case HeadClass::kSink:
    case HeadClass::kCollapsed:
      return KvPolicy::SinkRecent(kPolicySink, kIdleRecent);
    case HeadClass::kInduction:
    case HeadClass::kRetrieval:
    case HeadClass::kDuplicateToken:
    case HeadClass::kMixed:
      break;
  }
  return KvPolicy::Full();
}

bool NeedsMore(const KvPolicy& a, const KvPolicy& b) noexcept {
  if (b.kind == KvPolicyKind::kFull) return false;
  return a.kind == KvPolicyKind::kFull || a.recent > b.recent;
}

/// Returns true where the head is collapsed because it resembles another head.
bool IsTwin(const HeadReport& head, double threshold) noexcept {
  return head.head_class == HeadClass::kCollapsed && head.scores.twin >= threshold;
}

}  // namespace

const char* HeadClassName(HeadClass head_class) noexcept {
  switch (head_class) {
    case HeadClass::kInduction:
      return "induction";
    case HeadClass::kRetrieval:
      return "retrieval";
    case HeadClass::kPreviousToken:
      return "previous-token";
    case HeadClass::kFixedOffset:
      return "fixed-offset";
    case HeadClass::kDuplicateToken:
      return "duplicate-token";
    case HeadClass::kSyntactic:
      return "syntactic";
    case HeadClass::kSink:
      return "sink";
    case HeadClass::kCollapsed:
      return "collapsed";
    case HeadClass::kLocal:
      return "local";
    case HeadClass::kMixed:
      break;
  }
  return "mixed";
}

const char* ProbeKindName(ProbeKind kind) noexcept {
  switch (kind) {
    case ProbeKind::kText:
      return "text";
    case ProbeKind::kRepeat:
      return "repeat";
    case ProbeKind::kNeedle:
      return "needle";
    case ProbeKind::kSentence:
      break;
  }
  return "sentence";
}

const DependencyScore* BestDependency(const HeadScores& scores,
                                      const HeadThresholds& thresholds) noexcept {
  const DependencyScore* best = nullptr;
  for (const DependencyScore& score : scores.dependencies)
    if (StandsOut(score, thresholds) &&
        (best == nullptr || score.accuracy - score.baseline > best->accuracy - best->baseline))
      best = &score;
  return best;
}

HeadClass ClassOf(const HeadScores& scores, const HeadThresholds& thresholds) noexcept {
  const bool sink = scores.sink >= thresholds.sink;
  if (scores.twin >= thresholds.collapsed && !sink) return HeadClass::kCollapsed;
  if (scores.induction >= thresholds.pattern) return HeadClass::kInduction;
  if (scores.retrieval >= thresholds.retrieval) return HeadClass::kRetrieval;
  if (scores.previous_token >= thresholds.pattern) return HeadClass::kPreviousToken;
  if (scores.fixed_offset >= thresholds.pattern) return HeadClass::kFixedOffset;
  if (scores.duplicate_token >= thresholds.pattern) return HeadClass::kDuplicateToken;
  if (BestDependency(scores, thresholds) != nullptr) return HeadClass::kSyntactic;
  if (sink) return HeadClass::kSink;
  if (scores.uniformity >= thresholds.collapsed || scores.constancy >= thresholds.collapsed)
    return HeadClass::kCollapsed;
  if (scores.local >= thresholds.local) return HeadClass::kLocal;
  return HeadClass::kMixed;
}

std::vector<std::vector<KvHeadParams>> ClassPolicies(const ModelConfig& config,
                                                     std::span<const HeadReport> heads) {
  std::vector<std::vector<KvHeadParams>> policies;
  std::vector<std::vector<bool>> known;
  for (const LayerConfig& layer : config.layers) {
    policies.emplace_back(static_cast<std::size_t>(layer.num_kv_heads));
    known.emplace_back(static_cast<std::size_t>(layer.num_kv_heads));
  }
  std::vector<KvPolicy> needs;  // [head of `heads`]; a twin comes after the head that it resembles
  for (const HeadReport& head : heads) {
    KvPolicy need = PolicyOf(head.head_class);
    for (std::size_t i = 0; IsTwin(head, HeadThresholds().collapsed) && i < needs.size(); ++i)
      if (heads[i].id == HeadId{head.id.layer, head.scores.twin_head}) need = needs[i];
    needs.push_back(need);
    const auto layer = static_cast<std::size_t>(head.id.layer);
    const auto kv_head = static_cast<std::size_t>(head.kv_head);
    KvPolicy& policy = policies[layer][kv_head].policy;
    if (!known[layer][kv_head] || NeedsMore(need, policy)) policy = need;
    known[layer][kv_head] = true;
  }
  return policies;
}

}  // namespace manyhead
