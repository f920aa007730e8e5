#include "runtime/calibrate/head_options.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

namespace manyhead {
namespace {

LayerConfig Layer(std::int64_t window) {
  return {.num_heads = 4,
          .num_kv_heads = 2,
          .head_dim = 64,
          .head_dim_v = 64,
          .ffn_dim = 1,
          .window = window};
}

std::vector<std::string> Names(const std::vector<KvPolicy>& policies) {
  std::vector<std::string> names;
  for (const KvPolicy& policy : policies) names.push_back(FormatKvPolicy(policy));
  return names;
}

TEST(HeadOptions, PoliciesFollowTheContextAndTheModelsWindow) {
  using List = std::vector<std::string>;
  EXPECT_EQ(
      Names(MakePolicies(Layer(0), 4096, true)),
      (List{"full", "sink(4)+recent(2048)", "budget(2048)+recent(1024)", "sink(4)+recent(1024)",
            "budget(1024)+recent(512)", "sink(4)+recent(512)", "budget(512)+recent(256)",
            "sink(4)+recent(256)", "budget(256)+recent(128)", "off"}));
  EXPECT_EQ(Names(MakePolicies(Layer(512), 4096, true)),
            (List{"full", "window(512)", "window(256)", "budget(256)+recent(128)", "off"}));
  EXPECT_EQ(Names(MakePolicies(Layer(0), 256, true)),
            (List{"full", "sink(4)+recent(128)", "budget(128)+recent(64)", "sink(4)+recent(64)",
                  "budget(64)+recent(32)", "off"}));
  EXPECT_EQ(Names(MakePolicies(Layer(0), 4096, false)), (List{"full"}));
  EXPECT_EQ(Names(MakePolicies(Layer(512), 4096, false)), (List{"full", "window(512)"}));
  EXPECT_EQ(Names(MakePolicies(Layer(4096), 4096, false)), (List{"full"}));
}

// Bytes are what a cache with that head takes more than one without it.
TEST(HeadOptions, EveryTypeAndPolicyWithItsBytes) {
  const std::vector<KvType> types = {KvType::kF16, KvType::kInt4};
  const Result<LayerOptions> options = MakeLayerOptions(Layer(0), types, 1024, 128, true);
  ASSERT_TRUE(options.ok()) << options.status().message();
  std::set<std::string> seen;
  KvCacheParams params;
  params.layers = {{1, 64, 64}};
  for (std::size_t i = 0; i < options->params.size(); ++i) {
    const KvHeadParams& head = options->params[i];
    EXPECT_EQ(head.policy, options->policies[options->policy[i]]);
    seen.insert(FormatKvHeads({{head}}));
    params.heads = {{head}};
    const std::int64_t bytes = *KvCapacityBytes(params, 1, 1024, 128);
    params.heads[0][0].policy = KvPolicy::Off();
    EXPECT_EQ(options->bytes[i], bytes - *KvCapacityBytes(params, 1, 1024, 128));
  }
  EXPECT_EQ(seen.size(), 4 * (options->policies.size() - 1) + 1) << "off has no types";
  EXPECT_EQ(options->params.size(), seen.size());
  EXPECT_EQ(*std::min_element(options->bytes.begin(), options->bytes.end()), 0);
}

}  // namespace
}  // namespace manyhead
