#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "manyhead/model.h"
#include "tests/model/tiny_model.h"
#include "tests/support/temp_dir.h"

namespace manyhead::testing {

/// The model by way of a file that is gone afterwards.
inline Model LoadTiny(const TinyModel& tiny) {
  const TempDir folder;
  const std::string path = folder.File("tiny.gguf");
  tiny.ToGguf().Write(path);
  Result<Model> model = Model::Load(path);  // the mapping outlives the name
  EXPECT_TRUE(model.ok()) << model.status().message();
  return *std::move(model);
}

/// Ids of the tiny model's tokens without a pattern.
inline std::vector<TokenId> SomeIds(std::int64_t count, unsigned first = 35) {
  std::vector<TokenId> ids;
  for (std::int64_t i = 0; i < count; ++i)
    ids.push_back(static_cast<TokenId>((first + static_cast<unsigned>(i) * 104729U) % 259U));
  return ids;
}

}  // namespace manyhead::testing
