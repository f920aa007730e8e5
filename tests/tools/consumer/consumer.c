#include <manyhead/c_api.h>
#include <stdio.h>
#include <string.h>

/* Softmax of one key is 1: attention returns the value. */
int main(void) {
  const float q[4] = {1, 1, 1, 1}, k[4] = {2, 2, 2, 2}, v[4] = {1, 2, 3, 4};
  float out[4] = {0, 0, 0, 0};
  mh_plan_params params;
  mh_plan* plan = NULL;
  mh_model* model = NULL;
  mh_message message;
  if (mh_abi_version() != MH_ABI_VERSION) return 1;
  mh_plan_params_init(&params);
  params.num_heads = params.num_kv_heads = params.max_q_len = params.max_kv_len = 1;
  params.head_dim = 4;
  if (mh_plan_create(&params, &plan, &message) != MH_OK) return 2;
  if (mh_plan_run(plan, 1, 1, q, k, v, out, NULL) != MH_OK) return 3;
  mh_plan_free(&plan);
  if (memcmp(out, v, sizeof out) != 0) return 4;
  if (mh_model_load("/nonexistent.gguf", NULL, &model, &message) != MH_IO_ERROR) return 5;
  printf("attention works in C: %g\n", out[3]);
  return 0;
}
