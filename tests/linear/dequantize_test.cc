#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "tests/linear/linear_testing.h"

namespace manyhead {
namespace {

using namespace linear_testing;  // NOLINT(google-build-using-namespace)

std::vector<std::byte> FromHex(const std::string& hex) {
  std::vector<std::byte> bytes;
  for (std::size_t i = 0; i < hex.size(); i += 2)
    bytes.push_back(static_cast<std::byte>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  return bytes;
}

std::optional<WeightType> TypeNamed(const std::string& name) {
  for (WeightType type : kAllTypes)
    if (name == WeightTypeName(type)) return type;
  return std::nullopt;
}

class DequantizeTest : public ::testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    if (!CpuRuns(GetParam())) GTEST_SKIP() << "this CPU cannot run " << IsaName(GetParam());
  }
};

// Every number is exact in f32 (see linear_exact.inl.h), so the bits must agree; NaN with NaN.
TEST_P(DequantizeTest, EqualsTheNumpyReferenceBitForBit) {
  std::ifstream file(MANYHEAD_SOURCE_DIR "/tests/linear/data/quant_golden.txt");
  ASSERT_TRUE(file.is_open());
  std::vector<int> rows_of_type(64, 0);
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream fields(line);
    std::string name, block_hex, values_hex;
    fields >> name >> block_hex >> values_hex;
    const std::optional<WeightType> type = TypeNamed(name);
    ASSERT_TRUE(type) << name;
    const std::vector<std::byte> bytes = FromHex(block_hex), expected_bytes = FromHex(values_hex);
    std::vector<float> expected(expected_bytes.size() / 4);
    std::memcpy(expected.data(), expected_bytes.data(), expected_bytes.size());
    std::vector<float> out(expected.size());
    const WeightView view = {*type, 1, static_cast<std::int64_t>(out.size()), bytes.data()};
    DequantizeRow(view, GetParam(), 0, out.data());
    for (std::size_t i = 0; i < out.size(); ++i) {
      if (std::isnan(expected[i]) && std::isnan(out[i])) continue;
      ASSERT_EQ(std::memcmp(&out[i], &expected[i], 4), 0)
          << name << " element " << i << ": " << out[i] << ", expected " << expected[i];
    }
    ++rows_of_type[static_cast<std::size_t>(*type)];
  }
  for (WeightType type : kAllTypes)
    EXPECT_GT(rows_of_type[static_cast<std::size_t>(type)], 0) << WeightTypeName(type);
}

TEST_P(DequantizeTest, WritesOneRowOfManyAndNothingBeyondIt) {
  for (WeightType type : kAllTypes) {
    const std::int64_t block = WeightBlockOf(type).elements;
    for (std::int64_t cols : block == 1 ? std::vector<std::int64_t>{1, 7, 8, 17, 33, 100}
                                        : std::vector<std::int64_t>{block, 3 * block}) {
      const Weight weight(type, 3, cols, 7);
      const std::vector<float> expected = weight.Widened();
      for (std::int64_t r = 0; r < 3; ++r) {
        Matrix out(2, cols, 5);  // the padding after row 0 is the guard
        DequantizeRow(weight.view(), GetParam(), r, out.row(0));
        EXPECT_EQ(
            std::memcmp(out.row(0), expected.data() + r * cols, static_cast<std::size_t>(cols) * 4),
            0)
            << Describe(type, GetParam(), 3, cols, r);
        EXPECT_TRUE(out.PaddingIntact()) << Describe(type, GetParam(), 3, cols, r);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(EveryIsa, DequantizeTest, ::testing::ValuesIn(kAllIsas),
                         [](const auto& test) { return std::string(IsaName(test.param)); });

}  // namespace
}  // namespace manyhead
