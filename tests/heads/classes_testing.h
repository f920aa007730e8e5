#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "manyhead/model.h"
#include "tests/model/tiny_model.h"

namespace manyhead::testing {

/// The model by way of a file that is gone afterwards.
inline Model LoadTiny(const TinyModel& tiny) {
  const std::string path = (std::filesystem::temp_directory_path() /
                            ("manyhead_classes_" + std::to_string(getpid()) + ".gguf"))
                               .string();
  tiny.ToGguf().Write(path);
  Result<Model> model = Model::Load(path);  // the mapping outlives the name
  std::filesystem::remove(path);
  EXPECT_TRUE(model.ok()) << model.status().message();
  return *std::move(model);
}

/// Numbers in [0, 1) that are the same everywhere.
class Numbers {
 public:
  explicit Numbers(std::uint32_t seed) : state_(seed * 2654435761U + 1) {}
  double Next() {
    state_ = state_ * 1664525U + 1013904223U;
    return static_cast<double>(state_ >> 8) * 0x1p-24;
  }

 private:
  std::uint32_t state_;
};

}  // namespace manyhead::testing
