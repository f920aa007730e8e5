#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "manyhead/memory.h"
#include "manyhead/status.h"
#include "tools/manyhead/output.h"
#include "tools/manyhead/parse.h"

namespace manyhead::cli {

/// Lists of numbers; every combination is planned.
struct SweepFlags {
  std::vector<std::int64_t> d_models, heads, kv_heads = {0}, head_dims = {0}, layers = {1},
                                             ffn_dims = {0}, vocabs = {0};
  std::int64_t ffn_widths = 0;  ///< replaces ffn_dims, in multiples of d_model; 0 = as ffn_dims say
  ShapeParams shape;            ///< values that all shapes share
  std::vector<std::int64_t> contexts = {0}, batches = {1};
  std::vector<KvTypes> kv_types = {KvTypes{}};
};

/// A model with the options of its run.
struct MemoryCase {
  std::shared_ptr<const ModelShape> shape;
  MemoryOptions options;
};

/// Returns the shapes of all combinations, in the order of the lists, the last changing fastest.
/// Query heads that are not a multiple of the key/value heads are skipped and named in `left_out`,
/// unless nothing else remains.
/// Errors   as MakeModelShape; kInvalidArgument for too many of them.
Result<std::vector<std::shared_ptr<const ModelShape>>> MakeShapes(
    const SweepFlags& flags, std::vector<std::string>* left_out);

/// Combines each of `shapes` with every context, batch and type; `options` holds the values that
/// all share.
/// Errors   kInvalidArgument for too many of them.
Result<std::vector<MemoryCase>> MakeCases(
    const std::vector<std::shared_ptr<const ModelShape>>& shapes, const SweepFlags& flags,
    const MemoryOptions& options);

/// Returns a case and its plan as JSON; with `per_head` also the layers and heads.
Json MemoryJson(const MemoryCase& one, const MemoryPlan& plan, bool per_head);

/// Prints rows of MemoryJson as a table, one line each, then with `per_head` one line for each
/// head.
void PrintMemoryTable(const std::vector<Json>& rows);
/// Writes rows as a table of numbers, with nested objects as names with dots; without layers and
/// heads.
void WriteMemoryCsv(const std::vector<Json>& rows);

}  // namespace manyhead::cli
