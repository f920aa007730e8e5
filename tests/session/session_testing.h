#pragma once

#include <string>
#include <vector>

#include "manyhead/session.h"
#include "tests/model/tiny_model.h"
#include "tests/support/temp_dir.h"

namespace manyhead::testing {

/// The model of a file that is gone afterwards.
inline Result<Model> Load(const GgufWriter& file) {
  const TempDir folder;
  const std::string path = folder.File("model.gguf");
  file.Write(path);
  return Model::Load(path);  // the mapping outlives the name
}

inline SessionOptions Exact(Isa isa) {
  SessionOptions options;
  options.k_type = options.v_type = KvType::kF32;
  options.math = MathMode::kExact;
  options.threads = 1;
  options.isa = isa;
  return options;
}

inline std::vector<TokenId> Ids(int count, unsigned seed = 5) {
  std::vector<TokenId> ids;
  for (int i = 0; i < count; ++i)
    ids.push_back(static_cast<TokenId>((seed * 7919U + static_cast<unsigned>(i) * 104729U) % 259U));
  return ids;
}

}  // namespace manyhead::testing
