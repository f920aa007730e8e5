#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <mutex>
#include <shared_mutex>

#include "manyhead/multi_head_attention.h"
#include "tools/python/src/binding.h"
#include "tools/python/src/kv_cache.h"

namespace manyhead::python {
namespace {

using Matrix = DenseArray<const float, 2>;
using OptionalMatrix = std::optional<DenseArray<float, 3>>;

/// One projection: the type of its numbers by the library's name, its bytes row by row, and its
/// bias.
struct Projection {
  WeightType type;
  DenseArray<const std::uint8_t, 2> data;
  std::optional<DenseArray<const float, 1>> bias;

  ProjectionWeights View() const {
    ProjectionWeights weights = {.type = type, .data = {}, .bias = {}};
    weights.data = std::as_bytes(std::span(data.data(), data.size()));
    if (bias) weights.bias = {bias->data(), bias->size()};
    return weights;
  }
};

WeightType ParseWeightType(const std::string& name) {
  for (std::uint32_t id = 0; id < 256; ++id)
    if (FindWeightBlock(id) && name == WeightTypeName(static_cast<WeightType>(id)))
      return static_cast<WeightType>(id);
  Raise({StatusCode::kInvalidArgument,
         "weight type = '" + name + "'; expected F32, F16, BF16, Q8_0, Q4_K, ..."});
}

/// The outputs and the other arguments of a call of q_len tokens that see kv_len tokens.
struct Call {
  const Matrix& x;
  const DenseArray<float, 2>& out;
  const OptionalMatrix& heads;
  const OptionalMatrix& terms;
  const Logits<float>& bias;
  const Logits<std::uint8_t>& mask;

  std::int64_t q_len() const { return static_cast<std::int64_t>(x.shape(0)); }

