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

/// Bytes one token takes in the cache on each KV head of each layer.
struct KvTokenBytes {
  std::int64_t total = 0;
  std::vector<std::int64_t> per_head;  ///< of every head of every layer
};

KvTokenBytes MeasureKvTokenBytes(const KvCache& cache);

/// [layer][KV head]
std::vector<std::vector<KvHeadCost>> MeasureKvHeads(const KvCache& cache);

/// "1.0 KiB", or "512 B to 1.0 KiB" when layers differ.
std::string FormatRange(const std::vector<std::int64_t>& bytes);

/// The cache as JSON: types, bytes per token in all and per head by layer, bytes held by layer and
/// head.
Json KvJson(const KvCache& cache);

/// "gemma3 268M Q4_K": architecture, parameters, and how most weights are stored.
std::string ModelType(const Model& model);

/// A line of names, then one of values for each of `rows`, which all have the same fields; every
/// field quoted.
void WriteCsv(const std::vector<Json>& rows);

/// Loads what `-m` names; says so on stderr when that takes long.
Result<Model> LoadModel(const std::string& name, const ModelOptions& options);

}  // namespace manyhead::cli
