#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "manyhead/model.h"
#include "tests/model/tiny_model.h"

namespace manyhead::testing {

/// `tiny` as a loaded model.
inline Model Load(const TinyModel& tiny) {
  const std::string path = (std::filesystem::temp_directory_path() /
                            ("manyhead_heads_" + std::to_string(getpid()) + ".gguf"))
                               .string();
  tiny.ToGguf().Write(path);
  Result<Model> model = Model::Load(path);  // the mapping outlives the name
  std::filesystem::remove(path);
  EXPECT_TRUE(model.ok()) << model.status().message();
  return *std::move(model);
}

inline TinyModel MakeTiny(const std::string& family, std::int64_t window) {
  TinyModel tiny;
  tiny.family = family;
  tiny.window = window;
  tiny.window_pattern = window > 0 ? 2 : 0;
  tiny.num_heads = 6;
  tiny.MakeWeights(3);
  return tiny;
}

inline std::vector<TokenId> SomeIds(int count, unsigned seed = 35) {
  std::vector<TokenId> ids;
  for (int i = 0; i < count; ++i)
    ids.push_back(static_cast<TokenId>((seed + static_cast<unsigned>(i) * 104729U) % 259U));
  return ids;
}

}  // namespace manyhead::testing
