#include <utility>

#include "manyhead/memory.h"
#include "runtime/formats/gguf.h"
#include "runtime/model/config.h"
#include "runtime/model/weights.h"
#include "runtime/text/load.h"

namespace manyhead {

Result<ModelShape> ReadModelShape(const std::string& path) {
  const Result<GgufFile> file = GgufFile::Open(path);
  if (!file.ok()) return file.status();
  const auto named = [&path](const Status& status) {
    return Status(status.code(), path + ": " + status.message());
  };
  const Result<Family> family = ReadFamily(*file);
  if (!family.ok()) return named(family.status());
  Result<ModelConfig> config = ReadConfig(*file, *family);
  if (!config.ok()) return named(config.status());
  // Checks that every tensor is there and of the right shape, and reads no more than the norms.
  if (const auto weights = BindWeights(*file, *family, *config); !weights.ok())
    return named(weights.status());
  const Result<Tokenizer> tokenizer = LoadTokenizer(*file);
  if (!tokenizer.ok()) return named(tokenizer.status());
  ModelShape shape;
  shape.config = *std::move(config);
  shape.tensors = TensorInfos(*file);
  shape.metadata_bytes = file->size_bytes();
  for (const TensorInfo& tensor : shape.tensors) shape.metadata_bytes -= tensor.size_bytes;
  shape.tokenizer_bytes = tokenizer->memory_bytes();
  return shape;
}

}  // namespace manyhead
