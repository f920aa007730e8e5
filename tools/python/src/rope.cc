#include "manyhead/rope.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "tools/python/src/binding.h"

namespace manyhead::python {
namespace {

/// Returns [H, T, D], dense, in the library's form.
RopeHeads Heads(const DenseArray<float, 3>& x) {
  const auto H = static_cast<std::int64_t>(x.shape(0)), T = static_cast<std::int64_t>(x.shape(1));
  const auto D = static_cast<std::int64_t>(x.shape(2));
  return {.data = x.data(), .tokens = T, .heads = H, .token_stride = D, .head_stride = T * D};
}

RopeScaling ParseScaling(const std::string& name) {
  const std::optional<RopeScaling> scaling = ParseRopeScaling(name);
  if (!scaling)
    Raise({StatusCode::kInvalidArgument,
           "scaling = '" + name +
               "'; expected 'none', 'linear', 'ntk', 'yarn', 'llama3' or 'factors'"});
  return *scaling;
}

void RotateByTable(const DenseArray<float, 3>& x, bool interleaved,
                   const DenseArray<const float, 2>& cosine, const DenseArray<const float, 2>& sine,
                   const std::optional<std::string>& isa) {
  const auto T = static_cast<std::int64_t>(x.shape(1));
  const auto half = static_cast<std::int64_t>(cosine.shape(1));
  CheckShape(cosine, "cos", "[T, rotary_dim / 2]", {T, half});
  CheckShape(sine, "sin", "[T, rotary_dim / 2]", {T, half});
  const std::optional<Isa> parsed = ParseIsaOrRaise(isa);
  Check(WithoutGil([&] {
    return RotateHeads(Heads(x), static_cast<std::int64_t>(x.shape(2)), 2 * half, interleaved,
                       {cosine.data(), cosine.size()}, {sine.data(), sine.size()}, parsed);
  }));
}

void BindConfig(nb::module_& module) {
  using nb::arg;
  nb::class_<RopeConfig>(module, "RopeConfig")
      .def(
          "__init__",
          [](RopeConfig* self, std::int64_t rotary_dim, bool interleaved, double base,
             const std::string& scaling, double factor, std::int64_t original_context,
             double attention_factor, double beta_fast, double beta_slow, double low_freq_factor,
             double high_freq_factor, std::vector<float> factors) {
            new (self) RopeConfig{.rotary_dim = rotary_dim,
                                  .interleaved = interleaved,
                                  .base = base,
                                  .scaling = ParseScaling(scaling),
                                  .factor = factor,
                                  .original_context = original_context,
                                  .attention_factor = attention_factor,
                                  .beta_fast = beta_fast,
                                  .beta_slow = beta_slow,
                                  .low_freq_factor = low_freq_factor,
                                  .high_freq_factor = high_freq_factor,
                                  .factors = std::move(factors)};
          },
          nb::kw_only(), arg("rotary_dim"), arg("interleaved"), arg("base"), arg("scaling"),
          arg("factor"), arg("original_context"), arg("attention_factor"), arg("beta_fast"),
          arg("beta_slow"), arg("low_freq_factor"), arg("high_freq_factor"), arg("factors"));
}

}  // namespace

void BindRope(nb::module_& module) {
  using nb::arg;
  BindConfig(module);
  nb::class_<Rope>(module, "Rope")
      .def(
          "__init__",
          [](Rope* self, const RopeConfig& config, std::int64_t head_dim,
             const std::optional<std::string>& isa) {
            new (self) Rope(Take(Rope::Create(config, head_dim, ParseIsaOrRaise(isa))));
          },
          arg("config"), arg("head_dim"), arg("isa").none())
      .def(
          "apply",
          [](const Rope& self, const DenseArray<float, 3>& x,
             const DenseArray<const std::int64_t, 1>& positions) {
            const auto T = static_cast<std::int64_t>(x.shape(1));
            CheckShape(x, "x", "[H, T, D]",
                       {static_cast<std::int64_t>(x.shape(0)), T, self.head_dim()});
            CheckShape(positions, "positions", "[T]", {T});
            Check(WithoutGil([&] {
              return self.Apply(Heads(x), std::span(positions.data(), positions.shape(0)));
            }));
          },
          arg("x").noconvert(), arg("positions").noconvert());
  module.def("rotate_by_table", &RotateByTable, arg("x").noconvert(), arg("interleaved"),
             arg("cos").noconvert(), arg("sin").noconvert(), arg("isa").none());
}

}  // namespace manyhead::python
