#include "manyhead/model.h"

#include "manyhead/isa.h"
#include "manyhead/threads.h"
#include "runtime/architecture/checkpoint_config.h"
#include "runtime/architecture/tensor_table.h"
#include "runtime/linear/encode.h"
#include "runtime/model/place_tensors.h"
#include "runtime/model/weights.h"
#include "runtime/platform/dispatch.h"
#include "runtime/platform/errors.h"
#include "runtime/text/load.h"

namespace manyhead {
namespace {

std::string EmbeddingName() { return GgufName(TensorRole::kEmbedding, TensorPart::kMatrix); }

/// Returns the name of what lists the tokens of a file.
std::string TokensName(const Checkpoint& file) {
  return file.tokenizer_files() == nullptr ? "tokenizer.ggml.tokens" : "tokenizer.json";
}

/// Returns true where a token reads only one row of the tensor.
bool IsLookedUp(std::string_view name, const ModelConfig& config) {
  const std::optional<TensorPlace> place = FindGgufTensor(name);
  return place && IsLookedUp(*place->row, config);
}

}  // namespace

Result<Model> Model::Load(const std::string& path, const ModelOptions& options) {
  if (options.threads < 0 || options.threads > kMaxThreads)
    return OutOfRange("ModelOptions", "threads", options.threads, 0, kMaxThreads);
  if (options.weight_type && !CanEncode(*options.weight_type))
    return InvalidArgument("ModelOptions", "weight_type = ", WeightTypeName(*options.weight_type),
                           "; expected F32, F16, BF16, Q8_0 or Q4_0");
  const Result<Isa> isa = SelectIsa();
  if (!isa.ok()) return isa.status();
  if (const Result<Team> team = SelectTeam(); !team.ok()) return team.status();
  Result<std::unique_ptr<const Checkpoint>> opened = Checkpoint::Open(path);
  if (!opened.ok()) return opened.status();
  std::unique_ptr<const Checkpoint> file = *std::move(opened);
  file->Prefetch();
  const auto named = [&path](const Status& status) { return WithPath(path, status); };
  Result<const Architecture*> architecture = ReadArchitecture(*file);
  if (!architecture.ok()) return named(architecture.status());
  Result<ModelConfig> config = ReadConfig(*file, **architecture);
  if (!config.ok()) return named(config.status());
  Result<std::vector<PlacedTensor>> tensors = PlaceTensors(*file, **architecture, *config);
  if (!tensors.ok()) return named(tensors.status());
  Result<Tokenizer> tokenizer = LoadTokenizer(*file);
  if (!tokenizer.ok()) return named(tokenizer.status());
  // More embedding rows than tokens are padding; fewer rows would be read beyond their end.
  if (tokenizer->vocab_size() > config->vocab_size)
    return named(Status(StatusCode::kIoError, TokensName(*file) + " has " +
                                                  std::to_string(tokenizer->vocab_size()) +
                                                  " tokens, " + EmbeddingName() + " only " +
                                                  std::to_string(config->vocab_size) + " rows"));
  const int threads = options.threads == 0 ? DefaultThreads() : options.threads;
  Result<ReservedMemory> rewritten =
      RewriteTensors(*file, {options.weight_type, threads}, *tensors);
  if (!rewritten.ok()) return named(rewritten.status());
  ModelWeights weights = BindWeights(*tensors, *config);
  ReservedMemory packed;
  if (options.weights == WeightStorage::kPacked && KernelsFor(*isa).packed != nullptr) {
    Result<ReservedMemory> memory = PackWeights(*file, *rewritten, weights, threads);
    if (!memory.ok()) return named(memory.status());
    packed = *std::move(memory);
  }
  return Model(std::make_shared<const Impl>(
      Impl{std::move(file), *std::move(config), std::move(weights), *std::move(rewritten),
           std::move(packed), TensorInfos(*tensors), *std::move(tokenizer)}));
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
  for (const TensorInfo& tensor : impl_->tensors) bytes += tensor.size_bytes;
  return bytes;
}

std::int64_t Model::weight_bytes_per_token() const noexcept {
  std::int64_t bytes = 0;
  for (const TensorInfo& tensor : impl_->tensors)
    if (!IsLookedUp(tensor.name, config())) bytes += tensor.size_bytes;
  return bytes;
}

std::int64_t Model::packed_bytes() const noexcept { return impl_->packed.bytes(); }

std::int64_t Model::num_parameters() const noexcept {
  std::int64_t parameters = 0;
  for (const TensorInfo& tensor : impl_->tensors) {
    std::int64_t elements = 1;
    for (const std::int64_t size : tensor.shape) elements *= size;
    parameters += elements;
  }
  return parameters;
}

std::vector<TensorInfo> Model::tensors() const { return impl_->tensors; }

std::string_view Model::main_weight_type() const noexcept {
  std::int64_t bytes[256] = {};
  WeightType main = WeightType::kF32;
  for (const TensorInfo& tensor : impl_->tensors) {
    bytes[static_cast<std::uint8_t>(tensor.type)] += tensor.size_bytes;
    if (bytes[static_cast<std::uint8_t>(tensor.type)] > bytes[static_cast<std::uint8_t>(main)])
      main = tensor.type;
  }
  return WeightTypeName(main);
}

}  // namespace manyhead
