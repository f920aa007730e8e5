#include <utility>

#include "manyhead/memory.h"
#include "runtime/architecture/checkpoint_config.h"
#include "runtime/formats/checkpoint.h"
#include "runtime/model/place_tensors.h"
#include "runtime/text/load.h"

namespace manyhead {

Result<ModelShape> ReadModelShape(const std::string& path) {
  const Result<std::unique_ptr<const Checkpoint>> opened = Checkpoint::Open(path);
  if (!opened.ok()) return opened.status();
  const Checkpoint& file = **opened;
  const auto named = [&path](const Status& status) { return WithPath(path, status); };
  const Result<const Architecture*> architecture = ReadArchitecture(file);
  if (!architecture.ok()) return named(architecture.status());
  Result<ModelConfig> config = ReadConfig(file, **architecture);
  if (!config.ok()) return named(config.status());
  // This checks that every tensor exists and has the right shape.
  const Result<std::vector<PlacedTensor>> tensors = PlaceTensors(file, **architecture, *config);
  if (!tensors.ok()) return named(tensors.status());
  const Result<Tokenizer> tokenizer = LoadTokenizer(file);
  if (!tokenizer.ok()) return named(tokenizer.status());
  ModelShape shape;
  shape.config = *std::move(config);
  shape.tensors = TensorInfos(*tensors);
  shape.metadata_bytes = file.size_bytes();
  for (const TensorInfo& tensor : shape.tensors) shape.metadata_bytes -= tensor.size_bytes;
  shape.tokenizer_bytes = tokenizer->memory_bytes();
  return shape;
}

}  // namespace manyhead
