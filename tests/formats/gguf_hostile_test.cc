#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "runtime/formats/gguf.h"
#include "tests/support/allocation_meter.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/temp_dir.h"

namespace manyhead {
namespace {

using testing::ByteWriter;
using testing::GgufWriter;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::TempDir;

constexpr std::int64_t kInt64Max = std::numeric_limits<std::int64_t>::max();

struct HostileCase {
  const char* name;
  std::string bytes;
  StatusCode code;
  std::vector<const char*> message_parts;
};

void PrintTo(const HostileCase& hostile, std::ostream* out) { *out << hostile.name; }

GgufWriter OneTensor(GgufWriter::Tensor tensor) {
  return GgufWriter().AddTensor(std::move(tensor));
}

GgufWriter WithAlignment(std::uint32_t alignment) {
  GgufWriter writer;
  writer.alignment = 64;
  return writer.Add("general.alignment", alignment)
      .AddTensor("t", WeightType::kF32, {1}, std::vector<float>{1});
}

/// A tensor that says n_dims = `num_dims` but whose file holds `present` of them.
std::string WithDims(std::int64_t num_dims, std::size_t present) {
  return OneTensor({.name = "t",
                    .shape = std::vector<std::int64_t>(present, 1),
                    .data = std::string(4, '\0'),
                    .num_dims = num_dims})
      .Bytes();
}

std::string WithShape(std::vector<std::int64_t> shape, WeightType type = WeightType::kF32) {
  return OneTensor({.name = "t",
                    .shape = std::move(shape),
                    .type_id = static_cast<std::uint32_t>(type),
                    .data = std::string(64, '\0')})
      .Bytes();
}

std::string Header(const char* magic, std::uint32_t version, std::uint64_t tensor_count,
                   std::uint64_t kv_count) {
  return ByteWriter().Raw(magic).Put(version).Put(tensor_count).Put(kv_count).bytes();
}

std::string WithKey(std::uint32_t type, const ByteWriter& value) {
  return GgufWriter().Key("k", GgufType{type}, value).Bytes();
}

ByteWriter ArrayHead(std::uint32_t type, std::uint64_t count) {
  return ByteWriter().Put(type).Put(count);
}

std::vector<HostileCase> FileCases() {
  constexpr StatusCode kIo = StatusCode::kIoError, kNot = StatusCode::kUnsupported;
  const std::string zeros(64, '\0');
  return {
      {"magic", Header("GGML", 3, 0, 0), kIo, {"\"GGML\"", "expected \"GGUF\""}},
      {"magic_of_an_escape", "\x1B[2J" + zeros, kIo, {"\\x1b[2J"}},
      {"three_bytes", "GGU", kIo, {"3 bytes", "magic"}},
      {"version_0", Header("GGUF", 0, 0, 0), kNot, {"version 0; expected 2 or 3"}},
      {"version_1", Header("GGUF", 1, 0, 0), kNot, {"version 1; expected 2 or 3"}},
      {"version_4", Header("GGUF", 4, 0, 0), kNot, {"version 4; expected 2 or 3"}},
      // ggml-org/llama.cpp#3298: version bytes 00 00 00 03.
      {"big_endian", Header("GGUF", 0x03000000, 0, 0), kNot, {"big-endian", "version 3"}},
      {"version_of_noise",
       Header("GGUF", 0xFFFFFFFF, 0, 0),
       kNot,
       {"version 4294967295; expected 2 or 3"}},
      // antirez/gguf-tools#25: counts and lengths from the file.
      {"kv_count",
       Header("GGUF", 3, 0, 1ULL << 60) + zeros,
       kIo,
       {"kv_count = 1152921504606846976", "88 bytes"}},
      {"kv_count_wraps",  // 2^63 keys of 14 bytes are 7 * 2^64 bytes
       Header("GGUF", 3, 0, 1ULL << 63) + zeros,
       kIo,
       {"kv_count = 9223372036854775808", "88 bytes"}},
      {"tensor_count",
       Header("GGUF", 3, 1ULL << 60, 0) + zeros,
       kIo,
       {"tensor_count = 1152921504606846976", "88 bytes"}},
      {"tensor_count_behind_keys",
       [] {
         GgufWriter writer;
         writer.Add("k", std::string(200, 'x'));
         writer.tensor_count = 3;
         return writer.Bytes();
       }(),
       kIo,
       {"tensor_count = 3", "0 bytes behind the keys"}},
  };
}

std::vector<HostileCase> KeyCases() {
  constexpr StatusCode kIo = StatusCode::kIoError;
  const std::string zeros(64, '\0');
  const std::string one_key = Header("GGUF", 3, 0, 1);
  return {
      {"key_length",
       one_key + ByteWriter().Put(1ULL << 63).bytes() + zeros,
       kIo,
       {"key 1 of 1", "9223372036854775808", "64 bytes left"}},
      {"key_length_wraps",
       one_key + ByteWriter().Put(~0ULL).bytes() + zeros,
       kIo,
       {"18446744073709551615", "64 bytes left"}},
      {"key_too_long",
       GgufWriter().Add(std::string(65536, 'k'), 1).Bytes(),
       kIo,
       {"has 65536 bytes; expected 1 to 65535"}},
      {"key_empty", GgufWriter().Add("", 1).Bytes(), kIo, {"has 0 bytes; expected 1 to 65535"}},
      {"value_type",
       WithKey(13, ByteWriter().Raw(zeros)),
       kIo,
       {"'k' has value type 13; expected 0 to 12"}},
      {"value_type_max",
       WithKey(0xFFFFFFFF, ByteWriter().Raw(zeros)),
       kIo,
       {"'k' has value type 4294967295"}},
      {"string_length",
       WithKey(8, ByteWriter().Put(1ULL << 62).Raw(zeros)),
       kIo,
       {"'k'", "4611686018427387904", "64 bytes left"}},
      {"bool_2",
       GgufWriter().Key("k", GgufType::kBool, ByteWriter().Put<char>(2)).Bytes(),
       kIo,
       {"'k'", "bool of value 2"}},
      {"bool_array",
       WithKey(9, ArrayHead(7, 2).Put<char>(1).Put<char>(7)),
       kIo,
       {"'k'", "bool of value 7"}},
      {"array_type",
       WithKey(9, ArrayHead(99, 1).Raw(zeros)),
       kIo,
       {"'k' is an array of value type 99"}},
      {"array_of_arrays",
       WithKey(9, ArrayHead(9, 1).Raw(ArrayHead(4, 1).bytes()).Raw(zeros)),
       kIo,
       {"'k' is an array of arrays"}},
      {"array_count",
       WithKey(9, ArrayHead(4, 17).Raw(zeros)),
       kIo,
       {"'k' is an array of 17 uint32", "64 bytes left"}},
      {"array_count_wraps",
       WithKey(9, ArrayHead(4, (1ULL << 62) + 1).Raw(zeros)),
       kIo,
       {"4611686018427387905 uint32", "64 bytes left"}},
      {"array_of_many_strings",
       WithKey(9, ArrayHead(8, 1ULL << 61).Raw(zeros)),
       kIo,
       {"2305843009213693952 string", "64 bytes left"}},
      {"string_in_array",
       WithKey(9, ArrayHead(8, 2).Text("ok").Put(1000ULL).Put(0ULL)),
       kIo,
       {"string 2 of 2 of key 'k'", "1000", "8 bytes left"}},
      {"key_twice",
       GgufWriter().Add("b", 1).Add("a", 1).Add("b", 1).Bytes(),
       kIo,
       {"key 'b' appears twice, at bytes 24 and 58"}},
      {"key_name_escaped",
       GgufWriter().Key("\x1B]0;x\x07", GgufType{77}, {}).Bytes(),
       kIo,
       {"'\\x1b]0;x\\x07'"}},
  };
}

std::vector<HostileCase> AlignmentCases() {
  constexpr StatusCode kIo = StatusCode::kIoError;
  constexpr const char* kExpected = "expected a power of two from 8 to 1073741824";
  GgufWriter text;
  text.Add("general.alignment", "32").AddTensor("t", WeightType::kF32, {1}, std::string(4, '\0'));
  GgufWriter negative;
  negative.Add("general.alignment", std::int64_t{-32});
  return {
      {"alignment_0", WithAlignment(0).Bytes(), kIo, {"general.alignment = 0", kExpected}},
      {"alignment_4", WithAlignment(4).Bytes(), kIo, {"general.alignment = 4", kExpected}},
      {"alignment_48", WithAlignment(48).Bytes(), kIo, {"general.alignment = 48", kExpected}},
      {"alignment_2_31", WithAlignment(1U << 31).Bytes(), kIo, {"= 2147483648", kExpected}},
      {"alignment_max", WithAlignment(~0U).Bytes(), kIo, {"= 4294967295", kExpected}},
      {"alignment_2_30",
       WithAlignment(1U << 30).Bytes(),
       kIo,
       {"tensor 't' of 4 bytes", "0 bytes of data"}},
      {"alignment_negative", negative.Bytes(), kIo, {"general.alignment = -32", kExpected}},
      {"alignment_text", text.Bytes(), kIo, {"'general.alignment'", "string", "an integer"}},
  };
}

std::vector<HostileCase> TensorCases() {
  constexpr StatusCode kIo = StatusCode::kIoError, kNot = StatusCode::kUnsupported;
  const std::string four(4, '\0');
  const std::string one_tensor = Header("GGUF", 3, 1, 0);
  const std::string name_length_wraps =
      one_tensor + ByteWriter().Put(~0ULL).Raw(std::string(64, '\0')).bytes();
  return {
      {"dims_0", WithDims(0, 0), kIo, {"'t': n_dims = 0; expected 1 to 4"}},
      {"dims_5", WithDims(5, 5), kIo, {"'t': n_dims = 5; expected 1 to 4"}},
      {"dims_9", WithDims(9, 9), kIo, {"'t': n_dims = 9; expected 1 to 4"}},
      {"dims_max", WithDims(0xFFFFFFFF, 4), kIo, {"'t': n_dims = 4294967295; expected 1 to 4"}},
      {"dim_0", WithShape({4, 0}), kIo, {"'t': dimension 1 = 0; expected at least 1"}},
      {"dim_negative", WithShape({-4}), kIo, {"'t': dimension 0 = -4; expected at least 1"}},
      {"dim_min",
       WithShape({1, std::numeric_limits<std::int64_t>::min()}),
       kIo,
       {"dimension 1 = -9223372036854775808"}},
      {"bytes_overflow",
       WithShape({kInt64Max}),
       kIo,
       {"'t': the size of 9223372036854775807 F32 overflows"}},
      {"product_overflow",
       WithShape({1LL << 32, 1LL << 32}),
       kIo,
       {"the size of 4294967296 x 4294967296 F32 overflows"}},
      {"product_wraps_to_0",
       WithShape({1LL << 31, 1LL << 31, 1LL << 31, 1LL << 31}),
       kIo,
       {"overflows"}},
      {"elements_overflow",  // 2^63 elements in 2^62.3 bytes
       WithShape({1LL << 32, 1LL << 31}, WeightType::kQ4_0),
       kIo,
       {"Q4_0 overflows"}},
      {"block",
       WithShape({33}, WeightType::kQ8_0),
       kIo,
       {"'t': dimension 0 = 33 is not a multiple of the block of Q8_0 = 32"}},
      {"block_k",
       WithShape({128, 2}, WeightType::kQ4_K),
       kIo,
       {"'t': dimension 0 = 128 is not a multiple of the block of Q4_K = 256"}},
      {"type_ffff",
       OneTensor({.name = "t", .shape = {1}, .type_id = 0xFFFF, .data = four}).Bytes(),
       kNot,
       {"'t': type id 65535"}},
      // 256 * 2^24 + 2: an id whose low byte is a type that can be read.
      {"type_wraps",
       OneTensor({.name = "t", .shape = {32}, .type_id = 0x102, .data = four}).Bytes(),
       kNot,
       {"'t': type id 258"}},
      {"offset_unaligned",
       OneTensor({.name = "t", .shape = {1}, .data = std::string(64, '\0'), .offset = 4}).Bytes(),
       kIo,
       {"'t': offset = 4 is not a multiple of the alignment = 32"}},
      {"offset_outside",
       OneTensor({.name = "t", .shape = {1}, .data = four, .offset = 64}).Bytes(),
       kIo,
       {"'t' of 4 bytes at data offset 64", "4 bytes of data"}},
      {"offset_wraps",
       OneTensor({.name = "t",
                  .shape = {16},  // so that offset + size is 32
                  .data = std::string(64, '\0'),
                  .offset = ~0ULL - 31})
           .Bytes(),
       kIo,
       {"'t' of 64 bytes at data offset 18446744073709551584"}},
      {"name_length",
       name_length_wraps,
       kIo,
       {"the name of tensor 1 of 1", "18446744073709551615", "64 bytes left"}},
      {"name_empty",
       OneTensor({.name = "", .shape = {1}, .data = std::string(64, '\0')}).Bytes(),
       kIo,
       {"the name of tensor 1 of 1 has 0 bytes"}},
      {"first_outside",
       GgufWriter()
           .AddTensor({.name = "in", .shape = {1}, .data = four})
           .AddTensor({.name = "out", .shape = {16}, .data = four})
           .AddTensor({.name = "far", .shape = {99}})
           .Bytes(),
       kIo,
       {"tensor 'out' of 64 bytes at data offset 32", "64 bytes of data"}},
      {"overlap",
       GgufWriter()
           .AddTensor({.name = "b", .shape = {8}, .data = std::string(32, '\0'), .offset = 32})
           .AddTensor({.name = "a", .shape = {9}, .data = std::string(36, '\0'), .offset = 0})
           .Bytes(),
       kIo,
       {"tensor 'b' at data offset 32 overlaps tensor 'a', which ends at 36"}},
      {"same_place",
       GgufWriter()
           .AddTensor({.name = "b", .shape = {1}, .data = four})
           .AddTensor({.name = "a", .shape = {1}, .offset = 0})
           .Bytes(),
       kIo,
       {"overlaps"}},
      // ggml-org/llama.cpp#6836.
      {"tensor_twice",
       GgufWriter()
           .AddTensor("blk.0.attn_q.weight", WeightType::kF32, {1}, std::vector<float>{1})
           .AddTensor("other", WeightType::kF32, {1}, std::vector<float>{1})
           .AddTensor("blk.0.attn_q.weight", WeightType::kF32, {1}, std::vector<float>{2})
           .Bytes(),
       kIo,
       {"tensor 'blk.0.attn_q.weight' appears twice, as numbers 1 and 3 of 3"}},
  };
}

class HostileGgufTest : public ::testing::TestWithParam<HostileCase> {};

TEST_P(HostileGgufTest, IsRefusedInOneLineWithLittleMemory) {
  const HostileCase& hostile = GetParam();
  const TempDir dir;
  const std::string path = dir.Write("hostile.gguf", hostile.bytes);
  testing::ResetAllocationMeter();
  const Result<GgufFile> file = GgufFile::Open(path);
  const std::size_t largest = testing::LargestAllocationBytes();
  ASSERT_FALSE(file.ok());
  EXPECT_LE(largest, std::size_t{64} << 10);
  EXPECT_EQ(file.status().code(), hostile.code);
  const std::string& message = file.status().message();
  EXPECT_THAT(message, HasSubstr(path));
  EXPECT_THAT(message, Not(HasSubstr("\n")));
  EXPECT_LE(message.size(), path.size() + 300);
  for (const char* part : hostile.message_parts) EXPECT_THAT(message, HasSubstr(part));
}

const auto kCaseName = [](const auto& test) { return std::string(test.param.name); };
INSTANTIATE_TEST_SUITE_P(File, HostileGgufTest, ::testing::ValuesIn(FileCases()), kCaseName);
INSTANTIATE_TEST_SUITE_P(Key, HostileGgufTest, ::testing::ValuesIn(KeyCases()), kCaseName);
INSTANTIATE_TEST_SUITE_P(Alignment, HostileGgufTest, ::testing::ValuesIn(AlignmentCases()),
                         kCaseName);
INSTANTIATE_TEST_SUITE_P(Tensor, HostileGgufTest, ::testing::ValuesIn(TensorCases()), kCaseName);

// Comparing each name with all before it would need 10^10 comparisons: the test would time out.
TEST(HostileGguf, HundredThousandNamesAreNoProblem) {
  GgufWriter writer;
  constexpr int kCount = 100000;
  const std::vector<float> one = {1};
  for (int i = 0; i < kCount; ++i) {
    writer.Add("k" + std::to_string(i), std::uint8_t{1});
    writer.AddTensor("t" + std::to_string(i), WeightType::kF32, {1}, one);
  }
  const TempDir dir;
  const Result<GgufFile> file = GgufFile::Open(dir.Write("many.gguf", writer.Bytes()));
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(file->tensors().size(), std::size_t{kCount});
  for (int i = 0; i < kCount; i += 777) {
    EXPECT_EQ(**file->GetInt("k" + std::to_string(i)), 1);
    EXPECT_EQ(file->FindTensor("t" + std::to_string(i)), &file->tensors()[i]);
  }
  writer.AddTensor("t50000", WeightType::kF32, {1}, one);
  EXPECT_THAT(GgufFile::Open(dir.Write("twice.gguf", writer.Bytes())).status().message(),
              HasSubstr("'t50000' appears twice"));
}

}  // namespace
}  // namespace manyhead
