#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "manyhead/model.h"
#include "tests/support/read_bytes.h"
#include "tests/support/temp_dir.h"

// Damaged folders: an error of one line, or a model.

namespace manyhead {
namespace {

using ::manyhead::testing::ReadBytes;
using ::manyhead::testing::TempDir;
namespace fs = std::filesystem;

/// Changes a few bytes within the first `most`, takes some out, or puts some in twice.
std::string Damaged(std::string bytes, std::size_t most, std::mt19937& random) {
  const std::size_t size = std::min(bytes.size(), most);
  const std::size_t changes = 1 + random() % 3;
  for (std::size_t i = 0; i < changes; ++i) {
    const std::size_t at = random() % size;
    switch (random() % 4) {
      case 0:
        bytes[at] = static_cast<char>(random());
        break;
      case 1:
        bytes[at] = static_cast<char>(bytes[at] ^ (1 << (random() % 8)));
        break;
      case 2:
        bytes.erase(at, 1 + random() % 16);
        break;
      default:
        bytes.insert(at, bytes.substr(at, 1 + random() % 16));
        break;
    }
    if (bytes.size() < size) bytes.resize(size, '0');
  }
  return bytes;
}

class HfDamage : public ::testing::TestWithParam<const char*> {};

TEST_P(HfDamage, TwoHundredDamagedFilesGiveAModelOrOneLine) {
  const std::string source =
      std::string(MANYHEAD_SOURCE_DIR) + "/tests/model/data/hf/llama-sharded";
  const TempDir folder;
  for (const auto& file : fs::directory_iterator(source)) fs::copy(file.path(), folder.path());
  const std::string file = GetParam(), whole = ReadBytes(source + "/" + file);
  ASSERT_FALSE(whole.empty());
  constexpr std::size_t kMost = 4096;  // the beginning of tensors: their header
  std::mt19937 random(17);
  int refused = 0;
  for (int i = 0; i < 200; ++i) {
    folder.Write(file, Damaged(whole, kMost, random));
    const Result<Model> model = Model::Load(folder.path());
    if (model.ok()) continue;
    ++refused;
    for (const char c : model.status().message())
      ASSERT_GE(static_cast<unsigned char>(c), 0x20) << model.status().message();
  }
  EXPECT_GE(refused, 50);
}

INSTANTIATE_TEST_SUITE_P(, HfDamage,
                         ::testing::Values("config.json", "tokenizer.json",
                                           "generation_config.json", "model.safetensors.index.json",
                                           "model-00001-of-00002.safetensors"),
                         [](const auto& test) {
                           std::string name = test.param;
                           for (char& c : name)
                             if (c == '.' || c == '-') c = '_';
                           return name;
                         });

}  // namespace
}  // namespace manyhead
