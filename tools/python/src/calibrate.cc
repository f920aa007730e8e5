#include "manyhead/calibrate.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <string>
#include <vector>

#include "tools/python/src/binding.h"

namespace manyhead::python {
namespace {

/// Runs the search. Ctrl-C ends it; the exception of the signal's handler is then raised.
Calibration Calibrate(const Model& model, const DenseArray<const TokenId, 1>& ids,
                      std::int64_t budget_bytes, double budget_fraction, std::int64_t context,
                      const std::vector<std::string>& types, bool evict, const std::string& math,
                      int threads, const std::optional<std::string>& isa, std::int64_t chunk,
                      std::int64_t probe_tokens) {
  std::atomic<bool> cancel = false;
  CalibrateOptions options;
  options.budget_bytes = budget_bytes;
  options.budget_fraction = budget_fraction;
  options.context = context;
  options.types.clear();
  for (const std::string& name : types) options.types.push_back(ParseKvTypeOrRaise(name));
  options.evict = evict;
  options.math = ParseMathOrRaise(math);
  options.threads = threads;
  options.isa = ParseIsaOrRaise(isa);
  options.chunk = chunk;
  options.probe_tokens = probe_tokens;
  options.cancel = &cancel;
  options.on_progress = [&](std::int64_t, std::int64_t) {
    const nb::gil_scoped_acquire acquire;
    if (PyErr_CheckSignals() != 0) cancel = true;
  };
  Result<Calibration> result =
      WithoutGil([&] { return CalibrateKv(model, std::span(ids.data(), ids.shape(0)), options); });
  if (PyErr_Occurred() != nullptr) throw nb::python_error();
  return Take(std::move(result));
}

}  // namespace

void BindCalibrate(nb::module_& module) {
  using nb::arg;
  nb::class_<KvLoss>(module, "KvLoss", "What a cache takes, and what a text costs with it.")
      .def_ro("bytes", &KvLoss::bytes)
      .def_ro("mean_nll", &KvLoss::mean_nll, "Nats per token of the text.")
      .def_ro("fit_nll", &KvLoss::fit_nll, "Of the tokens that the choice was made by.")
      .def_ro("held_out_nll", &KvLoss::held_out_nll, "Of those it never saw.")
      .def("__repr__", &Represent);
  nb::class_<Calibration>(module, "Calibration", "The heads that a calibration chose.")
      .def_ro("heads", &Calibration::heads, "[layer][KV head]")
      .def_prop_ro(
          "kv_policy", [](const Calibration& self) { return FormatKvHeads(self.heads); },
          "The heads as JSON, which kv_policy and heads take.")
      .def_ro("context", &Calibration::context)
      .def_ro("budget_bytes", &Calibration::budget_bytes)
      .def_ro("fit_tokens", &Calibration::fit_tokens)
      .def_ro("held_out_tokens", &Calibration::held_out_tokens)
      .def_ro("before", &Calibration::before, "f16, every token.")
      .def_ro("after", &Calibration::after, "Of heads.")
      .def_ro("estimated_rise", &Calibration::estimated_rise)
      .def_ro("candidates", &Calibration::candidates,
              "Of each mix that was scored over the whole text.")
      .def_ro("evaluated_tokens", &Calibration::evaluated_tokens)
      .def("__repr__", &Represent);
  module.def("calibrate", &Calibrate, nb::kw_only(), arg("model"), arg("ids").noconvert(),
             arg("budget_bytes"), arg("budget_fraction"), arg("context"), arg("types"),
             arg("evict"), arg("math"), arg("threads"), arg("isa").none(), arg("chunk"),
             arg("probe_tokens"));
}

}  // namespace manyhead::python