  ForwardOptions Options(const MultiHeadAttentionParams& params, std::int64_t kv_len) const {
    const std::int64_t H = params.attention.num_heads, T = q_len();
    CheckShape(x, "x", "[T, d_model]", {T, params.d_model});
    CheckShape(out, "out", "[T, d_model]", {T, params.d_model});
    ForwardOptions options;
    options.bias.bias = LogitView(bias, "bias", {1, H, T, kv_len});
    options.bias.mask = LogitView(mask, "mask", {1, H, T, kv_len});
    if (heads) {
      CheckShape(*heads, "heads", "[H, T, Dv]", {H, T, params.attention.head_dim_v});
      options.head_outputs.heads = heads->data();
    }
    if (terms) {
      CheckShape(*terms, "terms", "[H, T, d_model]", {H, T, params.d_model});
      options.head_outputs.terms = terms->data();
    }
    return options;
  }
};

void Forward(MultiHeadAttention& self, const Matrix& x, const std::optional<Matrix>& memory,
             const DenseArray<float, 2>& out, const OptionalMatrix& heads,
             const OptionalMatrix& terms, const Logits<float>& bias,
             const Logits<std::uint8_t>& mask) {
  const Call call{x, out, heads, terms, bias, mask};
  const MultiHeadAttentionParams& params = self.params();
  const std::int64_t S = memory ? static_cast<std::int64_t>(memory->shape(0)) : call.q_len();
  if (memory) CheckShape(*memory, "memory", "[S, memory_dim]", {S, params.memory_dim});
  const ForwardOptions options = call.Options(params, S);
  Check(WithoutGil([&] {
    return memory ? self.Forward(call.q_len(), x.data(), S, memory->data(), out.data(), options)
                  : self.Forward(call.q_len(), x.data(), out.data(), options);
  }));
}

void Append(MultiHeadAttention& self, const Matrix& x, const DenseArray<float, 2>& out,
            const OptionalMatrix& heads, const OptionalMatrix& terms, const Logits<float>& bias,
            const Logits<std::uint8_t>& mask) {
  const Call call{x, out, heads, terms, bias, mask};
  const ForwardOptions options = call.Options(self.params(), self.length() + call.q_len());
  Check(WithoutGil([&] { return self.Append(call.q_len(), x.data(), out.data(), options); }));
}

void ForwardCache(MultiHeadAttention& self, Cache& cache, std::int64_t layer, std::int32_t sequence,
                  const Matrix& x, const DenseArray<float, 2>& out, const OptionalMatrix& heads,
                  const OptionalMatrix& terms, const Logits<float>& bias,
                  const Logits<std::uint8_t>& mask) {
  const Call call{x, out, heads, terms, bias, mask};
  const std::int64_t kv_len = WithoutGil([&] {
    const std::shared_lock lock(cache.mutex);
    return std::max<std::int64_t>(0, cache.cache.length(SequenceId{sequence}));
  });
  const ForwardOptions options = call.Options(self.params(), kv_len);
  Check(WithoutGil([&] {
    const std::lock_guard lock(cache.mutex);
    return self.Forward(cache.cache, layer, SequenceId{sequence}, call.q_len(), x.data(),
                        out.data(), options);
  }));
}

void BindProjection(nb::module_& module) {
  using nb::arg;
  nb::class_<Projection>(module, "Projection")
      .def(
          "__init__",
          [](Projection* self, const std::string& type,
             const DenseArray<const std::uint8_t, 2>& data,
             const std::optional<DenseArray<const float, 1>>& bias) {
            new (self) Projection{ParseWeightType(type), data, bias};
          },
          arg("type"), arg("data").noconvert(), arg("bias").noconvert().none());
}

void Create(MultiHeadAttention* self, const AttentionParams& attention, std::int64_t d_model,
            std::int64_t memory_dim, const Projection& query, const Projection& key,
            const Projection& value, const Projection& output, const RopeConfig* rope,
            const std::string& math, bool sequential, bool own_cache, const std::string& k_type,
            const std::string& v_type) {
  MultiHeadAttentionParams params;
  params.d_model = d_model;
  params.memory_dim = memory_dim;
  params.attention = attention;
  if (rope != nullptr) params.rope = *rope;
  params.math = ParseMathOrRaise(math);
  params.sequential = sequential;
  params.own_cache = own_cache;
  params.k_type = ParseKvTypeOrRaise(k_type);
  params.v_type = ParseKvTypeOrRaise(v_type);
  const MultiHeadAttentionWeights weights = {
      .query = query.View(), .key = key.View(), .value = value.View(), .output = output.View()};
  new (self) MultiHeadAttention(Take(MultiHeadAttention::Create(params, weights)));
}

}  // namespace

void BindLayer(nb::module_& module) {
  using nb::arg;
  BindProjection(module);
  const auto attention = [](auto field) {
    return [field](const MultiHeadAttention& self) { return self.params().attention.*field; };
  };
  // The layer reads the projections' arrays in place: they live as long as the layer.
  nb::class_<MultiHeadAttention>(module, "MultiHeadAttention")
      .def("__init__", &Create, nb::kw_only(), arg("attention"), arg("d_model"), arg("memory_dim"),
           arg("query"), arg("key"), arg("value"), arg("output"), arg("rope").none(), arg("math"),
           arg("sequential"), arg("own_cache"), arg("k_type"), arg("v_type"),
           nb::keep_alive<1, 5>(), nb::keep_alive<1, 6>(), nb::keep_alive<1, 7>(),
           nb::keep_alive<1, 8>())
      .def("forward", &Forward, arg("x").noconvert(), arg("memory").noconvert().none(),
           arg("out").noconvert(), arg("heads").noconvert().none(), arg("terms").noconvert().none(),
           arg("bias").noconvert().none(), arg("mask").noconvert().none())
      .def("append", &Append, arg("x").noconvert(), arg("out").noconvert(),
           arg("heads").noconvert().none(), arg("terms").noconvert().none(),
           arg("bias").noconvert().none(), arg("mask").noconvert().none())
      .def("forward_cache", &ForwardCache, arg("cache"), arg("layer"), arg("sequence"),
           arg("x").noconvert(), arg("out").noconvert(), arg("heads").noconvert().none(),
           arg("terms").noconvert().none(), arg("bias").noconvert().none(),
           arg("mask").noconvert().none())
      .def(
          "truncate",
          [](MultiHeadAttention& self, std::int64_t length) {
            Check(WithoutGil([&] { return self.Truncate(length); }));
          },
          arg("length"))
      .def_prop_ro("length", &MultiHeadAttention::length)
      .def_prop_ro("d_model", [](const MultiHeadAttention& self) { return self.params().d_model; })
      .def_prop_ro("num_heads", attention(&AttentionParams::num_heads))
      .def_prop_ro("num_kv_heads", attention(&AttentionParams::num_kv_heads))
      .def_prop_ro("head_dim", attention(&AttentionParams::head_dim))
      .def_prop_ro("head_dim_v", attention(&AttentionParams::head_dim_v))
      .def_prop_ro("scratch_bytes",
                   [](const MultiHeadAttention& self) { return self.scratch_bytes(); });
}

}  // namespace manyhead::python
