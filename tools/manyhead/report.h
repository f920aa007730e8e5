#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "manyhead/kv_cache.h"
#include "manyhead/model.h"
#include "manyhead/session.h"
#include "tools/manyhead/bench_plan.h"
#include "tools/manyhead/output.h"

namespace manyhead::cli {

/// The bytes that one token takes in the cache on each KV head of each layer.
struct KvTokenBytes {
  std::int64_t total = 0;
  std::vector<std::int64_t> per_head;  ///< bytes of every head of every layer
};

KvTokenBytes MeasureKvTokenBytes(const KvCache& cache);

/// Returns the costs of the KV heads, [layer][KV head].
std::vector<std::vector<KvHeadCost>> MeasureKvHeads(const KvCache& cache);

/// Returns e.g. "1.0 KiB", or "512 B to 1.0 KiB" when layers differ.
std::string FormatRange(const std::vector<std::int64_t>& bytes);

/// Returns the cache as JSON: types, bytes per token in total and per head by layer, bytes held by
/// layer and head.
Json KvJson(const KvCache& cache);

/// Returns e.g. "gemma3 268M Q4_K": architecture, parameters, and the type of most weights.
std::string ModelType(const Model& model);

/// A line of names, then one of values for each of `rows`, which all have the same fields, as
/// RowWriter does.
void WriteCsv(const std::vector<Json>& rows);

/// Loads the model that `-m` names; prints a notice on stderr when that takes long.
Result<Model> LoadModel(const std::string& name, const ModelOptions& options);

}  // namespace manyhead::cli
