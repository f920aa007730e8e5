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

/// The role of a tensor in a model.
enum class TensorRole : std::uint8_t {
  kEmbedding,
  kPositions,    ///< table of PositionKind::kLearned
  kRopeFactors,  ///< factors of RopeScaling::kFactors
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

/// The part of its role that a tensor holds.
enum class TensorPart : std::uint8_t {
  kMatrix,
  kBias,
  kScale,  ///< scale of a norm
  kShift,  ///< shift of a norm
  kValues,
};

/// Says which of a tensor's rows or columns belong to which heads.
enum class HeadAxis : std::uint8_t {
  kNone,
  kQueryRows,      ///< H * D rows
  kKeyRows,        ///< K * D rows
  kValueRows,      ///< K * Dv rows
  kFusedRows,      ///< all of these rows, one kind after another
  kOutputColumns,  ///< H * Dv columns
  kPerQueryHead,   ///< one element for each query head
};

/// The model and layer that rows of the table are evaluated for.
struct TensorContext {
  const ModelConfig& config;
  const LayerConfig& layer;  ///< for a tensor outside layers: the first layer, or an empty one
  ProjectionLayout projections;
};

/// One kind of tensor, with its name in each file format. "{}" stands for the number of the layer.
struct TensorRow {
  TensorRole role;
  TensorPart part;
  std::string_view gguf;
  std::string_view hf_llama;  ///< in safetensors files of HfNames::kLlama, and of others that have
                              ///< no name of their own; empty: these have no such tensor
  std::string_view hf_gemma;  ///< name in HfNames::kGemma, where it differs
  std::string_view hf_gpt2;   ///< name in HfNames::kGpt2, whose matrices are stored transposed
  std::string_view hf_phi3;   ///< name in HfNames::kPhi3, where it differs
  std::string_view hf_neox;   ///< name in HfNames::kNeox
  HeadAxis heads;
  bool (*present)(const TensorContext&);                     ///< says whether a model has it
  std::vector<std::int64_t> (*shape)(const TensorContext&);  ///< outermost dimension first

  bool per_layer() const noexcept { return gguf.find("{}") != std::string_view::npos; }
  /// Returns true where `scheme` stores a matrix as [inputs, outputs].
  bool transposed(HfNames scheme) const noexcept;
};

/// Returns all rows, in the order in which this library writes tensors: those outside layers first.
std::span<const TensorRow> TensorRows() noexcept;
/// Returns the row of a tensor that every model has a name for.
const TensorRow& FindTensorRow(TensorRole role, TensorPart part) noexcept;

std::string GgufName(const TensorRow& row, std::int64_t layer);
std::string GgufName(TensorRole role, TensorPart part);
/// Returns the name in safetensors files; empty where `scheme` has no such tensor.
std::string HfName(const TensorRow& row, HfNames scheme, std::int64_t layer);

/// Returns `name` as folders have it that were saved without the part which makes logits.
std::string HfBaseName(const std::string& name);
/// Returns true where a tensor of this name is a table that code can compute, such as a mask: it
/// may be there and is not read.
bool IsHfBuffer(std::string_view name) noexcept;

/// One tensor of one model.
struct ModelTensor {
  const TensorRow* row = nullptr;
  std::int64_t layer = -1;  ///< -1: outside layers
  std::vector<std::int64_t> shape;
  std::int64_t head_dim = 0;  ///< head_dim of the layer
};

/// Returns the tensors of a model of `config`, first those outside layers, then layer by layer.
std::vector<ModelTensor> ListTensors(const ModelConfig& config, ProjectionLayout projections);

/// The row and layer that a tensor's GGUF name states.
struct TensorPlace {
  const TensorRow* row = nullptr;
  std::int64_t layer = -1;
};
std::optional<TensorPlace> FindGgufTensor(std::string_view name) noexcept;

/// Returns true where a tensor of `row` is divided among the heads of its layer.
inline bool IsPerHead(const TensorRow& row) noexcept { return row.heads != HeadAxis::kNone; }
/// Returns true where `row` is one of W_q, W_k, W_v and W_o.
inline bool IsProjection(const TensorRow& row) noexcept {
  return IsPerHead(row) && row.part == TensorPart::kMatrix;
}

/// Returns true where a decode step reads single rows of a tensor of `row` instead of all of them.
inline bool IsLookedUp(const TensorRow& row, const ModelConfig& config) noexcept {
  return row.role == TensorRole::kPositions ||
         (row.role == TensorRole::kEmbedding && !config.tied_embeddings);
}

}  // namespace manyhead
