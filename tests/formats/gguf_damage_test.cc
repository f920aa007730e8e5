#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/formats/gguf.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/memory_file.h"
#include "tests/support/temp_dir.h"

namespace manyhead {
namespace {

using testing::GgufWriter;
using ::testing::HasSubstr;
using testing::MemoryFile;
using testing::TempDir;

/// Keys of every kind and two tensors; small enough to be damaged at every bit.
std::string SmallFile() {
  GgufWriter writer;
  writer.Add("general.architecture", "llama").Add("general.alignment", std::uint32_t{32});
  writer.Add("count", std::uint64_t{2}).Add("rate", 0.5F).Add("flag", true);
  writer.Add("tokens", std::vector<std::string>{"a", "bc", ""});
  writer.Add("scores", std::vector<float>{1, 2, 3});
  writer.Add("types", std::vector<std::int32_t>{1, 2});
  std::string block(34, '\x5A');
  writer.AddTensor("first.weight", WeightType::kF32, {3, 5}, std::vector<float>(15, 1.0F));
  writer.AddTensor("second.weight", WeightType::kQ8_0, {32, 1}, block);
  return writer.Bytes();
}

/// Uses everything a file offers, so that a bad pointer faults. Returns something of every byte.
std::uint64_t ReadEverything(const GgufFile& file) {
  std::uint64_t sum = 0;
  for (const GgufFile::KeyInfo& info : file.keys()) {
    sum += info.value.size() + static_cast<std::uint64_t>(info.type);
    sum +=
        file.GetString(info.key).ok() + file.GetInt(info.key).ok() + file.GetFloat(info.key).ok();
    sum += file.GetBool(info.key).ok() + file.GetStrings(info.key).ok();
    sum += file.GetInts(info.key).ok() + file.GetFloats(info.key).ok();
  }
  for (const StoredTensor& tensor : file.tensors()) {
    sum += file.FindTensor(tensor.name) == &tensor;
    sum += tensor.cols() * tensor.rows();
    for (std::int64_t i = 0; i < tensor.size_bytes; ++i)
      sum += std::to_integer<int>(tensor.data[i]);
  }
  return sum;
}

// ggml-org/llama.cpp#6774: a truncated file must fail when it is opened, not when it is used.
TEST(DamagedGguf, EveryShorterFileIsRefused) {
  const std::string whole = SmallFile();
  const MemoryFile memory;
  for (std::size_t length = 0; length < whole.size(); ++length) {
    ASSERT_TRUE(memory.Set(whole.substr(0, length)));
    const Result<GgufFile> file = GgufFile::Open(memory.path());
    ASSERT_FALSE(file.ok()) << length << " of " << whole.size() << " bytes";
    EXPECT_EQ(file.status().code(), StatusCode::kIoError);
    EXPECT_THAT(file.status().message(), HasSubstr(memory.path()));
  }
  ASSERT_TRUE(memory.Set(whole) && GgufFile::Open(memory.path()).ok());
}

TEST(DamagedGguf, TruncationNamesTheFirstTensorThatIsCut) {
  const std::string whole = SmallFile();
  const TempDir dir;
  const std::string second = dir.Write("second.gguf", whole.substr(0, whole.size() - 1));
  EXPECT_THAT(GgufFile::Open(second).status().message(),
              HasSubstr("tensor 'second.weight' of 34 bytes at data offset 64 does not fit: the "
                        "file has 97 bytes of data"));
  const std::string first = dir.Write("first.gguf", whole.substr(0, whole.size() - 34 - 5));
  EXPECT_THAT(GgufFile::Open(first).status().message(),
              HasSubstr("tensor 'first.weight' of 60 bytes at data offset 0 does not fit: the file "
                        "has 59 bytes of data"));
}

TEST(DamagedGguf, LargerFileCutAtEverySixteenth) {
  GgufWriter writer;
  for (int i = 0; i < 16; ++i)
    writer.AddTensor("blk." + std::to_string(i), WeightType::kF32, {64, 64},
                     std::vector<float>(4096, 1.0F));
  const std::string whole = writer.Bytes();
  const TempDir dir;
  for (std::size_t i = 1; i < 16; ++i) {
    const std::string path = dir.Write("cut.gguf", whole.substr(0, whole.size() * i / 16));
    EXPECT_THAT(GgufFile::Open(path).status().message(),
                HasSubstr("tensor 'blk." + std::to_string(i - 1) + "' of 16384 bytes"))
        << i;
  }
}

TEST(DamagedGguf, EveryFlippedBitIsRefusedOrHarmless) {
  const std::string whole = SmallFile();
  const MemoryFile memory;
  int refused = 0;
  for (std::size_t bit = 0; bit < whole.size() * 8; ++bit) {
    std::string bytes = whole;
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ 1 << bit % 8);
    ASSERT_TRUE(memory.Set(bytes));
    const Result<GgufFile> file = GgufFile::Open(memory.path());
    if (file.ok()) {
      EXPECT_GT(ReadEverything(*file), 0U);
    } else {
      ++refused;
      EXPECT_FALSE(file.status().message().empty());
    }
  }
  EXPECT_GT(refused, 800);
}

TEST(DamagedGguf, BytesBehindTheLastTensorAreIgnored) {
  const TempDir dir;
  const Result<GgufFile> file = GgufFile::Open(dir.Write("long.gguf", SmallFile() + "more"));
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(file->tensors().size(), 2U);
}

}  // namespace
}  // namespace manyhead
