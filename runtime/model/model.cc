#include "manyhead/model.h"

#include "manyhead/isa.h"
#include "manyhead/threads.h"
#include "runtime/architecture/gguf_config.h"
#include "runtime/architecture/tensor_table.h"
#include "runtime/model/weights.h"
#include "runtime/platform/dispatch.h"
#include "runtime/platform/errors.h"
#include "runtime/text/load.h"

namespace manyhead {
namespace {

std::string EmbeddingName() { return GgufName(TensorRole::kEmbedding, TensorPart::kMatrix); }

/// Returns true where a token reads only one row of the tensor.
bool IsLookedUp(std::string_view name, const ModelConfig& config) {
  const std::optional<TensorPlace> place = FindGgufTensor(name);
  return place && IsLookedUp(*place->row, config);
}

}  // namespace

Result<Model> Model::Load(const std::string& path, const ModelOptions& options) {
  if (options.threads < 0 || options.threads > kMaxThreads)
    return OutOfRange("ModelOptions", "threads", options.threads, 0, kMaxThreads);
  const Result<Isa> isa = SelectIsa();
  if (!isa.ok()) return isa.status();
  if (const Result<Team> team = SelectTeam(); !team.ok()) return team.status();
  Result<std::unique_ptr<const Checkpoint>> opened = Checkpoint::Open(path);
  if (!opened.ok()) return opened.status();
  std::unique_ptr<const Checkpoint> file = *std::move(opened);
  file->Prefetch();
  const auto named = [&path](const Status& status) { return WithPath(path, status); };
  Result<const Architecture*> architecture = ReadArchitecture(file->config());
  if (!architecture.ok()) return named(architecture.status());
  Result<ModelConfig> config = ReadGgufConfig(*file, **architecture);
  if (!config.ok()) return named(config.status());
  Result<ModelWeights> weights = BindWeights(*file, **architecture, *config);
  if (!weights.ok()) return named(weights.status());
  Result<Tokenizer> tokenizer = LoadTokenizer(file->tokenizer());
  if (!tokenizer.ok()) return named(tokenizer.status());
  // More embedding rows than tokens are padding; fewer rows would be read beyond their end.
  if (tokenizer->vocab_size() > config->vocab_size)
    return named(Status(StatusCode::kIoError, "tokenizer.ggml.tokens has " +
                                                  std::to_string(tokenizer->vocab_size()) +
                                                  " tokens, " + EmbeddingName() + " only " +
                                                  std::to_string(config->vocab_size) + " rows"));
  ReservedMemory packed;
  if (options.weights == WeightStorage::kPacked && KernelsFor(*isa).packed != nullptr) {
    Result<ReservedMemory> memory =
        PackWeights(*file, *weights, options.threads == 0 ? DefaultThreads() : options.threads);
    if (!memory.ok()) return named(memory.status());
    packed = *std::move(memory);
  }
  return Model(
      std::make_shared<const Impl>(Impl{std::move(file), *std::move(config), *std::move(weights),
                                        std::move(packed), *std::move(tokenizer)}));
}

Model::Model(std::shared_ptr<const Impl> impl) noexcept : impl_(std::move(impl)) {}
Model::Model(const Model&) noexcept = default;
Model& Model::operator=(const Model&) noexcept = default;
Model::Model(Model&&) noexcept = default;
Model& Model::operator=(Model&&) noexcept = default;
Model::~Model() = default;

const ModelConfig& Model::config() const noexcept { return impl_->config; }
const Tokenizer& Model::tokenizer() const noexcept { return impl_->tokenizer; }
const std::string& Model::path() const noexcept { return impl_->file->path(); }

std::int64_t Model::weight_bytes() const noexcept {
  std::int64_t bytes = 0;
  for (const StoredTensor& tensor : impl_->file->tensors()) bytes += tensor.size_bytes;
  return bytes;
}

std::int64_t Model::weight_bytes_per_token() const noexcept {
  std::int64_t bytes = 0;
  for (const StoredTensor& tensor : impl_->file->tensors())
    if (!IsLookedUp(tensor.name, config())) bytes += tensor.size_bytes;
  return bytes;
}

std::int64_t Model::packed_bytes() const noexcept { return impl_->packed.bytes(); }

std::int64_t Model::num_parameters() const noexcept {
  std::int64_t parameters = 0;
  for (const StoredTensor& tensor : impl_->file->tensors())
    parameters += tensor.rows() * tensor.cols();
  return parameters;
}

std::vector<TensorInfo> Model::tensors() const { return TensorInfos(*impl_->file); }

std::string_view Model::main_weight_type() const noexcept {
  std::int64_t bytes[256] = {};
  WeightType main = WeightType::kF32;
  for (const StoredTensor& tensor : impl_->file->tensors()) {
    bytes[static_cast<std::uint8_t>(tensor.type)] += tensor.size_bytes;
    if (bytes[static_cast<std::uint8_t>(tensor.type)] > bytes[static_cast<std::uint8_t>(main)])
      main = tensor.type;
  }
  return WeightTypeName(main);
}

}  // namespace manyhead
