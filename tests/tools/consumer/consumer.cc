#include <manyhead/manyhead.h>

#include <cstdio>
#include <vector>

// Softmax of one key is 1: attention returns the value.
int main() {
  manyhead::AttentionParams params;
  params.num_heads = params.num_kv_heads = params.max_q_len = params.max_kv_len = 1;
  params.head_dim = 4;
  manyhead::Result<manyhead::AttentionPlan> plan = manyhead::AttentionPlan::Create(params);
  if (!plan.ok()) return 1;
  const std::vector<float> q(4, 1), k(4, 2), v = {1, 2, 3, 4};
  std::vector<float> out(4);
  if (!plan->Run(1, 1, q.data(), k.data(), v.data(), out.data()).ok() || out != v) return 2;
  std::printf("attention works: %g\n", static_cast<double>(out[3]));
  return manyhead::Model::Load("/nonexistent.gguf").ok() ? 3 : 0;
}
