#include "runtime/architecture/checkpoint_config.h"

#include "runtime/architecture/gguf_config.h"
#include "runtime/architecture/hf_config.h"

namespace manyhead {

Result<const Architecture*> ReadArchitecture(const Checkpoint& file) {
  return file.format() == CheckpointFormat::kGguf ? ReadGgufArchitecture(file.config())
                                                  : ReadHfArchitecture(file.config());
}

Result<ModelConfig> ReadConfig(const Checkpoint& file, const Architecture& architecture) {
  return file.format() == CheckpointFormat::kGguf ? ReadGgufConfig(file, architecture)
                                                  : ReadHfConfig(file, architecture);
}

}  // namespace manyhead
