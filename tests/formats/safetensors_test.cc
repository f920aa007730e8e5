#include "runtime/formats/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "tests/support/safetensors_file.h"

namespace manyhead {
namespace {

using ::manyhead::testing::SafetensorsFile;
using ::testing::HasSubstr;

std::span<const std::byte> BytesOf(const std::string& file) {
  return std::as_bytes(std::span(file.data(), file.size()));
}

std::string MessageOf(const std::string& file) {
  const Result<SafetensorsIndex> index = ParseSafetensors(BytesOf(file), "m.safetensors");
  return index.ok() ? "no error" : index.status().message();
}

TEST(Safetensors, ListsTensorsInTheOrderOfTheirData) {
  const std::string file =
      SafetensorsFile(R"({"__metadata__":{"format":"pt"},)"
                      R"("b":{"dtype":"BF16","shape":[2,3],"data_offsets":[8,20]},)"
                      R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                      R"("mask":{"dtype":"BOOL","shape":[1,4],"data_offsets":[20,24]},)"
                      R"("one":{"dtype":"F16","shape":[],"data_offsets":[24,26]}})",
                      std::string(26, '\1'));
  const Result<SafetensorsIndex> index = ParseSafetensors(BytesOf(file), "m.safetensors");
  ASSERT_TRUE(index.ok()) << index.status().message();
  ASSERT_EQ(index->tensors.size(), 3U);
  const StoredTensor& a = index->tensors[0];
  const StoredTensor& b = index->tensors[1];
  EXPECT_EQ(a.name, "a");
  EXPECT_EQ(a.type, WeightType::kF32);
  EXPECT_EQ(a.cols(), 2);
  EXPECT_EQ(a.rows(), 1);
  EXPECT_EQ(b.name, "b");
  EXPECT_EQ(b.type, WeightType::kBf16);
  EXPECT_EQ(b.cols(), 3);
  EXPECT_EQ(b.rows(), 2);
  EXPECT_EQ(b.data, a.data + 8);
  EXPECT_EQ(b.size_bytes, 12);
  EXPECT_EQ(index->tensors[2].cols(), 1);
  ASSERT_EQ(index->others.size(), 1U);
  EXPECT_EQ(index->others[0].name, "mask");
  EXPECT_EQ(index->others[0].type, "BOOL");
}

/// A header for eight bytes of data, and what its error says.
struct Hostile {
  const char* name;
  const char* header;
  const char* message;
};

class HostileSafetensors : public ::testing::TestWithParam<Hostile> {};

TEST_P(HostileSafetensors, IsRefused) {
  const std::string message = MessageOf(SafetensorsFile(GetParam().header, std::string(8, '\1')));
  EXPECT_THAT(message, HasSubstr(GetParam().message));
  EXPECT_THAT(message, HasSubstr("m.safetensors: "));
}

constexpr Hostile kHostile[] = {
    {"NoJson", "{", "the text is no valid JSON"},
    {"NoObject", "[]", "the header begins with '['"},
    {"TwiceTheSameName",
     R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
     R"("a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
     "twice"},
    {"Overlap",
     R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
     R"("b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
     "tensor 'b' begins at byte 4 of the data; expected 8"},
    {"Gap", R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
     "tensor 'a' begins at byte 4 of the data; expected 0"},
    {"RestOfTheData", R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
     "has 8 bytes of data; its tensors take 4"},
    {"NoTensors", "{}", "has 8 bytes of data; its tensors take 0"},
    {"BeyondTheEnd", R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,12]}})",
     "the file has 8 bytes of data"},
    {"BackwardOffsets", R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[8,4]}})",
     "the file has 8 bytes of data"},
    {"WrongSize", R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,8]}})",
     "has 8 bytes of data; its shape and F32 make 4"},
    {"Overflow", R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8]}})",
     "has more than 2^63 - 1 bytes"},
    {"DimensionOfZero", R"({"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}})",
     "expected whole numbers of at least 1"},
    {"NegativeDimension", R"({"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})",
     "expected whole numbers of at least 1"},
    {"FractionOfADimension", R"({"a":{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}})",
     "expected whole numbers of at least 1"},
    {"FiveDimensions", R"({"a":{"dtype":"F32","shape":[1,1,1,1,2],"data_offsets":[0,8]}})",
     "expected a list of at most 4 numbers"},
    {"UnknownType", R"({"a":{"dtype":"Q4","shape":[2],"data_offsets":[0,8]}})",
     "has dtype = \"Q4\"; expected F32, F16 or BF16"},
    {"NoType", R"({"a":{"shape":[2],"data_offsets":[0,8]}})", "tensor 'a' has no dtype"},
    {"MoreKeys", R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":1}})",
     "tensor 'a' has 4 keys"},
    {"ThreeOffsets", R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8,8]}})",
     "expected two whole numbers"},
    {"NoEntry", R"({"a":7})", "tensor 'a' = 7; expected an object"},
    {"MetadataOfNumbers", R"({"__metadata__":{"a":1}})", "expected strings"},
    {"MetadataIsNoObject", R"({"__metadata__":[]})", "__metadata__ = []; expected an object"},
};
INSTANTIATE_TEST_SUITE_P(, HostileSafetensors, ::testing::ValuesIn(kHostile),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(Safetensors, RefusesHeadersThatDoNotFit) {
  EXPECT_THAT(MessageOf("1234567"), HasSubstr("7 bytes; expected at least 8"));
  std::string file = SafetensorsFile("{}", "");
  file[0] = 3;
  EXPECT_THAT(MessageOf(file), HasSubstr("the header's size is 3; expected at most 2"));
  std::memset(file.data(), 0xFF, 8);
  EXPECT_THAT(MessageOf(file), HasSubstr("the header's size is 18446744073709551615"));
}

TEST(Safetensors, RefusesDeepNesting) {
  const std::string deep = "{\"a\":" + std::string(100, '[') + std::string(100, ']') + "}";
  EXPECT_THAT(MessageOf(SafetensorsFile(deep, "")), HasSubstr("nested more than 64 deep"));
}

}  // namespace
}  // namespace manyhead
