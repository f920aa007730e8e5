#include "tools/manyhead/memory_fit.h"

#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "tools/manyhead/interrupt.h"

namespace manyhead::cli {
namespace {

constexpr std::int64_t kMostBatch = std::int64_t{1} << 20;  // the most that LargestBatch returns

/// Whether no context above `context` can be planned, whatever memory there is.
bool EndsAt(MemoryCase one, std::int64_t context) {
  one.options.session.context = context + 1;
  return context > 0 && !PlanMemory(*one.shape, one.options).ok();
}

/// The row of a case whose context or batch is the answer; 0 where nothing fits.
Result<Json> FitJson(MemoryCase one, bool by_context, std::int64_t answer, const FitFlags& flags) {
  SessionOptions& session = one.options.session;
  const std::int64_t bytes = flags.bytes, trained = one.shape->config.context_length;
  const bool unbounded = by_context && answer > trained && flags.trained && EndsAt(one, answer);
  if (unbounded) answer = trained;
  (by_context ? session.context : one.options.batch) = std::max<std::int64_t>(1, answer);
  const Result<MemoryPlan> plan = PlanMemory(*one.shape, one.options);
  if (!plan.ok()) return plan.status();
  const bool at_end = by_context ? EndsAt(one, answer) : answer == kMostBatch;
  const bool positions = one.shape->config.positions == PositionKind::kLearned;
  const bool fits = answer > 0;
  const auto if_fits = [&](std::int64_t value) { return fits ? Json(value) : Json(); };
  const LayerConfig& layer = one.shape->config.layers.front();
  Json json;
  json["kv_type"] = FormatKvTypes({session.k_type, session.v_type});
  json["kv_policy"] = PolicyName(session.kv_policy);
  json["num_heads"] = layer.num_heads;
  json["num_kv_heads"] = layer.num_kv_heads;
  json["solved_for"] = by_context ? "context" : "batch";
  json["batch"] = by_context ? Json(plan->batch) : if_fits(plan->batch);
  json["context"] = by_context ? if_fits(plan->session.context) : Json(plan->session.context);
  json["limited_by"] = unbounded                 ? "model"
                       : !at_end                 ? "memory"
                       : positions && by_context ? "positions"
                                                 : "planner";
  json["model_context"] = flags.trained ? Json(trained) : Json();
  json["fit_bytes"] = bytes;
  json["total_bytes"] = plan->total_bytes;
  json["left_bytes"] = if_fits(bytes - plan->total_bytes);
  json["kv_bytes_per_token"] = plan->kv_bytes_per_token;
  json["kv_bytes"] = if_fits(plan->kv_bytes);
  json["kv_peak_bytes"] = if_fits(plan->kv_peak_bytes);
  json["kv_cap_bytes"] = if_fits(bytes - (plan->total_bytes - plan->kv_peak_bytes));
  json["weight_bytes"] = plan->weight_bytes;
  json["scratch_bytes"] = plan->scratch_bytes;
  json["d_model"] = one.shape->config.d_model;
  json["head_dim"] = layer.head_dim;
  json["layers"] = one.shape->config.layers.size();
  json["parameters"] = plan->parameters;
  return json;
}

}  // namespace

Result<std::vector<Json>> FitAll(const std::vector<MemoryCase>& cases, const FitFlags& flags) {
  using Key = std::tuple<const ModelShape*, std::string, std::string, bool, std::int64_t>;
  std::set<Key> seen;
  std::vector<Json> rows;
  const auto solve = [&](const MemoryCase& one, bool by_context) -> Status {
    const SessionOptions& session = one.options.session;
    const std::int64_t given = by_context ? one.options.batch : session.context;
    const std::string types = FormatKvTypes({session.k_type, session.v_type});
    if (!seen.insert({one.shape.get(), types, session.kv_policy, by_context, given}).second)
      return {};
    const Result<std::int64_t> answer = by_context
                                            ? LargestContext(*one.shape, one.options, flags.bytes)
                                            : LargestBatch(*one.shape, one.options, flags.bytes);
    if (!answer.ok()) return answer.status();
    Result<Json> row = FitJson(one, by_context, *answer, flags);
    if (!row.ok()) return row.status();
    rows.push_back(*std::move(row));
    return {};
  };
  for (const bool by_context : {true, false}) {
    if (!(by_context ? flags.batches : flags.contexts)) continue;
    for (const MemoryCase& one : cases) {
      if (Interrupted().load()) return rows;
      if (Status status = solve(one, by_context); !status.ok()) return status;
    }
  }
  return rows;
}

}  // namespace manyhead::cli
