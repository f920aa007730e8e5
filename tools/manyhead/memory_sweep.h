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
  std::vector<std::int64_t> groups;  ///< query heads of a KV head; not empty: instead of kv_heads
  std::string weight_mix;            ///< a name of WeightMixNames, or empty: shape.weight_type
  std::int64_t ffn_widths = 0;       ///< instead of ffn_dims, times d_model; 0 = as ffn_dims say
  ShapeParams shape;                 ///< values that all shapes share
  std::vector<std::int64_t> contexts = {0}, batches = {1};
  std::vector<KvTypes> kv_types = {KvTypes{}};
  std::vector<std::string> policies = {""};  ///< as SessionOptions::kv_policy
};

/// A model with the options of its run.
struct MemoryCase {
  std::shared_ptr<const ModelShape> shape;
  MemoryOptions options;
};

/// Returns the shapes of all combinations, in the order of the lists, the last changing fastest,
/// each shape once. Query heads that are not a multiple of the key/value heads, or of the group,
/// are skipped and named in `left_out`, unless nothing else remains.
/// Errors   as MakeModelShape; kInvalidArgument for too many of them.
Result<std::vector<std::shared_ptr<const ModelShape>>> MakeShapes(
    const SweepFlags& flags, std::vector<std::string>* left_out);

/// Combines each of `shapes` with every context, batch, type and policy, each combination once;
/// all have the rest of `options` in common.
/// Errors   kInvalidArgument for too many of them.
Result<std::vector<MemoryCase>> MakeCases(
    const std::vector<std::shared_ptr<const ModelShape>>& shapes, const SweepFlags& flags,
    const MemoryOptions& options);

/// Returns a case and its plan as JSON; the layers' and heads' too with `per_head`. The memory
/// reads `bandwidth` bytes per second (0 = unknown), which bounds the speed of decode steps.
Json MemoryJson(const MemoryCase& one, const MemoryPlan& plan, bool per_head, double bandwidth);

/// Returns "full" for no policy, a policy for all heads as it is, and "by head" for JSON.
std::string PolicyName(const std::string& policy);

/// Prints rows of MemoryJson in one of RowFormats(): as a table a line for each, then with
/// `per_head` one for each head; as CSV objects within objects as names with dots, without layers
/// and heads.
void PrintMemory(const std::vector<Json>& rows, const std::string& format);
/// Prints the rows of FitAll in one of RowFormats().
void PrintFits(const std::vector<Json>& rows, const std::string& format);

}  // namespace manyhead::cli
