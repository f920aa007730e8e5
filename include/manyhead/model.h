#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "manyhead/export.h"
#include "manyhead/model_config.h"
#include "manyhead/status.h"
#include "manyhead/tokenizer.h"
#include "manyhead/types.h"

namespace MANYHEAD_API manyhead {

/// One tensor of a model file, for reports.
struct TensorInfo {
  std::string name;                    ///< e.g. "blk.0.attn_q.weight"
  WeightType type = WeightType::kF32;  ///< type in which it is stored
  std::vector<std::int64_t> shape;     ///< outermost first, e.g. [outputs, inputs]
  std::int64_t size_bytes = 0;         ///< bytes as stored
};

/// Says where a model's low-bit weights are stored.
enum class WeightStorage : std::uint8_t {
  kPacked,  ///< copied when the model is loaded, rows side by side: fastest to multiply with
  kMapped,  ///< in the pages of the file, shared between processes: fastest to load
};

/// Says how a model is loaded.
struct ModelOptions {
  WeightStorage weights = WeightStorage::kPacked;  ///< storage of low-bit matrices
  int threads = 0;  ///< threads that pack weights; 0 = DefaultThreads()
  /// The type that matrices of F32, F16 or BF16 get while they are loaded, with the bits that a
  /// file of `manyhead convert` would have; nothing: as they are stored. F32, F16, BF16, Q8_0 or
  /// Q4_0. Rows that are not whole blocks, and tables of positions, keep their type.
  std::optional<WeightType> weight_type{};
};

/// A model's weights with its config and tokenizer. Immutable; sessions share it.
class Model {
 public:
  /// Loads a GGUF file or a Hugging Face folder. Packing copies low-bit matrices and releases the
  /// file's pages as it goes, so that the process holds each weight once. Norms and biases are
  /// always copied; other matrices, and an embedding that is not also the output matrix, stay in
  /// the file's pages. Where this CPU has no kernels for packed weights, all matrices stay there.
  ///
  /// Errors   kIoError for a bad or inconsistent file, kUnsupported for an architecture, tensor
  ///          type or tokenizer that this library does not know; both name the key or tensor and
  ///          both values. kInvalidArgument for a bad option; kUnsupported where the operating
  ///          system does not give the memory.
  static Result<Model> Load(const std::string& path, const ModelOptions& options = {});
  Model(const Model&) noexcept;
  Model& operator=(const Model&) noexcept;
  Model(Model&&) noexcept;
  Model& operator=(Model&&) noexcept;
  ~Model();

  /// The shape of the model, as its file states it.
  const ModelConfig& config() const noexcept;
  /// The tokenizer; it lives as long as any copy of the model.
  const Tokenizer& tokenizer() const noexcept;
  /// The path that was given to Load.
  const std::string& path() const noexcept;
  /// Bytes of all tensors.
  std::int64_t weight_bytes() const noexcept;
  /// Bytes of the weights that each decoded token reads; an embedding table counts only if tied.
  std::int64_t weight_bytes_per_token() const noexcept;
  /// Bytes of packed weights: memory of this process besides the mapped file.
  std::int64_t packed_bytes() const noexcept;
  /// Number of elements of all tensors; shared ones count once.
  std::int64_t num_parameters() const noexcept;
  /// Returns the tensors in the order of the file.
  std::vector<TensorInfo> tensors() const;
  /// The weight type that holds most bytes, e.g. "Q4_K".
  std::string_view main_weight_type() const noexcept;

  /// The implementation, for other rooms of this library only; its type is incomplete outside.
  struct Impl;
  const Impl& impl() const noexcept { return *impl_; }

 private:
  explicit Model(std::shared_ptr<const Impl> impl) noexcept;
  std::shared_ptr<const Impl> impl_;
};

}  // namespace manyhead
