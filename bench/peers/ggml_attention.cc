// Times llama.cpp's attention operator on one shape, for bench/compare.py, which compiles this file
// against the headers and libraries that pip's llama-cpp-python installs.
//
// usage: ggml_attention HEADS KV_HEADS HEAD_DIM Q_LEN KV_LEN TYPE THREADS REPETITIONS
// Prints {"samples_seconds": [...], "checksum": x}: x is the sum of the result's absolute values.
#include <ggml-alloc.h>
#include <ggml-backend.h>
#include <ggml-cpu.h>
#include <ggml.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

namespace {

double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

ggml_type TypeOf(const char* name) {
  if (std::strcmp(name, "f32") == 0) return GGML_TYPE_F32;
  if (std::strcmp(name, "bf16") == 0) return GGML_TYPE_BF16;
  if (std::strcmp(name, "int8") == 0) return GGML_TYPE_Q8_0;
  if (std::strcmp(name, "int4") == 0) return GGML_TYPE_Q4_0;
  return GGML_TYPE_F16;
}

void FillRandom(ggml_tensor* tensor, std::uint32_t state) {
  std::vector<float> values(static_cast<std::size_t>(ggml_nelements(tensor)));
  for (float& value : values) {
    state = state * 1664525U + 1013904223U;
    value = static_cast<float>(state >> 8) * 0x1p-23F - 1.0F;
  }
  if (tensor->type == GGML_TYPE_F32) {
    ggml_backend_tensor_set(tensor, values.data(), 0, ggml_nbytes(tensor));
    return;
  }
  std::vector<char> bytes(ggml_nbytes(tensor));
  ggml_quantize_chunk(tensor->type, values.data(), bytes.data(), 0,
                      ggml_nelements(tensor) / tensor->ne[0], tensor->ne[0], nullptr);
  ggml_backend_tensor_set(tensor, bytes.data(), 0, bytes.size());
}

void FillCausal(ggml_tensor* mask) {
  const std::int64_t kv_len = mask->ne[0], q_len = mask->ne[1];
  std::vector<ggml_fp16_t> values(static_cast<std::size_t>(kv_len * q_len));
  for (std::int64_t i = 0; i < q_len; ++i) {
    for (std::int64_t j = 0; j < kv_len; ++j) {
      values[i * kv_len + j] = ggml_fp32_to_fp16(j <= i + kv_len - q_len ? 0.0F : -INFINITY);
    }
  }
  ggml_backend_tensor_set(mask, values.data(), 0, ggml_nbytes(mask));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 9) return 2;
  const std::int64_t heads = std::atoll(argv[1]), kv_heads = std::atoll(argv[2]),
                     dim = std::atoll(argv[3]), q_len = std::atoll(argv[4]),
                     kv_len = std::atoll(argv[5]);
  const ggml_type type = TypeOf(argv[6]);
  ggml_backend_t backend = ggml_backend_cpu_init();
  ggml_backend_cpu_set_n_threads(backend, std::atoi(argv[7]));
  const ggml_init_params params = {ggml_tensor_overhead() * 16 + ggml_graph_overhead(), nullptr,
                                   true};
  ggml_context* context = ggml_init(params);
  ggml_tensor* q = ggml_new_tensor_4d(context, GGML_TYPE_F32, dim, q_len, heads, 1);
  ggml_tensor* k = ggml_new_tensor_4d(context, type, dim, kv_len, kv_heads, 1);
  ggml_tensor* v = ggml_new_tensor_4d(context, type, dim, kv_len, kv_heads, 1);
  ggml_tensor* mask = ggml_new_tensor_4d(context, GGML_TYPE_F16, kv_len, q_len, 1, 1);
  const float scale = 1 / std::sqrt(static_cast<float>(dim));
  ggml_tensor* out = ggml_flash_attn_ext(context, q, k, v, mask, scale, 0, 0);
  ggml_flash_attn_ext_set_prec(out, GGML_PREC_F32);
  ggml_cgraph* graph = ggml_new_graph(context);
  ggml_build_forward_expand(graph, out);
  if (ggml_backend_alloc_ctx_tensors(context, backend) == nullptr) return 1;
  FillRandom(q, 1);
  FillRandom(k, 2);
  FillRandom(v, 3);
  FillCausal(mask);
  ggml_backend_graph_compute(backend, graph);
  std::printf("{\"samples_seconds\": [");
  for (int i = 0, n = std::atoi(argv[8]); i < n; ++i) {
    const double start = Seconds();
    ggml_backend_graph_compute(backend, graph);
    std::printf("%s%.9g", i == 0 ? "" : ", ", Seconds() - start);
  }
  std::vector<float> result(static_cast<std::size_t>(ggml_nelements(out)));
  ggml_backend_tensor_get(out, result.data(), 0, ggml_nbytes(out));
  double sum = 0;
  for (const float x : result) sum += std::fabs(static_cast<double>(x));
  std::printf("], \"checksum\": %.9g}\n", sum);
  return 0;
}
