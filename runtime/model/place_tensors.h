#pragma once

#include <optional>
#include <string>
#include <vector>

#include "manyhead/model.h"
#include "runtime/architecture/architectures.h"
#include "runtime/architecture/tensor_table.h"
#include "runtime/formats/checkpoint.h"
#include "runtime/platform/memory.h"

namespace manyhead {

/// A tensor of a checkpoint in its place in the model.
struct PlacedTensor {
  ModelTensor wanted;
  StoredTensor stored;          ///< as it lies in the file, or rewritten; its name is the file's
  std::int64_t file_index = 0;  ///< in Checkpoint::tensors()
  bool transposed = false;      ///< lies as [inputs, outputs]
  bool by_head = false;         ///< a fused tensor whose rows lie head by head
  float added = 0;              ///< to every element, which is stored less this
};

/// Finds the place of every tensor of `file` and completes `config` with what tensors say:
/// vocab_size, tied_embeddings and which biases there are. Reads none of their data.
/// Errors   kIoError naming a tensor that is missing, has another shape than the metadata say (both
///          values) or has no place in this family: an ignored tensor would be a silently wrong
///          model. kUnsupported naming a tensor of a type that this library does not read.
Result<std::vector<PlacedTensor>> PlaceTensors(const Checkpoint& file,
                                               const Architecture& architecture,
                                               ModelConfig& config);

/// Options of RewriteTensors.
struct RewriteOptions {
  std::optional<WeightType> weight_type;  ///< type of matrices; nothing: as stored
  int threads = 1;
};

/// Rewrites the tensors whose data cannot be read where they lie, or are wanted in another type:
/// rows come in the order of the table, each element in its own place. The result holds their data;
/// what was read is dropped from memory.
/// Errors   kUnsupported for a type that cannot be made of a tensor's, naming both, or when the
///          operating system gives no memory.
Result<ReservedMemory> RewriteTensors(const Checkpoint& file, const RewriteOptions& options,
                                      std::vector<PlacedTensor>& tensors);

/// Returns the elements of a tensor in f32.
std::vector<float> WidenedTensor(const PlacedTensor& tensor);

/// Lists the tensors by the names of GGUF files, in the order of the file.
std::vector<TensorInfo> TensorInfos(const std::vector<PlacedTensor>& tensors);

}  // namespace manyhead
