#include "runtime/model/place_tensors.h"

#include <algorithm>
#include <initializer_list>
#include <set>
#include <sstream>
#include <utility>

#include "runtime/linear/linear.h"
#include "runtime/platform/errors.h"
#include "runtime/platform/printable.h"

namespace manyhead {
namespace {

using Shape = std::vector<std::int64_t>;

/// Knows what the format of a checkpoint changes about its tensors.
class Naming {
 public:
  Naming(const Checkpoint& file, const Architecture& architecture)
      : hf_(file.format() == CheckpointFormat::kHuggingFace), architecture_(architecture) {
    const TensorRow& embedding = FindTensorRow(TensorRole::kEmbedding, TensorPart::kMatrix);
    const std::string name = Name(embedding, -1);
    base_only_ =
        hf_ && file.FindTensor(name) == nullptr && file.FindTensor(HfBaseName(name)) != nullptr;
  }

  bool hf() const { return hf_; }
  ProjectionLayout projections() const {
    return hf_ ? architecture_.hf_projections : architecture_.projections;
  }
  std::string Name(const TensorRow& row, std::int64_t layer) const {
    if (!hf_) return GgufName(row, layer);
    const std::string name = HfName(row, architecture_.names, layer);
    return base_only_ ? HfBaseName(name) : name;
  }
  bool Transposed(const TensorRow& row) const { return hf_ && row.transposed(architecture_.names); }
  float Added(const TensorRow& row) const {
    return hf_ && row.part == TensorPart::kScale && architecture_.hf_norms_less_one ? 1.0F : 0.0F;
  }
  /// Returns true where the config says which biases there are. Else the tensors say it, and a
  /// family that may have one may also lack it.
  bool StatesBiases() const { return hf_ || architecture_.biases; }
  std::string_view family() const { return hf_ ? architecture_.hf : architecture_.gguf; }

 private:
  bool hf_;
  const Architecture& architecture_;
  bool base_only_ = false;
};

/// Looks tensors up by name and shape and remembers which were taken and the first that is wrong.
class Finder {
 public:
  explicit Finder(const Checkpoint& file) : file_(file) {}

  /// Returns the tensor of that shape, where 0 accepts any size; null when it is absent.
  const StoredTensor* Take(const std::string& name, const Shape& shape, bool required) {
    if (!status_.ok()) return nullptr;
    const StoredTensor* tensor = file_.FindTensor(name);
    if (tensor == nullptr) {
      if (required) status_ = Missing(name);
      return nullptr;
    }
    const std::int64_t cols = shape.back(), rows = shape.size() == 1 ? 1 : shape.front();
    if (tensor->cols() != cols || (rows != 0 && tensor->rows() != rows)) {
      std::ostringstream message;
      message << "tensor " << name << " has shape [" << tensor->rows() << ", " << tensor->cols()
              << "]; the metadata ask for [";
      (rows == 0 ? message << "any" : message << rows) << ", " << cols << "]";
      status_ = Status(StatusCode::kIoError, message.str());
      return nullptr;
    }
    Skip(tensor->name);
    return tensor;
  }
  /// Records that a tensor of that name may be there and is not read.
  void Skip(std::string_view name) { taken_.insert(name); }

  Status Finish(std::string_view architecture) {
    for (const UnreadableTensor& tensor : file_.unreadable())
      if (status_.ok() && !IsHfBuffer(tensor.name)) status_ = Unreadable(tensor);
    for (const StoredTensor& tensor : file_.tensors())
      if (status_.ok() && taken_.count(tensor.name) == 0 && !IsBuffer(tensor.name))
        status_ = MakeError(StatusCode::kIoError, "tensor ", Printable(tensor.name),
                            " has no place in architecture ", architecture);
    return status_;
  }
  const Status& status() const { return status_; }

 private:
  bool IsBuffer(std::string_view name) const {
    return file_.format() == CheckpointFormat::kHuggingFace && IsHfBuffer(name);
  }
  static Status Unreadable(const UnreadableTensor& tensor) {
    return MakeError(StatusCode::kUnsupported, "tensor ", Printable(tensor.name), " is of type ",
                     tensor.type, "; expected F32, F16 or BF16");
  }
  Status Missing(const std::string& name) const {
    for (const UnreadableTensor& tensor : file_.unreadable())
      if (tensor.name == name) return Unreadable(tensor);
    return {StatusCode::kIoError, "tensor " + name + " is missing"};
  }

