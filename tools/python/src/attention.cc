#include "manyhead/attention.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <shared_mutex>
#include <vector>

#include "tools/python/src/binding.h"
#include "tools/python/src/kv_cache.h"

namespace manyhead::python {
namespace {

using Queries = nb::ndarray<const float, nb::ndim<4>, nb::device::cpu>;
using Lengths = std::optional<DenseArray<const std::int64_t, 1>>;

std::int64_t HeadDimV(const AttentionParams& params) {
  return params.head_dim_v != 0 ? params.head_dim_v : params.head_dim;
}

/// Returns [B, heads, tokens, D] in the library's form.
template <class T, class Array>
TensorView<T> View(const Array& array, const char* name) {
  CheckLastDense(array, name);
  return {.data = static_cast<T*>(array.data()),
          .batch_stride = array.stride(0),
          .token_stride = array.stride(2),
          .head_stride = array.stride(1)};
}

const std::int64_t* View(const Lengths& lengths, const char* name, std::int64_t batch) {
  if (!lengths) return nullptr;
  CheckShape(*lengths, name, "[B]", {batch});
  return lengths->data();
}

/// Returns the inputs of Run and Weights, checked against the plan's shapes; T, S and B follow from
/// q and k.
AttentionTensors InputTensors(const AttentionParams& params, const Queries& q,
                              const StridedArray<4>& k, const Lengths& kv_lens,
                              const Lengths& query_starts, const Logits<float>& bias,
                              const Logits<std::uint8_t>& mask) {
  AttentionTensors tensors;
  tensors.batch = static_cast<std::int64_t>(q.shape(0));
  tensors.q_len = static_cast<std::int64_t>(q.shape(2));
  tensors.kv_len = static_cast<std::int64_t>(k.shape(2));
  CheckShape(q, "q", "[B, H, T, D]",
             {tensors.batch, params.num_heads, tensors.q_len, params.head_dim});
  CheckShape(k, "k", "[B, K, S, D]",
             {tensors.batch, params.num_kv_heads, tensors.kv_len, params.head_dim});
  const Shape logits_BHTS = {tensors.batch, params.num_heads, tensors.q_len, tensors.kv_len};
  tensors.kv_lens = View(kv_lens, "kv_lens", tensors.batch);
  tensors.query_starts = View(query_starts, "query_start", tensors.batch);
  tensors.k_type = TypeOf(k.dtype(), "k");
  tensors.q = View<const float>(q, "q");
  tensors.k = View<const void>(k, "k");
  tensors.bias = {.bias = LogitView(bias, "bias", logits_BHTS),
                  .mask = LogitView(mask, "mask", logits_BHTS)};
  return tensors;
}

void Run(AttentionPlan& self, const Queries& q, const StridedArray<4>& k, const StridedArray<4>& v,
         const DenseArray<float, 4>& out, const std::optional<DenseArray<float, 3>>& lse,
         const Lengths& kv_lens, const Lengths& query_starts, const Logits<float>& bias,
         const Logits<std::uint8_t>& mask) {
  const AttentionParams& params = self.params();
  AttentionTensors tensors = InputTensors(params, q, k, kv_lens, query_starts, bias, mask);
  const std::int64_t B = tensors.batch, T = tensors.q_len, H = params.num_heads;
  CheckShape(v, "v", "[B, K, S, Dv]", {B, params.num_kv_heads, tensors.kv_len, HeadDimV(params)});
  CheckShape(out, "out", "[B, H, T, Dv]", {B, H, T, HeadDimV(params)});
  tensors.v_type = TypeOf(v.dtype(), "v");
  tensors.v = View<const void>(v, "v");
  tensors.out = View<float>(out, "out");
  if (lse) {
    CheckShape(*lse, "lse", "[B, H, T]", {B, H, T});
    tensors.lse = {.data = lse->data(), .batch_stride = H * T, .token_stride = 1, .head_stride = T};
  }
  if (B == 0 || T == 0) return;
  Check(WithoutGil([&] { return self.Run(tensors); }));
}

LogitStage ParseStage(const std::string& name) {
  if (name == "scores") return LogitStage::kScores;
  if (name == "capped") return LogitStage::kCapped;
  if (name == "biased") return LogitStage::kBiased;
  if (name == "probs") return LogitStage::kProbs;
  Raise({StatusCode::kInvalidArgument,
         "return_weights = '" + name + "'; expected 'scores', 'capped', 'biased' or 'probs'"});
}

void Weights(AttentionPlan& self, const std::string& stage, const Queries& q,
             const StridedArray<4>& k, const DenseArray<float, 3>& lse,
             const DenseArray<float, 4>& weights, const Lengths& kv_lens,
             const Lengths& query_starts, const Logits<float>& bias,
             const Logits<std::uint8_t>& mask) {
  const LogitStage parsed = ParseStage(stage);
  const std::int64_t H = self.params().num_heads;
  AttentionTensors tensors = InputTensors(self.params(), q, k, kv_lens, query_starts, bias, mask);
  const std::int64_t B = tensors.batch, T = tensors.q_len, S = tensors.kv_len;
  CheckShape(lse, "lse", "[B, H, T]", {B, H, T});
  CheckShape(weights, "weights", "[B, H, T, S]", {B, H, T, S});
  tensors.lse = {.data = lse.data(), .batch_stride = H * T, .token_stride = 1, .head_stride = T};
  if (B == 0 || T == 0 || S == 0) return;
  Check(WithoutGil([&] { return self.Weights(tensors, parsed, weights.data()); }));
}

/// Returns the largest number of queries of one sequence of a ragged batch with the prefix sums
/// [first, first + batch].
std::int64_t MostQueries(const std::int64_t* indptr, std::int64_t batch) {
  if (indptr == nullptr) return 1;
  std::int64_t most = 0;
  for (std::int64_t b = 0; b < batch; ++b) most = std::max(most, indptr[b + 1] - indptr[b]);
  return most;
}

/// Returns the logits of a ragged batch: the longest sequence and the largest number of queries
/// decide their size.
template <class T>
LogitTensor<T> RaggedView(const Logits<T>& logits, const char* name, std::int64_t batch,
                          std::int64_t num_heads, std::int64_t queries) {
  if (!logits) return {};
  const auto kv_len = static_cast<std::int64_t>(logits->shape(3));
  return LogitView(logits, name, {batch, num_heads, queries, kv_len});
}

/// Runs attention over a cache: T counts the queries of all sequences.
void RunCache(AttentionPlan& self, const Cache& cache, std::int64_t layer,
              const std::vector<std::int32_t>& sequences, const Lengths& qo_indptr,
              const DenseArray<const float, 3>& q, const DenseArray<float, 3>& out,
              const std::optional<DenseArray<float, 2>>& lse, const Logits<float>& bias,
              const Logits<std::uint8_t>& mask) {
  const AttentionParams& params = self.params();
  const auto T = static_cast<std::int64_t>(q.shape(0));
  const auto B = static_cast<std::int64_t>(sequences.size());
  const std::int64_t H = params.num_heads;
  CheckShape(q, "q", "[T, H, D]", {T, H, params.head_dim});
  CheckShape(out, "out", "[T, H, Dv]", {T, H, HeadDimV(params)});
  if (lse) CheckShape(*lse, "lse", "[T, H]", {T, H});
  const std::int64_t* indptr = View(qo_indptr, "qo_indptr", B + 1);
  const std::int64_t rows = indptr != nullptr ? indptr[B] : B;
  if (rows != T)
    Raise({StatusCode::kInvalidArgument, "q has " + std::to_string(T) + " rows; expected " +
                                             std::to_string(rows) + ", where qo_indptr ends"});
  const std::int64_t queries = MostQueries(indptr, B);
  const AttentionBias logits = {.bias = RaggedView(bias, "bias", B, H, queries),
                                .mask = RaggedView(mask, "mask", B, H, queries)};
  std::vector<SequenceId> ids;
  for (const std::int32_t id : sequences) ids.push_back(SequenceId{id});
  if (T == 0) return;
  Check(WithoutGil([&] {
    const std::shared_lock lock(cache.mutex);
    return self.Run(cache.cache, layer, ids, indptr, q.data(), out.data(),
                    lse ? lse->data() : nullptr, logits);
  }));
}

void BindExplanation(nb::module_& module) {
  using Explanation = AttentionExplanation;
  nb::class_<Explanation>(module, "AttentionExplanation",
                          "Which kernel a plan uses for some lengths, and what it costs.")
      .def_ro("kernel", &Explanation::kernel)
      .def_prop_ro("isa", [](const Explanation& self) { return IsaName(self.isa); })
      .def_ro("threads", &Explanation::threads)
      .def_ro("tile_rows", &Explanation::tile_rows,
              "Rows (query head at a query position) that share a read of K and V.")
      .def_ro("block_keys", &Explanation::block_keys,
              "Keys between two updates of a row's maximum.")
      .def_ro("split_keys", &Explanation::split_keys,
              "Keys of an item where keys are split over threads; else 0.")
      .def_ro("items", &Explanation::items, "Items of work, handed out to threads.")
      .def_ro("scratch_bytes", &Explanation::scratch_bytes)
      .def_ro("bytes", &Explanation::bytes, "Bytes of K and V that memory must deliver at least.")
      .def_ro("flops", &Explanation::flops, "Of both products, over visible keys.")
      .def_ro("refused", &Explanation::refused, "Faster choices, each with why it was not taken.")
      .def("__str__", &Explanation::ToString);
}

void BindParams(nb::module_& module) {
  using nb::arg;
  nb::class_<AttentionParams>(module, "AttentionParams")
      .def(
          "__init__",
          [](AttentionParams* self, std::int64_t num_heads, std::int64_t num_kv_heads,
             std::int64_t head_dim, std::int64_t head_dim_v, std::int64_t max_q_len,
             std::int64_t max_kv_len, float scale, float softcap, bool causal, std::int64_t window,
             std::optional<std::int64_t> window_right, std::int64_t num_sink_tokens,
             std::vector<float> alibi_slopes, std::vector<float> sinks, int threads,
             const std::optional<std::string>& isa, bool strict) {
            new (self) AttentionParams{.num_heads = num_heads,
                                       .num_kv_heads = num_kv_heads,
                                       .head_dim = head_dim,
                                       .head_dim_v = head_dim_v,
                                       .max_q_len = max_q_len,
                                       .max_kv_len = max_kv_len,
                                       .softmax_scale = scale,
                                       .logit_softcap = softcap,
                                       .causal = causal,
                                       .window = window,
                                       .window_right = window_right,
                                       .num_sink_tokens = num_sink_tokens,
                                       .alibi_slopes = std::move(alibi_slopes),
                                       .sink_logits = std::move(sinks),
                                       .threads = threads,
                                       .isa = ParseIsaOrRaise(isa),
                                       .strict = strict};
          },
          nb::kw_only(), arg("num_heads"), arg("num_kv_heads"), arg("head_dim"), arg("head_dim_v"),
          arg("max_q_len"), arg("max_kv_len"), arg("scale"), arg("softcap"), arg("causal"),
          arg("window"), arg("window_right").none(), arg("num_sink_tokens"), arg("alibi_slopes"),
          arg("sinks"), arg("threads"), arg("isa").none(), arg("strict"));
}

void BindPlan(nb::module_& module) {
  using nb::arg;
  nb::class_<AttentionPlan>(module, "AttentionPlan")
      .def(
          "__init__",
          [](AttentionPlan* self, const AttentionParams& params) {
            new (self) AttentionPlan(Take(AttentionPlan::Create(params)));
          },
          arg("params"))
      .def("run", &Run, arg("q").noconvert(), arg("k").noconvert(), arg("v").noconvert(),
           arg("out").noconvert(), arg("lse").noconvert().none(), arg("kv_lens").noconvert().none(),
           arg("query_start").noconvert().none(), arg("bias").noconvert().none(),
           arg("mask").noconvert().none())
      .def("weights", &Weights, arg("stage"), arg("q").noconvert(), arg("k").noconvert(),
           arg("lse").noconvert(), arg("weights").noconvert(), arg("kv_lens").noconvert().none(),
           arg("query_start").noconvert().none(), arg("bias").noconvert().none(),
           arg("mask").noconvert().none())
      .def("run_cache", &RunCache, arg("cache"), arg("layer"), arg("sequences"),
           arg("qo_indptr").noconvert().none(), arg("q").noconvert(), arg("out").noconvert(),
           arg("lse").noconvert().none(), arg("bias").noconvert().none(),
           arg("mask").noconvert().none())
      .def(
          "explain",
          [](const AttentionPlan& self, const std::string& k_type, const std::string& v_type,
             std::int64_t q_len, std::int64_t kv_len) {
            return Take(self.Explain(ParseKvTypeOrRaise(k_type), ParseKvTypeOrRaise(v_type), q_len,
                                     kv_len));
          },
          arg("k_type"), arg("v_type"), arg("q_len"), arg("kv_len"))
      .def_prop_ro("num_heads", [](const AttentionPlan& self) { return self.params().num_heads; })
      .def_prop_ro("num_kv_heads",
                   [](const AttentionPlan& self) { return self.params().num_kv_heads; })
      .def_prop_ro("head_dim", [](const AttentionPlan& self) { return self.params().head_dim; })
      .def_prop_ro("head_dim_v", [](const AttentionPlan& self) { return HeadDimV(self.params()); })
      .def_prop_ro("scratch_bytes", [](const AttentionPlan& self) { return self.scratch_bytes(); });
}

void Merge(const DenseArray<const float, 2>& out_a, const DenseArray<const float, 1>& lse_a,
           const DenseArray<const float, 2>& out_b, const DenseArray<const float, 1>& lse_b,
           const DenseArray<float, 2>& out, const DenseArray<float, 1>& lse) {
  const auto rows = static_cast<std::int64_t>(out_a.shape(0));
  const auto Dv = static_cast<std::int64_t>(out_a.shape(1));
  CheckShape(out_b, "out_b", "[rows, Dv]", {rows, Dv});
  CheckShape(lse_a, "lse_a", "[rows]", {rows});
  CheckShape(lse_b, "lse_b", "[rows]", {rows});
  CheckShape(out, "out", "[rows, Dv]", {rows, Dv});
  CheckShape(lse, "lse", "[rows]", {rows});
  Check(WithoutGil([&] {
    return MergeAttentionStates(rows, Dv, out_a.data(), lse_a.data(), out_b.data(), lse_b.data(),
                                out.data(), lse.data());
  }));
}

}  // namespace

void BindAttention(nb::module_& module) {
  using nb::arg;
  BindExplanation(module);
  BindParams(module);
  BindPlan(module);
  module.def("alibi_slopes", &AlibiSlopes, arg("num_heads"));
  module.def("merge_attention_states", &Merge, arg("out_a").noconvert(), arg("lse_a").noconvert(),
             arg("out_b").noconvert(), arg("lse_b").noconvert(), arg("out").noconvert(),
             arg("lse").noconvert());
}

}  // namespace manyhead::python
