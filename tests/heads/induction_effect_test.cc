// Tests the effect on the loss of the heads that the classifier names.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "manyhead/ablation.h"
#include "manyhead/head_classes.h"
#include "tests/support/model_files.h"

namespace manyhead {
namespace {

TEST(HeadClasses, WithoutTheInductionHeadRepeatsAreNoLongerPredicted) {
  const Result<Model> model = Model::Load(FindModel("bundled"));
  ASSERT_TRUE(model.ok());
  const auto found = ClassifyHeads(*model, {});
  ASSERT_TRUE(found.ok());
  std::map<HeadId, double> rise;
  int repeats = 0;
  for (const Probe& probe : found->probes) {
    if (probe.kind != ProbeKind::kRepeat) continue;
    const auto effects = MeasureHeadEffects(*model, probe.ids, {}, {});
    ASSERT_TRUE(effects.ok()) << effects.status().message();
    for (const HeadEffect& effect : effects->effects)
      rise[effect.head] += effect.loss_after - effects->loss_before;
    ++repeats;
  }
  ASSERT_GT(repeats, 0);
  std::vector<double> all;
  for (const auto& [head, value] : rise) all.push_back(value / repeats);
  std::sort(all.begin(), all.end());
  const double median = (all[7] + all[8]) / 2;
  const auto named = std::find_if(found->heads.begin(), found->heads.end(), [](const auto& head) {
    return head.head_class == HeadClass::kInduction;
  });
  ASSERT_NE(named, found->heads.end());
  const double induction = rise.at(named->id) / repeats;
  EXPECT_GT(induction, 3 * std::abs(median));
  EXPECT_GT(induction, 1);  // nats per token, of which half are predictable
}

}  // namespace
}  // namespace manyhead
