#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "manyhead/model_config.h"
#include "runtime/architecture/architectures.h"

namespace manyhead {

/// The place that a tensor has in a model.
enum class TensorRole : std::uint8_t {
  kEmbedding,
  kPositions,    ///< of PositionKind::kLearned
  kRopeFactors,  ///< of RopeScaling::kFactors
  kFinalNorm,
  kHead,
  kAttentionNorm,
  kQueryKeyValue,  ///< fused: rows of queries, then of keys, then of values
  kQuery,
  kKey,
  kValue,
  kAttentionOutput,
  kQueryNorm,
  kKeyNorm,
  kSinks,
  kPostAttentionNorm,
  kFfnNorm,
  kRouter,
  kGate,
  kUp,
  kDown,
  kGateExperts,
  kUpExperts,
  kDownExperts,
  kPostFfnNorm,
};

/// What a tensor is to its role.
enum class TensorPart : std::uint8_t {
  kMatrix,
  kBias,
  kScale,  ///< of a norm
  kShift,  ///< of a norm
  kValues,
};

/// Which of a tensor's rows or columns belong to which heads.
enum class HeadAxis : std::uint8_t {
  kNone,
  kQueryRows,      ///< H * D rows
  kKeyRows,        ///< K * D rows
  kValueRows,      ///< K * Dv rows
  kFusedRows,      ///< all of these rows, one kind after the other
  kOutputColumns,  ///< H * Dv columns
  kPerQueryHead,   ///< an element of each query head
};

/// What rows of the table look at.
struct TensorContext {
  const ModelConfig& config;
  const LayerConfig& layer;  ///< of a tensor of no layer: the first, or an empty one
  ProjectionLayout projections;
};

/// One kind of tensor, with its name in each file format. "{}" stands for the number of the layer.
struct TensorRow {
  TensorRole role;
  TensorPart part;
  std::string_view gguf;
  std::string_view hf_llama;  ///< in safetensors files of HfNames::kLlama, and of others that have
                              ///< no name of their own; empty: these have no such tensor
  std::string_view hf_gemma;  ///< of HfNames::kGemma, where it is another
  std::string_view hf_gpt2;   ///< of HfNames::kGpt2, whose matrices are stored transposed
  HeadAxis heads;
  bool (*present)(const TensorContext&);                     ///< whether a model has it
  std::vector<std::int64_t> (*shape)(const TensorContext&);  ///< outermost dimension first

  bool per_layer() const noexcept { return gguf.find("{}") != std::string_view::npos; }
  /// Whether `scheme` stores a matrix as [inputs, outputs].
  bool transposed(HfNames scheme) const noexcept;
};

/// All rows, in the order in which this library writes tensors: those of no layer first.
std::span<const TensorRow> TensorRows() noexcept;
/// The row of a tensor that every model has a name for.
const TensorRow& FindTensorRow(TensorRole role, TensorPart part) noexcept;

std::string GgufName(const TensorRow& row, std::int64_t layer);
std::string GgufName(TensorRole role, TensorPart part);
/// Empty where `scheme` has no such tensor.
std::string HfName(const TensorRow& row, HfNames scheme, std::int64_t layer);

/// One tensor of one model.
struct ModelTensor {
  const TensorRow* row = nullptr;
  std::int64_t layer = -1;  ///< -1: of no layer
  std::vector<std::int64_t> shape;
};

/// The tensors of a model of `config`, first those of no layer, then layer by layer.
std::vector<ModelTensor> ListTensors(const ModelConfig& config, ProjectionLayout projections);

/// What a tensor's GGUF name says.
struct TensorPlace {
  const TensorRow* row = nullptr;
  std::int64_t layer = -1;
};
std::optional<TensorPlace> FindGgufTensor(std::string_view name) noexcept;

/// Whether the heads of a layer divide a tensor of `row` among them.
inline bool IsPerHead(const TensorRow& row) noexcept { return row.heads != HeadAxis::kNone; }
/// Whether `row` is one of W_q, W_k, W_v and W_o.
inline bool IsProjection(const TensorRow& row) noexcept {
  return IsPerHead(row) && row.part == TensorPart::kMatrix;
}

/// Whether a decode step reads single rows of a tensor of `row` instead of all of them.
inline bool IsLookedUp(const TensorRow& row, const ModelConfig& config) noexcept {
  return row.role == TensorRole::kPositions ||
         (row.role == TensorRole::kEmbedding && !config.tied_embeddings);
}

}  // namespace manyhead
