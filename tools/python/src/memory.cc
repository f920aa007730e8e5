#include "manyhead/memory.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>

#include "tools/python/src/binding.h"

namespace manyhead::python {
namespace {

/// The shape that `source` stands for: the path of a GGUF file, or the text of a config.json.
Result<ModelShape> ShapeOf(const std::string& source, bool is_config) {
  return is_config ? ParseModelShape(source) : ReadModelShape(source);
}

MemoryPlan Plan(const nb::bytes& source, bool is_config, const SessionOptions& session,
                std::int64_t batch, bool packed, bool score) {
  const std::string text(static_cast<const char*>(source.data()), source.size());
  return Take(WithoutGil([&]() -> Result<MemoryPlan> {
    const Result<ModelShape> shape = ShapeOf(text, is_config);
    if (!shape.ok()) return shape.status();
    return PlanMemory(*shape, {.session = session,
                               .batch = batch,
                               .weights = packed ? WeightStorage::kPacked : WeightStorage::kMapped,
                               .score = score});
  }));
}

}  // namespace

void BindMemory(nb::module_& module) {
  using nb::arg;
  nb::class_<FlopCount>(module, "FlopCount", "Floating-point operations.")
      .def_ro("projections", &FlopCount::projections)
      .def_ro("scores", &FlopCount::scores)
      .def_ro("scores_seen", &FlopCount::scores_seen)
      .def_ro("feed_forward", &FlopCount::feed_forward)
      .def_ro("logits", &FlopCount::logits)
      .def_prop_ro("total", &FlopCount::total)
      .def("__repr__", &Represent);
  nb::class_<LayerPlan>(module, "LayerPlan", "One layer of a MemoryPlan.")
      .def_ro("parameters", &LayerPlan::parameters)
      .def_ro("weight_bytes", &LayerPlan::weight_bytes)
      .def_ro("kv_bytes_per_token", &LayerPlan::kv_bytes_per_token)
      .def_ro("kv_bytes", &LayerPlan::kv_bytes)
      .def_ro("score_matrix_bytes", &LayerPlan::score_matrix_bytes)
      .def_ro("flops", &LayerPlan::flops)
      .def("__repr__", &Represent);
  nb::class_<MemoryPlan>(module, "MemoryPlan", "The bytes and operations that a model needs.")
      .def_prop_ro("context", [](const MemoryPlan& self) { return self.session.context; })
      .def_ro("batch", &MemoryPlan::batch)
      .def_ro("parameters", &MemoryPlan::parameters)
      .def_ro("weight_bytes", &MemoryPlan::weight_bytes)
      .def_ro("packed_bytes", &MemoryPlan::packed_bytes)
      .def_ro("mapped_bytes", &MemoryPlan::mapped_bytes)
      .def_ro("kv_bytes", &MemoryPlan::kv_bytes, "Pages of the full context.")
      .def_ro("kv_bytes_per_token", &MemoryPlan::kv_bytes_per_token)
      .def_ro("kv_table_bytes", &MemoryPlan::kv_table_bytes)
      .def_ro("kv_peak_bytes", &MemoryPlan::kv_peak_bytes, "Pages and tables at their most.")
      .def_ro("scratch_bytes", &MemoryPlan::scratch_bytes)
      .def_ro("tokenizer_bytes", &MemoryPlan::tokenizer_bytes)
      .def_ro("process_bytes", &MemoryPlan::process_bytes)
      .def_ro("total_bytes", &MemoryPlan::total_bytes, "Largest resident memory of the process.")
      .def_ro("score_matrix_bytes", &MemoryPlan::score_matrix_bytes)
      .def_ro("flops", &MemoryPlan::flops, "Of prompts of the whole context.")
      .def_ro("decode_flops", &MemoryPlan::decode_flops, "Of the last token alone.")
      .def_ro("layers", &MemoryPlan::layers)
      .def("__repr__", &Represent);
  module.def("plan_memory", &Plan, nb::kw_only(), arg("source"), arg("is_config"), arg("session"),
             arg("batch"), arg("packed"), arg("score"));
}

}  // namespace manyhead::python
