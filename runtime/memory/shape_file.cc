#include <utility>

#include "manyhead/memory.h"
#include "runtime/architecture/gguf_config.h"
#include "runtime/formats/checkpoint.h"
#include "runtime/model/weights.h"
#include "runtime/text/load.h"

namespace manyhead {

Result<ModelShape> ReadModelShape(const std::string& path) {
  const Result<std::unique_ptr<const Checkpoint>> opened = Checkpoint::Open(path);
  if (!opened.ok()) return opened.status();
  const Checkpoint& file = **opened;
  const auto named = [&path](const Status& status) { return WithPath(path, status); };
  const Result<const Architecture*> architecture = ReadArchitecture(file.config());
  if (!architecture.ok()) return named(architecture.status());
  Result<ModelConfig> config = ReadGgufConfig(file, **architecture);
  if (!config.ok()) return named(config.status());
  // This checks that every tensor exists and has the right shape, and reads only the norms.
  if (const auto weights = BindWeights(file, **architecture, *config); !weights.ok())
    return named(weights.status());
  const Result<Tokenizer> tokenizer = LoadTokenizer(file.tokenizer());
  if (!tokenizer.ok()) return named(tokenizer.status());
  ModelShape shape;
  shape.config = *std::move(config);
  shape.tensors = TensorInfos(file);
  shape.metadata_bytes = file.size_bytes();
  for (const TensorInfo& tensor : shape.tensors) shape.metadata_bytes -= tensor.size_bytes;
  shape.tokenizer_bytes = tokenizer->memory_bytes();
  return shape;
}

}  // namespace manyhead
