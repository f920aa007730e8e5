#include "manyhead/head_classes.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <string>
#include <utility>
#include <vector>

#include "manyhead/circuits.h"
#include "tools/python/src/binding.h"

namespace manyhead::python {
namespace {

using Ids = DenseArray<const TokenId, 1>;
using Heads = std::vector<std::pair<std::int64_t, std::int64_t>>;

/// Runs `work(options)` without Python's lock. Ctrl-C ends it, and raises what the signal's handler
/// did.
template <class Options, class Work>
auto Interruptible(Options options, Work&& work) {
  std::atomic<bool> cancel = false;
  options.cancel = &cancel;
  options.on_progress = [&](std::int64_t, std::int64_t) {
    const nb::gil_scoped_acquire acquire;
    if (PyErr_CheckSignals() != 0) cancel = true;
  };
  auto result = WithoutGil([&] { return work(options); });
  if (PyErr_Occurred() != nullptr) throw nb::python_error();
  return Take(std::move(result));
}

HeadClassification Classify(const Model& model, const std::optional<Ids>& text,
                            const std::string& conllu, std::uint64_t seed, const std::string& math,
                            int threads) {
  ClassifyOptions options;
  if (text) {
    if (text->shape(0) == 0)
      Raise({StatusCode::kInvalidArgument, "the text has 0 tokens; expected at least 256"});
    options.text.assign(text->data(), text->data() + text->shape(0));
  }
  options.conllu = conllu;
  options.seed = seed;
  options.math = ParseMathOrRaise(math);
  options.threads = threads;
  return Interruptible(options,
                       [&](const ClassifyOptions& chosen) { return ClassifyHeads(model, chosen); });
}

void BindClasses(nb::module_& module) {
  nb::class_<DependencyScore>(module, "DependencyScore",
                              "How often a head's strongest arc is one dependency.")
      .def_ro("relation", &DependencyScore::relation)
      .def_ro("to_head", &DependencyScore::to_head)
      .def_ro("count", &DependencyScore::count)
      .def_ro("accuracy", &DependencyScore::accuracy)
      .def_ro("baseline", &DependencyScore::baseline)
      .def_ro("offset", &DependencyScore::offset)
      .def("__repr__", &Represent);
  nb::class_<HeadScores>(module, "HeadScores", "Scores of one head, each from 0 to 1.")
      .def_ro("previous_token", &HeadScores::previous_token)
      .def_ro("fixed_offset", &HeadScores::fixed_offset)
      .def_ro("offset", &HeadScores::offset)
      .def_ro("duplicate_token", &HeadScores::duplicate_token)
      .def_ro("induction", &HeadScores::induction)
      .def_ro("retrieval", &HeadScores::retrieval)
      .def_ro("sink", &HeadScores::sink)
      .def_ro("local", &HeadScores::local)
      .def_ro("uniformity", &HeadScores::uniformity)
      .def_ro("constancy", &HeadScores::constancy)
      .def_ro("twin", &HeadScores::twin)
      .def_ro("twin_head", &HeadScores::twin_head)
      .def_ro("dependencies", &HeadScores::dependencies)
      .def("__repr__", &Represent);
  nb::class_<HeadReport>(module, "HeadReport", "What one head looks for.")
      .def_prop_ro("layer", [](const HeadReport& self) { return self.id.layer; })
      .def_prop_ro("head", [](const HeadReport& self) { return self.id.head; })
      .def_ro("kv_head", &HeadReport::kv_head)
      .def_prop_ro("head_class",
                   [](const HeadReport& self) { return HeadClassName(self.head_class); })
      .def_ro("scores", &HeadReport::scores)
      .def("__repr__", &Represent);
  nb::class_<HeadClassification>(module, "HeadClassification", "What every head looks for.")
      .def_ro("heads", &HeadClassification::heads, "Layer by layer.")
      .def("__repr__", &Represent);
}

ModelCircuits Circuits(const Model& model, const Heads& heads, const Heads& from, const Heads& to,
                       int threads) {
  CircuitOptions options;
  options.heads = HeadIds(heads);
  options.from = HeadIds(from);
  options.to = HeadIds(to);
  options.threads = threads;
  return Interruptible(
      options, [&](const CircuitOptions& chosen) { return DescribeCircuits(model, chosen); });
}

void BindCircuits(nb::module_& module) {
  nb::class_<Spectrum>(module, "Spectrum", "The singular values of a head's matrix.")
      .def_ro("singular_values", &Spectrum::singular_values, "Falling.")
      .def_ro("norm", &Spectrum::norm, "Frobenius norm.")
      .def_ro("effective_rank", &Spectrum::effective_rank)
      .def_ro("participation", &Spectrum::participation)
      .def("__repr__", &Represent);
  nb::class_<HeadCircuit>(module, "HeadCircuit", "One head's matrices W_QK and W_OV.")
      .def_prop_ro("layer", [](const HeadCircuit& self) { return self.id.layer; })
      .def_prop_ro("head", [](const HeadCircuit& self) { return self.id.head; })
      .def_ro("kv_head", &HeadCircuit::kv_head)
      .def_ro("qk", &HeadCircuit::qk)
      .def_ro("ov", &HeadCircuit::ov)
      .def("__repr__", &Represent);
  nb::class_<HeadLink>(module, "HeadLink", "What one head passes on to a later one.")
      .def_prop_ro("from_layer", [](const HeadLink& self) { return self.from.layer; })
      .def_prop_ro("from_head", [](const HeadLink& self) { return self.from.head; })
      .def_prop_ro("to_layer", [](const HeadLink& self) { return self.to.layer; })
      .def_prop_ro("to_head", [](const HeadLink& self) { return self.to.head; })
      .def_prop_ro("query", [](const HeadLink& self) { return self.scores.query; })
      .def_prop_ro("key", [](const HeadLink& self) { return self.scores.key; })
      .def_prop_ro("value", [](const HeadLink& self) { return self.scores.value; })
      .def_ro("rank", &HeadLink::rank, "Of key among all heads before; 1 = the largest.")
      .def_ro("num_from", &HeadLink::num_from)
      .def("__repr__", &Represent);
  nb::class_<ModelCircuits>(module, "ModelCircuits", "Matrices of heads and links between them.")
      .def_ro("heads", &ModelCircuits::heads, "Layer by layer.")
      .def_ro("links", &ModelCircuits::links, "By the later head, then falling key score.")
      .def_ro("baseline", &ModelCircuits::baseline)
      .def("__repr__", &Represent);
}

}  // namespace

void BindHeadClasses(nb::module_& module) {
  using nb::arg;
  BindClasses(module);
  BindCircuits(module);
  module.def("classify_heads", &Classify, nb::kw_only(), arg("model"),
             arg("text").noconvert().none(), arg("conllu"), arg("seed"), arg("math"),
             arg("threads"));
  module.def(
      "class_policies",
      [](const Model& model, const HeadClassification& classification) {
        return FormatKvHeads(ClassPolicies(model.config(), classification.heads));
      },
      arg("model"), arg("classification"));
  module.def("circuits", &Circuits, nb::kw_only(), arg("model"), arg("heads"), arg("from_heads"),
             arg("to_heads"), arg("threads"));
}

}  // namespace manyhead::python