  const Checkpoint& file_;
  std::set<std::string_view> taken_;
  Status status_;
};

/// Returns true where any layer has one of the biases.
bool HasBias(const Checkpoint& file, const ModelConfig& config,
             std::initializer_list<TensorRole> roles) {
  for (const TensorRole role : roles)
    for (std::int64_t i = 0; i < std::ssize(config.layers); ++i)
      if (file.FindTensor(GgufName(FindTensorRow(role, TensorPart::kBias), i)) != nullptr)
        return true;
  return false;
}

/// Completes `config` with what follows from the presence and the shapes of tensors.
Status CompleteConfig(const Checkpoint& file, const Naming& naming, Finder& finder,
                      ModelConfig& config) {
  const TensorRow& embedding = FindTensorRow(TensorRole::kEmbedding, TensorPart::kMatrix);
  const TensorRow& head = FindTensorRow(TensorRole::kHead, TensorPart::kMatrix);
  const StoredTensor* table =
      finder.Take(naming.Name(embedding, -1), {0, config.d_model}, /*required=*/true);
  if (table == nullptr) return finder.status();
  const std::string head_name = naming.Name(head, -1);
  if (naming.hf()) {
    if (table->rows() != config.vocab_size)
      return MakeError(StatusCode::kIoError, "tensor ", table->name, " has ", table->rows(),
                       " rows; config.json has vocab_size = ", config.vocab_size);
    // A copy of the embedding, which the config says that it is.
    if (const StoredTensor* copy = file.FindTensor(head_name);
        copy != nullptr && config.tied_embeddings)
      finder.Skip(copy->name);
    return {};
  }
  config.vocab_size = table->rows();
  config.tied_embeddings = file.FindTensor(head_name) == nullptr;
  if (naming.StatesBiases()) return {};
  config.qkv_bias =
      HasBias(file, config, {TensorRole::kQuery, TensorRole::kKey, TensorRole::kValue});
  config.output_bias = HasBias(file, config, {TensorRole::kAttentionOutput});
  return {};
}

}  // namespace

Result<std::vector<PlacedTensor>> PlaceTensors(const Checkpoint& file,
                                               const Architecture& architecture,
                                               ModelConfig& config) {
  const Naming naming(file, architecture);
  Finder finder(file);
  if (Status status = CompleteConfig(file, naming, finder, config); !status.ok()) return status;
  std::vector<PlacedTensor> tensors;
  for (ModelTensor& wanted : ListTensors(config, naming.projections())) {
    // Where a family may have a bias and a file has another of its kind, the missing one is 0.
    const bool optional = wanted.row->part == TensorPart::kBias && !naming.StatesBiases();
    const std::string name = naming.Name(*wanted.row, wanted.layer);
    if (name.empty()) continue;  // the format keeps it with the config
    Shape shape = wanted.shape;
    PlacedTensor placed;
    placed.transposed = naming.Transposed(*wanted.row);
    if (placed.transposed) std::reverse(shape.begin(), shape.end());
    const StoredTensor* const tensor = finder.Take(name, shape, !optional);
    if (!finder.status().ok()) return finder.status();
    if (tensor == nullptr) continue;
    placed.by_head = naming.projections() == ProjectionLayout::kFusedByHead &&
                     wanted.row->role == TensorRole::kQueryKeyValue;
    placed.added = naming.Added(*wanted.row);
    placed.wanted = std::move(wanted);
    placed.stored = *tensor;
    placed.file_index = tensor - file.tensors().data();
    tensors.push_back(std::move(placed));
  }
  if (Status status = finder.Finish(naming.family()); !status.ok()) return status;
  return tensors;
}

std::vector<TensorInfo> TensorInfos(const std::vector<PlacedTensor>& tensors) {
  std::vector<const PlacedTensor*> order;
  for (const PlacedTensor& tensor : tensors) order.push_back(&tensor);
  std::sort(order.begin(), order.end(), [](const PlacedTensor* a, const PlacedTensor* b) {
    return a->file_index < b->file_index;
  });
  std::vector<TensorInfo> infos;
  for (const PlacedTensor* tensor : order) {
    const StoredTensor& stored = tensor->stored;
    TensorInfo info{
        GgufName(*tensor->wanted.row, tensor->wanted.layer), stored.type, {}, stored.size_bytes};
    for (int i = stored.num_dims; i-- > 0;) info.shape.push_back(stored.shape[i]);
    if (tensor->transposed) std::reverse(info.shape.begin(), info.shape.end());
    infos.push_back(std::move(info));
  }
  return infos;
}

}  // namespace manyhead
