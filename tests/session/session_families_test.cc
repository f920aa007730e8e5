#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "manyhead/session.h"
#include "tests/session/session_testing.h"
#include "tests/support/isas.h"

/// Logits and scores of every family against its formulas in double.

namespace manyhead {
namespace {

using testing::Exact;
using testing::Ids;
using testing::Load;
using testing::TinyModel;

struct Case {
  const char* name;
  TinyModel model;
};

std::vector<Case> Families() {
  std::vector<Case> cases;
  const auto add = [&](const char* name, auto change) {
    TinyModel model;
    change(model);
    model.MakeWeights(static_cast<unsigned>(cases.size()) + 1);
    cases.push_back({name, model});
  };
  add("Llama", [](TinyModel&) {});
  add("LlamaUntiedMultiHead", [](TinyModel& m) {
    m.tied = false;
    m.num_kv_heads = 4;
  });
  add("LlamaWindow", [](TinyModel& m) { m.window = 5; });
  add("LlamaLinearRope", [](TinyModel& m) {
    m.rope_scaling = "linear";
    m.rope_factor = 4;
  });
  add("LlamaYarn", [](TinyModel& m) {
    m.rope_scaling = "yarn";
    m.rope_factor = 8;
    m.rope_original_context = 256;
    m.head_dim = 16;
  });
  add("LlamaRopeFactors", [](TinyModel& m) {
    m.rope_base = 500000;
    m.rope_factors = {1, 2.5F, 8};
  });
  add("LlamaMultiQueryPaddedVocab", [](TinyModel& m) {
    m.num_heads = 5;
    m.num_kv_heads = 1;
    m.extra_rows = 13;
  });
  add("Qwen2", [](TinyModel& m) {
    m.family = "qwen2";
    m.biases = true;
    m.rope_base = 1000000;
  });
  add("Qwen3", [](TinyModel& m) { m.family = "qwen3"; });
  add("Gemma3", [](TinyModel& m) {
    m.family = "gemma3";
    m.layers = 7;
    m.window = 4;
    m.num_kv_heads = 1;
    m.rope_base = 1000000;
    m.rope_scaling = "linear";
    m.rope_factor = 8;
  });
  add("Gemma3PatternAndSoftcap", [](TinyModel& m) {
    m.family = "gemma3";
    m.layers = 3;
    m.window = 3;
    m.window_pattern = 2;
    m.final_softcap = 4;
  });
  return cases;
}

class EveryFamily : public ::testing::TestWithParam<std::tuple<int, Isa>> {
 protected:
  static const std::vector<Case>& Cases() {
    static const std::vector<Case> cases = Families();
    return cases;
  }
  const TinyModel& tiny() const { return Cases()[std::get<0>(GetParam())].model; }
  Isa isa() const { return std::get<1>(GetParam()); }
};

// One prefill, decoding token by token, and chunks of odd sizes all give the logits of the
// formulas.
TEST_P(EveryFamily, LogitsEqualTheFormulasInDouble) {
  MANYHEAD_SKIP_UNLESS_CPU_RUNS(isa());
  const Result<Model> model = Load(tiny().ToGguf());
  ASSERT_TRUE(model.ok()) << model.status().message();
  const std::vector<TokenId> ids = Ids(21);
  const auto expected = tiny().Logits(std::vector<int>(ids.begin(), ids.end()));
  for (int step : {1, 3, 10, 21}) {
    Result<Session> session = Session::Create(*model, Exact(isa()));
    ASSERT_TRUE(session.ok()) << session.status().message();
    for (std::size_t begin = 0; begin < ids.size(); begin += step) {
      const std::size_t count = std::min<std::size_t>(step, ids.size() - begin);
      const auto logits = session->Append(std::span(ids).subspan(begin, count));
      ASSERT_TRUE(logits.ok()) << logits.status().message();
      ASSERT_EQ(logits->size(), static_cast<std::size_t>(tiny().vocab()));
      const std::vector<double>& want = expected[begin + count - 1];
      for (std::size_t i = 0; i < want.size(); ++i)
        ASSERT_NEAR((*logits)[i], want[i], 2e-4)
            << "step " << step << " position " << begin + count - 1 << " id " << i;
    }
  }
}

TEST_P(EveryFamily, ScoresEqualTheFormulasInDouble) {
  MANYHEAD_SKIP_UNLESS_CPU_RUNS(isa());
  const Result<Model> model = Load(tiny().ToGguf());
  ASSERT_TRUE(model.ok()) << model.status().message();
  const std::vector<TokenId> ids = Ids(50);
  const auto logits = tiny().Logits(std::vector<int>(ids.begin(), ids.end()));
  for (std::int64_t chunk : {7, 33, 512}) {
    SessionOptions options = Exact(isa());
    options.chunk = chunk;
    Result<Session> session = Session::Create(*model, options);
    std::vector<double> nll(ids.size() - 1, NAN);
    ASSERT_TRUE(session->Score(ids, nll).ok());
    for (std::size_t i = 0; i < nll.size(); ++i) {
      double sum = 0;
      for (double logit : logits[i]) sum += std::exp(logit);
      ASSERT_NEAR(nll[i], std::log(sum) - logits[i][ids[i + 1]], 5e-4)
          << "chunk " << chunk << " token " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, EveryFamily,
                         ::testing::Combine(::testing::Range(0,
                                                             static_cast<int>(Families().size())),
                                            ::testing::ValuesIn(kEveryIsa)),
                         [](const auto& param_info) {
                           return std::string(Families()[std::get<0>(param_info.param)].name) +
                                  "_" + IsaName(std::get<1>(param_info.param));
                         });

}  // namespace
}  // namespace manyhead
