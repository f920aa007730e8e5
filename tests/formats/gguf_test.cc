#include "runtime/formats/gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/gguf_writer.h"
#include "tests/support/temp_dir.h"

namespace manyhead {
namespace {

using testing::ByteWriter;
using ::testing::ElementsAre;
using testing::GgufWriter;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::TempDir;

class GgufFileTest : public ::testing::Test {
 protected:
  /// Opens what `writer` writes, or fails the test.
  GgufFile Open(const GgufWriter& writer) {
    Result<GgufFile> file = GgufFile::Open(dir_.Write("model.gguf", writer.Bytes()));
    if (!file.ok()) {
      ADD_FAILURE() << file.status().message();
      std::abort();
    }
    return std::move(*file);
  }
  TempDir dir_;
};

template <class T>
void ExpectError(const Result<T>& result, const std::vector<const char*>& parts) {
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().code(), StatusCode::kIoError);
  for (const char* part : parts) EXPECT_THAT(result.status().message(), HasSubstr(part));
}

TEST_F(GgufFileTest, IntegersOfEveryTypeThatFits) {
  GgufWriter writer;
  writer.Add("u8", std::uint8_t{255}).Add("i8", std::int8_t{-128});
  writer.Add("u16", std::uint16_t{65535}).Add("i16", std::int16_t{-32768});
  writer.Add("u32", std::uint32_t{4294967295U}).Add("i32", std::int32_t{-7});
  writer.Add("u64", std::uint64_t{9223372036854775807U});
  writer.Add("i64", std::numeric_limits<std::int64_t>::min());
  writer.Add("big", std::uint64_t{9223372036854775808U});
  const GgufFile file = Open(writer);
  const std::pair<const char*, std::int64_t> expected[] = {
      {"u8", 255},
      {"i8", -128},
      {"u16", 65535},
      {"i16", -32768},
      {"u32", 4294967295},
      {"i32", -7},
      {"u64", std::numeric_limits<std::int64_t>::max()},
      {"i64", std::numeric_limits<std::int64_t>::min()}};
  for (const auto& [key, value] : expected) {
    const auto number = file.GetInt(key);
    ASSERT_TRUE(number.ok()) << number.status().message();
    EXPECT_EQ(**number, value) << key;
    EXPECT_EQ(**file.GetFloat(key), static_cast<double>(value)) << key;
    EXPECT_THAT(**file.GetInts(key), ElementsAre(value)) << key;
  }
  ExpectError(file.GetInt("big"), {"big", "9223372036854775808", "uint64", "int64"});
  ExpectError(file.GetInts("big"), {"big", "9223372036854775808", "uint64", "int64"});
  EXPECT_EQ(**file.GetFloat("big"), 9223372036854775808.0);
}

TEST_F(GgufFileTest, FloatsBoolsAndStrings) {
  GgufWriter writer;
  writer.Add("f32", 1.5F).Add("f64", 1e300).Add("yes", true).Add("no", false);
  writer.Add("text", "caf\xC3\xA9").Add("nothing", "");
  writer.Add("bytes", std::string_view("a\0\xFF\n", 4));
  const GgufFile file = Open(writer);
  EXPECT_EQ(**file.GetFloat("f32"), 1.5);
  EXPECT_EQ(**file.GetFloat("f64"), 1e300);
  EXPECT_THAT(**file.GetFloats("f32"), ElementsAre(1.5F));
  ExpectError(file.GetFloats("f64"), {"f64", "float64", "float32"});
  EXPECT_TRUE(**file.GetBool("yes"));
  EXPECT_FALSE(**file.GetBool("no"));
  EXPECT_EQ(**file.GetString("text"), "caf\xC3\xA9");
  EXPECT_EQ(**file.GetString("nothing"), "");
  EXPECT_EQ(**file.GetString("bytes"), std::string_view("a\0\xFF\n", 4));
  EXPECT_EQ(file.keys()[6].value, "a\\x00\\xff\\x0a");
}

TEST_F(GgufFileTest, Arrays) {
  GgufWriter writer;
  writer.Add("ints", std::vector<std::int32_t>{3, -4, 5});
  writer.Add("bytes", std::vector<std::uint8_t>{200, 1});
  writer.Add("floats", std::vector<float>{0.5F, -2, std::numeric_limits<float>::infinity()});
  writer.Add("doubles", std::vector<double>{0.25});
  writer.Add("strings", std::vector<std::string>{"a", "", "ccc", "d", "e"});
  writer.Add("none", std::vector<std::string>{});
  writer.Add("bools", std::vector<bool>{true, false});
  const GgufFile file = Open(writer);
  EXPECT_THAT(**file.GetInts("ints"), ElementsAre(3, -4, 5));
  EXPECT_THAT(**file.GetFloats("ints"), ElementsAre(3, -4, 5));
  EXPECT_THAT(**file.GetInts("bytes"), ElementsAre(200, 1));
  EXPECT_THAT(**file.GetFloats("floats"),
              ElementsAre(0.5F, -2, std::numeric_limits<float>::infinity()));
  EXPECT_THAT(**file.GetFloats("doubles"), ElementsAre(0.25F));
  EXPECT_THAT(**file.GetStrings("strings"), ElementsAre("a", "", "ccc", "d", "e"));
  EXPECT_THAT(**file.GetStrings("none"), IsEmpty());
  EXPECT_EQ(file.keys()[4].value, "[a, , ccc, d, ... 5 in all]");
  EXPECT_EQ(file.keys()[6].value, "[true, false]");
}

TEST_F(GgufFileTest, WrongTypesNameTheKeyAndBothTypes) {
  GgufWriter writer;
  writer.Add("text", "x").Add("int", 1).Add("float", 1.0F).Add("bool", true);
  writer.Add("strings", std::vector<std::string>{"x"}).Add("ints", std::vector<std::int32_t>{1});
  const GgufFile file = Open(writer);
  ExpectError(file.GetString("int"), {"model.gguf", "'int'", "int32", "expected a string"});
  ExpectError(file.GetString("strings"), {"array of string", "expected a string"});
  ExpectError(file.GetInt("float"), {"'float'", "float32", "expected an integer"});
  ExpectError(file.GetInt("bool"), {"'bool'", "of type bool", "expected an integer"});
  ExpectError(file.GetInt("ints"), {"array of int32", "expected an integer"});
  ExpectError(file.GetFloat("text"), {"'text'", "string", "expected a number"});
  ExpectError(file.GetFloat("ints"), {"array of int32", "expected a number"});
  ExpectError(file.GetBool("int"), {"'int'", "int32", "expected a bool"});
  ExpectError(file.GetStrings("text"), {"'text'", "string", "expected an array of strings"});
  ExpectError(file.GetStrings("ints"), {"array of int32", "expected an array of strings"});
  ExpectError(file.GetInts("float"), {"'float'", "float32", "expected integers"});
  ExpectError(file.GetInts("strings"), {"array of string", "expected integers"});
  ExpectError(file.GetFloats("bool"), {"of type bool", "expected numbers"});
}

TEST_F(GgufFileTest, AbsentKeysAndTensorsAreNothing) {
  GgufWriter writer;
  writer.Add("b", 1).AddTensor("t", WeightType::kF32, {1}, std::vector<float>{1});
  const GgufFile file = Open(writer);
  for (const char* key : {"", "a", "b ", "c"}) {
    EXPECT_FALSE(file.GetString(key)->has_value());
    EXPECT_FALSE(file.GetInt(key)->has_value());
    EXPECT_FALSE(file.GetFloat(key)->has_value());
    EXPECT_FALSE(file.GetBool(key)->has_value());
    EXPECT_FALSE(file.GetStrings(key)->has_value());
    EXPECT_FALSE(file.GetInts(key)->has_value());
    EXPECT_FALSE(file.GetFloats(key)->has_value());
    EXPECT_EQ(file.FindTensor(key), nullptr);
  }
}

TEST_F(GgufFileTest, TensorsInFileOrderWithTheirData) {
  const std::vector<float> floats = {1, 2, 3, 4, 5, 6};
  std::string blocks;
  for (int i = 0; i < 3 * 2 * 34; ++i) blocks.push_back(static_cast<char>(i));
  for (std::uint64_t alignment : {8, 32, 4096}) {
    for (std::uint32_t version : {2U, 3U}) {
      GgufWriter writer;
      writer.version = version;
      writer.alignment = alignment;
      writer.Add("general.alignment", static_cast<std::uint32_t>(alignment));
      writer.AddTensor("z.weight", WeightType::kF32, {3, 2}, floats);
      writer.AddTensor("a.weight", WeightType::kQ8_0, {64, 1, 3}, blocks);
      const GgufFile file = Open(writer);
      EXPECT_EQ(file.version(), static_cast<int>(version));
      ASSERT_EQ(file.tensors().size(), 2U);
      const StoredTensor& z = file.tensors()[0];
      EXPECT_EQ(z.name, "z.weight");
      EXPECT_EQ(z.type, WeightType::kF32);
      EXPECT_EQ(z.num_dims, 2);
      EXPECT_THAT(z.shape, ElementsAre(3, 2, 1, 1));
      EXPECT_EQ(z.cols(), 3);
      EXPECT_EQ(z.rows(), 2);
      EXPECT_EQ(z.size_bytes, 24);
      EXPECT_EQ(std::memcmp(z.data, floats.data(), 24), 0);
      const StoredTensor* a = file.FindTensor("a.weight");
      ASSERT_EQ(a, &file.tensors()[1]);
      EXPECT_EQ(a->type, WeightType::kQ8_0);
      EXPECT_EQ(a->num_dims, 3);
      EXPECT_EQ(a->rows(), 3);
      EXPECT_EQ(a->size_bytes, 3 * 2 * 34);
      EXPECT_EQ(std::memcmp(a->data, blocks.data(), blocks.size()), 0);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(a->data) % alignment, 0U);
    }
  }
}

