#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "manyhead/export.h"
#include "manyhead/model_config.h"
#include "manyhead/status.h"
#include "manyhead/tokenizer.h"
#include "manyhead/types.h"

namespace MANYHEAD_API manyhead {

/// One tensor of a model's file, for reports.
struct TensorInfo {
  std::string name;                    ///< e.g. "blk.0.attn_q.weight"
  WeightType type = WeightType::kF32;  ///< how it is stored
  std::vector<std::int64_t> shape;     ///< outermost first, e.g. [outputs, inputs]
  std::int64_t size_bytes = 0;         ///< as it is stored
};

/// Where a model's low-bit weights are.
enum class WeightStorage : std::uint8_t {
  kPacked,  ///< copied when the model is loaded, rows side by side: the fastest to multiply with
  kMapped,  ///< in the pages of the file, shared between processes: the fastest to load
};

/// How a model is loaded.
struct ModelOptions {
  WeightStorage weights = WeightStorage::kPacked;  ///< of low-bit matrices
  int threads = 0;                                 ///< that pack; 0 = DefaultThreads()
};

/// A model's weights with its config and tokenizer. Immutable; sessions share it.
class Model {
 public:
  /// Reads a GGUF file. Packing copies low-bit matrices and drops the file's pages as it goes, so
  /// that the process holds each weight once; norms and biases are always copied, other matrices
  /// and an embedding that is not the output matrix too stay in the file's pages. Where this CPU
  /// has no kernels for packed weights all stay there. Errors   kIoError for a bad or inconsistent
  /// file, kUnsupported for an architecture, tensor
  ///          type or tokenizer this library does not know; both name the key or tensor and both
  ///          values. kInvalidArgument for a bad option; kUnsupported where the operating system
  ///          does not give the memory.
  static Result<Model> Load(const std::string& path, const ModelOptions& options = {});
  Model(const Model&) noexcept;
  Model& operator=(const Model&) noexcept;
  Model(Model&&) noexcept;
  Model& operator=(Model&&) noexcept;
  ~Model();

  /// What the file says of its shape.
  const ModelConfig& config() const noexcept;
  /// Lives as long as any copy of the model.
  const Tokenizer& tokenizer() const noexcept;
  /// As it was given to Load.
  const std::string& path() const noexcept;
  /// Bytes of all tensors, and those read for each decoded token (no embedding table unless tied).
  std::int64_t weight_bytes() const noexcept;
  /// Bytes of the weights that each decoded token reads.
  std::int64_t weight_bytes_per_token() const noexcept;
  /// Bytes of weights that were packed: memory of this process beside the mapped file.
  std::int64_t packed_bytes() const noexcept;
  /// Elements of all tensors, shared ones once.
  std::int64_t num_parameters() const noexcept;
  /// In the order of the file.
  std::vector<TensorInfo> tensors() const;
  /// The quantisation most weight bytes are stored in, e.g. "Q4_K".
  std::string_view main_weight_type() const noexcept;

  /// For other rooms of this library only: incomplete outside it.
  struct Impl;
  const Impl& impl() const noexcept { return *impl_; }

 private:
  explicit Model(std::shared_ptr<const Impl> impl) noexcept;
  std::shared_ptr<const Impl> impl_;
};

}  // namespace manyhead
