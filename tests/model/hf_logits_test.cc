#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "manyhead/session.h"
#include "runtime/architecture/tensor_table.h"
#include "runtime/model/weights.h"
#include "tests/model/reference_logits.h"
#include "tests/support/isas.h"
#include "tests/support/read_bytes.h"
#include "tests/support/temp_dir.h"

// Tiny models of families whose layers differ in kind, against logits of Hugging Face transformers
// in float32: make_hf_models.py made data/FAMILY.gguf and data/FAMILY.json.

namespace manyhead {
namespace {

using ::manyhead::testing::NextTokens;
using ::manyhead::testing::ReadBytes;
using ::manyhead::testing::TempDir;
using nlohmann::json;

constexpr double kTolerance = 2e-4;

std::string DataFile(const std::string& name) {
  return std::string(MANYHEAD_SOURCE_DIR) + "/tests/model/data/" + name;
}

class HfLogits : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    reference_ = json::parse(ReadBytes(DataFile(std::string(GetParam()) + ".json")));
    ids_ = reference_["ids"].get<std::vector<TokenId>>();
  }

  std::string path() const { return DataFile(std::string(GetParam()) + ".gguf"); }

  /// The largest difference of any logit from the reference's, when the prompt is appended in
  /// chunks of `chunk` tokens.
  double WorstDifference(const std::string& file, std::size_t chunk, Isa isa) const {
    const auto next = [&](std::size_t begin) {
      return NextTokens{std::min(chunk, ids_.size() - begin)};
    };
    const auto expected = [&](std::size_t token) {
      return reference_["logits"][token].get<std::vector<double>>();
    };
    return testing::WorstDifference(file, ids_, isa, next, expected);
  }

  json reference_;
  std::vector<TokenId> ids_;
};

TEST_P(HfLogits, EveryWayToCutAPromptGivesTheReferencesLogits) {
  for (const Isa isa : SupportedIsas())
    for (const std::size_t chunk : {std::size_t{1}, std::size_t{5}, std::size_t{8}, ids_.size()}) {
      SCOPED_TRACE(std::string(IsaName(isa)) + ", chunks of " + std::to_string(chunk));
      EXPECT_LE(WorstDifference(path(), chunk, isa), kTolerance);
    }
}

/// The file with another number at the f32 or uint32 key `key`.
template <class T>
std::string Edited(std::string bytes, const std::string& key, T value) {
  const std::size_t at = bytes.find(key);
  EXPECT_NE(at, std::string::npos) << key;
  std::memcpy(bytes.data() + at + key.size() + sizeof(std::uint32_t), &value, sizeof value);
  return bytes;
}

// Each part of the computation shows in the logits: the comparison above could not pass without it.
TEST_P(HfLogits, AnyOtherValueGivesOtherLogits) {
  const std::string bytes = ReadBytes(path());
  std::map<std::string, std::string> files;
  if (std::string(GetParam()) == "gemma2") {
    files["no soft-cap of attention"] = Edited(bytes, "gemma2.attn_logit_softcapping", 0.0F);
    files["no soft-cap of logits"] = Edited(bytes, "gemma2.final_logit_softcapping", 0.0F);
    files["scale 1/sqrt(head_dim)"] = Edited(bytes, "gemma2.attention.scale", 0.0F);
    files["no window"] = Edited(bytes, "gemma2.attention.sliding_window", std::uint32_t{0});
    files["window + 1"] = Edited(bytes, "gemma2.attention.sliding_window", std::uint32_t{5});
  } else if (std::string(GetParam()) == "gemma") {
    files["epsilon"] = Edited(bytes, "gemma.attention.layer_norm_rms_epsilon", 1e-1F);
  } else {
    files["epsilon"] = Edited(bytes, "gpt2.attention.layer_norm_epsilon", 1e-2F);
  }
  const TempDir folder;
  for (const auto& [what, file] : files) {
    const std::string edited = folder.File("edited.gguf");
    std::ofstream(edited, std::ios::binary) << file;
    EXPECT_GT(WorstDifference(edited, ids_.size(), Isa::kScalar), 10 * kTolerance) << what;
  }
}

TEST_P(HfLogits, TheTableOfTensorsHasTransformersNamesAndShapes) {
  const Result<Model> model = Model::Load(path());
  ASSERT_TRUE(model.ok()) << model.status().message();
  const Architecture* const family = FindHfArchitecture(GetParam());
  ASSERT_NE(family, nullptr);
  auto expected = reference_["tensors"].get<std::map<std::string, std::vector<std::int64_t>>>();
  expected.erase("lm_head.weight");  // the embedding
  std::map<std::string, std::vector<std::int64_t>> listed;
  for (const ModelTensor& tensor : ListTensors(model->config(), family->projections)) {
    std::vector<std::int64_t> shape = tensor.shape;
    if (tensor.row->transposed(family->names)) std::reverse(shape.begin(), shape.end());
    listed[HfName(*tensor.row, family->names, tensor.layer)] = shape;
  }
  EXPECT_EQ(listed, expected);
}

INSTANTIATE_TEST_SUITE_P(, HfLogits, ::testing::Values("gemma", "gemma2", "gpt2"),
                         [](const auto& test) { return std::string(test.param); });

// A table of learned positions ends: there is no row for a token behind it.
TEST(LearnedPositions, AContextBeyondTheTableIsRefused) {
  const Result<Model> model = Model::Load(DataFile("gpt2.gguf"));
  ASSERT_TRUE(model.ok()) << model.status().message();
  EXPECT_EQ(model->config().num_positions, 40);
  SessionOptions options;
  options.context = 40;
  EXPECT_TRUE(Session::Create(*model, options).ok());
  options.context = 41;
  const Result<Session> session = Session::Create(*model, options);
  ASSERT_FALSE(session.ok());
  EXPECT_NE(session.status().message().find("41"), std::string::npos) << session.status().message();
}

}  // namespace
}  // namespace manyhead