TEST_F(GgufFileTest, KeysInFileOrderAndFileFacts) {
  GgufWriter writer;
  writer.Add("z", std::uint64_t{18446744073709551615U}).Add("a", 0.5F).Add("m", "text");
  const GgufFile file = Open(writer);
  const std::vector<GgufFile::KeyInfo> keys = file.keys();
  ASSERT_EQ(keys.size(), 3U);
  EXPECT_EQ(keys[0].key, "z");
  EXPECT_EQ(keys[0].type, GgufType::kUint64);
  EXPECT_EQ(keys[0].value, "18446744073709551615");
  EXPECT_EQ(keys[1].key, "a");
  EXPECT_EQ(keys[1].value, "0.5");
  EXPECT_EQ(keys[2].value, "text");
  EXPECT_EQ(file.path(), dir_.File("model.gguf"));
  EXPECT_EQ(file.size_bytes(), static_cast<std::int64_t>(writer.Bytes().size()));
  file.Prefetch();
}

// ggml-org/llama.cpp#12567: models with tied embeddings have no output.weight; others have no
// tensors at all (vocabulary files), also behind an alignment that the file does not reach.
TEST_F(GgufFileTest, FilesWithoutTensorsOrKeys) {
  EXPECT_THAT(Open(GgufWriter()).tensors(), IsEmpty());
  GgufWriter vocabulary;
  vocabulary.Add("general.alignment", std::uint32_t{65536});
  const GgufFile file = Open(vocabulary);
  EXPECT_EQ(file.FindTensor("output.weight"), nullptr);
}

TEST_F(GgufFileTest, MovedFilesStayReadable) {
  GgufWriter writer;
  writer.Add("key", "value").AddTensor("t", WeightType::kF32, {1}, std::vector<float>{7});
  GgufFile file = Open(writer);
  const StoredTensor* tensor = file.FindTensor("t");
  const GgufFile moved = std::move(file);
  EXPECT_EQ(**moved.GetString("key"), "value");
  EXPECT_EQ(moved.FindTensor("t"), tensor);
}

}  // namespace
}  // namespace manyhead
