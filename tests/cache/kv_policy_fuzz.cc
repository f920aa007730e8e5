#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "manyhead/kv_cache.h"
#include "tests/support/fuzz.h"

using manyhead::KvCacheParams;
using manyhead::KvPolicy;
using manyhead::Result;

namespace {

KvCacheParams Params() {
  KvCacheParams params;
  params.layers = {{2, 16, 0}, {1, 8, 24}, {4, 32, 0}};
  params.page_size = 16;
  params.max_tokens = 100;
  params.capacity_bytes = 1 << 20;
  return params;
}

}  // namespace

// Any bytes as a policy, and as the JSON of policies by head: a reason in one line, or heads that a
// cache takes or refuses, and that written out are read back as the same.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (const Result<KvPolicy> policy = manyhead::ParseKvPolicy(text); policy.ok()) {
    const Result<KvPolicy> again = manyhead::ParseKvPolicy(manyhead::FormatKvPolicy(*policy));
    FuzzCheck(again.ok() && *again == *policy);
  } else {
    FuzzCheckMessage(policy.status().message());
  }
  KvCacheParams params = Params();
  const auto heads = manyhead::ParseKvHeads(text, params);
  if (!heads.ok()) {
    FuzzCheckMessage(heads.status().message());
    return 0;
  }
  FuzzCheck(heads->size() == params.layers.size());
  const auto again = manyhead::ParseKvHeads(manyhead::FormatKvHeads(*heads), params);
  FuzzCheck(again.ok() && *again == *heads);
  params.heads = *heads;
  if (const auto cache = manyhead::KvCache::Create(params); !cache.ok())
    FuzzCheckMessage(cache.status().message());
  return 0;
}

std::vector<std::string> FuzzSeeds() {
  return {"full",
          " sink(4)+recent(60)\n",
          "budget(512)+sink(4)+recent(128)",
          "margin(7)+window(32)",
          R"js({"heads": []})js",
          R"js({"heads": [{"policy": "window(32)"}, {"layers": [0, "1-2"], "kv_heads": ["0-0"],
               "k_type": "int8", "v_type": "int4", "policy": "sink(2)+recent(16)"}]})js",
          R"js({"heads": [{"layers": [2], "policy": "off"}, {"k_type": "bf16"}]})js",
          R"js({"heads": [{"layers": ["0-2"], "kv_heads": [1000, "7-99999"]}]})js",
          R"js({"heads": [{"layers": [[[7]]], "policy": {"a": [1.5e300, null, "é"]}}]})js"};
}
