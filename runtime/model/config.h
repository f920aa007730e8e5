#pragma once

#include "manyhead/model.h"
#include "manyhead/status.h"
#include "runtime/formats/gguf.h"

namespace manyhead {

/// What differs between model families beyond the values of their metadata.
struct Family {
  const char* name;
  bool interleaved_rope;  ///< how the file's Q and K rows are ordered
  Activation activation;
  bool qk_norm;           ///< RMS norm of every query and key head before rotation
  bool post_norms;        ///< RMS norm of attention and feed-forward outputs before they are added
  bool scaled_embedding;  ///< embedding rows times sqrt(d_model)
  std::int64_t
      window_pattern;  ///< every n-th layer sees everything, the others a window; 0 = no such rule
};

/// The family of the file's general.architecture.
/// Errors   kIoError without the key, kUnsupported naming an architecture this library does not
/// know.
Result<Family> ReadFamily(const GgufFile& file);

/// The metadata of `file` as a config, checked for sense; tied_embeddings and vocab_size come from
/// tensors. Errors   kIoError naming the key and both values.
Result<ModelConfig> ReadConfig(const GgufFile& file, const Family& family);

}  // namespace manyhead
