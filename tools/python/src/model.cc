#include "manyhead/model.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <string_view>
#include <vector>

#include "tools/python/src/binding.h"

namespace manyhead::python {
namespace {

using Ids = DenseArray<const TokenId, 1>;

std::span<const TokenId> Span(const Ids& ids) { return {ids.data(), ids.shape(0)}; }
std::string_view View(const nb::bytes& bytes) {
  return {static_cast<const char*>(bytes.data()), bytes.size()};
}
nb::bytes Bytes(std::string_view text) { return nb::bytes(text.data(), text.size()); }

void BindLayerConfig(nb::module_& module) {
  nb::class_<LayerConfig>(module, "LayerConfig", "The shape of one decoder layer.")
      .def_ro("num_heads", &LayerConfig::num_heads)
      .def_ro("num_kv_heads", &LayerConfig::num_kv_heads)
      .def_ro("head_dim", &LayerConfig::head_dim)
      .def_ro("head_dim_v", &LayerConfig::head_dim_v)
      .def_ro("ffn_dim", &LayerConfig::ffn_dim)
      .def_ro("window", &LayerConfig::window, "Tokens a query sees including itself; 0 = all.")
      .def("__repr__", &Represent);
}

WeightStorage ParseWeightsOrRaise(const std::string& name) {
  if (name == "packed") return WeightStorage::kPacked;
  if (name == "mapped") return WeightStorage::kMapped;
  Raise({StatusCode::kInvalidArgument, "weights = '" + name + "'; expected 'packed' or 'mapped'"});
}

}  // namespace

void BindModel(nb::module_& module) {
  using nb::arg;
  BindLayerConfig(module);
  const auto config = [](auto field) {
    return [field](const Model& self) { return self.config().*field; };
  };
  nb::class_<Model>(module, "Model")
      .def_static(
          "load",
          [](const nb::bytes& path, const std::string& weights) {
            const std::string name(View(path));
            const ModelOptions options = {.weights = ParseWeightsOrRaise(weights)};
            return Take(WithoutGil([&] { return Model::Load(name, options); }));
          },
          arg("path"), arg("weights"))
      .def(
          "tokenize",
          [](const Model& self, const nb::bytes& text, bool add_special, bool parse_special) {
            return Take(self.tokenizer().Encode(
                View(text), {.add_special = add_special, .parse_special = parse_special}));
          },
          arg("text"), arg("add_special"), arg("parse_special"))
      .def(
          "detokenize",
          [](const Model& self, const Ids& ids, bool special) {
            return Bytes(self.tokenizer().Decode(Span(ids), special));
          },
          arg("ids").noconvert(), arg("special"))
      .def_prop_ro("bos", [](const Model& self) { return self.tokenizer().bos(); })
      .def_prop_ro("eos", [](const Model& self) { return self.tokenizer().eos(); })
      .def_prop_ro("end_tokens",
                   [](const Model& self) {
                     const auto ids = self.tokenizer().end_tokens();
                     return std::vector<TokenId>(ids.begin(), ids.end());
                   })
      .def_prop_ro("packed_bytes", &Model::packed_bytes)
      .def_prop_ro("path", [](const Model& self) { return Bytes(self.path()); })
      .def_prop_ro("architecture", config(&ModelConfig::architecture))
      .def_prop_ro("name", [](const Model& self) { return Bytes(self.config().name); })
      .def_prop_ro("vocab_size", config(&ModelConfig::vocab_size))
      .def_prop_ro("d_model", config(&ModelConfig::d_model))
      .def_prop_ro("context_length", config(&ModelConfig::context_length))
      .def_prop_ro("layers", config(&ModelConfig::layers))
      .def_prop_ro("num_parameters", &Model::num_parameters)
      .def_prop_ro("weight_bytes", &Model::weight_bytes)
      .def_prop_ro("weight_type",
                   [](const Model& self) { return std::string(self.main_weight_type()); });
}

}  // namespace manyhead::python
