#include "manyhead/ablation.h"
#include "manyhead/prune.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tools/python/src/binding.h"

namespace manyhead::python {
namespace {

using Ids = DenseArray<const TokenId, 1>;

/// Runs `measure(ids, options)` without Python's lock. Ctrl-C ends it; the exception of the
/// signal's handler is then raised.
template <class Measure>
auto Measured(const Ids& ids, HeadTextOptions options, Measure&& measure) {
  std::atomic<bool> cancel = false;
  options.cancel = &cancel;
  options.on_progress = [&](std::int64_t, std::int64_t) {
    const nb::gil_scoped_acquire acquire;
    if (PyErr_CheckSignals() != 0) cancel = true;
  };
  auto result = WithoutGil([&] { return measure(std::span(ids.data(), ids.shape(0)), options); });
  if (PyErr_Occurred() != nullptr) throw nb::python_error();
  return Take(std::move(result));
}

Ablation MakeAblation(const Model& model, const std::string& edits,
                      const std::optional<Ids>& means_ids) {
  Ablation ablation = Take(ParseAblation(edits, model.config()));
  if (!NeedsMeans(ablation)) return ablation;
  if (!means_ids)
    Raise({StatusCode::kInvalidArgument,
           "heads that give their mean need a text; expected means_text"});
  ablation.means = Measured(*means_ids, {}, [&](auto ids, const HeadTextOptions& options) {
    return MeasureHeadMeans(model, ids, options);
  });
  return ablation;
}

/// A patch: layer, head, first position and values [n, Dv].
using Patch = std::tuple<std::int64_t, std::int64_t, std::int64_t, DenseArray<const float, 2>>;

/// The edits of `ablation`, and these patches.
Ablation WithPatches(const Ablation& ablation, const Model& model,
                     const std::vector<Patch>& patches) {
  Ablation result{ablation.edits, ablation.means, {}};
  const std::vector<LayerConfig>& layers = model.config().layers;
  for (const auto& [layer, head, position, values] : patches) {
    if (layer >= 0 && layer < std::ssize(layers))
      CheckShape(values, "values", "[n, head_dim_v]",
                 {static_cast<std::int64_t>(values.shape(0)),
                  layers[static_cast<std::size_t>(layer)].head_dim_v});
    result.patches.push_back(
        {{layer, head}, position, {values.data(), values.data() + values.size()}});
  }
  Check(CheckAblation(model.config(), result));
  return result;
}

HeadTextOptions TextOptions(std::int64_t tokens, const std::string& math, int threads) {
  HeadTextOptions options;
  options.tokens = tokens;
  options.math = ParseMathOrRaise(math);
  options.threads = threads;
  return options;
}

nb::list Effects(const Model& model, const Ids& ids,
                 const std::vector<std::pair<std::int64_t, std::int64_t>>& heads,
                 std::int64_t tokens, const std::string& math, int threads) {
  const std::vector<HeadId> wanted = HeadIds(heads);
  const HeadEffects effects = Measured(ids, TextOptions(tokens, math, threads),
                                       [&](auto span, const HeadTextOptions& options) {
                                         return MeasureHeadEffects(model, span, wanted, options);
                                       });
  nb::list list;
  for (const HeadEffect& effect : effects.effects) {
    nb::dict entry;
    entry["layer"] = effect.head.layer;
    entry["head"] = effect.head.head;
    entry["loss_before"] = effects.loss_before;
    entry["loss_after"] = effect.loss_after;
    list.append(entry);
  }
  return list;
}

nb::dict Prune(const Model& model, const Ids& ids, double max_rise, std::int64_t max_kv_heads,
               bool uniform, std::int64_t tokens, const std::string& math, int threads) {
  const Pruning pruning = Measured(
      ids, TextOptions(tokens, math, threads), [&](auto span, const HeadTextOptions& options) {
        return PruneHeads(model, span, {options, max_rise, max_kv_heads, uniform});
      });
  const auto loss = [](const PruneLoss& of) {
    nb::dict entry;
    entry["mean_nll"] = of.mean;
    entry["fit_nll"] = of.fit;
    entry["held_out_nll"] = of.held_out;
    return entry;
  };
  nb::list removed;
  for (const KvHeadId& id : pruning.removed) removed.append(nb::make_tuple(id.layer, id.kv_head));
  nb::dict result;
  result["removed"] = removed;
  result["kv_policy"] = FormatRemoved(pruning.removed);
  result["before"] = loss(pruning.before);
  result["after"] = loss(pruning.after);
  result["tokens"] = pruning.tokens;
  result["held_out_tokens"] = pruning.held_out_tokens;
  return result;
}

void WritePruned(const Model& model,
                 const std::vector<std::pair<std::int64_t, std::int64_t>>& removed,
                 const nb::bytes& path, bool widen) {
  std::vector<KvHeadId> ids;
  for (const auto& [layer, kv_head] : removed) ids.push_back({layer, kv_head});
  const std::string name(static_cast<const char*>(path.data()), path.size());
  Check(WithoutGil([&] { return WritePrunedModel(model, ids, name, {.widen = widen}); }));
}

}  // namespace

void BindAblation(nb::module_& module) {
  using nb::arg;
  nb::class_<Ablation>(module, "Ablation", "Changes to the heads of a model.")
      .def(nb::init<>())
      .def_prop_ro("edits", &FormatAblation, "As JSON.")
      .def_prop_ro("patches",
                   [](const Ablation& self) {
                     std::vector<std::tuple<std::int64_t, std::int64_t, std::int64_t>> patches;
                     for (const HeadPatch& patch : self.patches)
                       patches.emplace_back(patch.head.layer, patch.head.head, patch.position);
                     return patches;
                   })
      .def(
          "with_edits",
          [](const Ablation& self, const Ablation& edits) {
            return Ablation{edits.edits, edits.means, self.patches};
          },
          arg("edits"), "Its patches, and the edits of another.");
  module.def("ablation", &MakeAblation, nb::kw_only(), arg("model"), arg("edits"),
             arg("means_ids").noconvert().none());
  module.def("with_patches", &WithPatches, arg("ablation"), arg("model"), arg("patches"));
  module.def("head_effects", &Effects, nb::kw_only(), arg("model"), arg("ids").noconvert(),
             arg("heads"), arg("tokens"), arg("math"), arg("threads"));
  module.def("prune_heads", &Prune, nb::kw_only(), arg("model"), arg("ids").noconvert(),
             arg("max_rise"), arg("max_kv_heads"), arg("uniform"), arg("tokens"), arg("math"),
             arg("threads"));
  module.def("write_pruned_model", &WritePruned, nb::kw_only(), arg("model"), arg("removed"),
             arg("path"), arg("widen"));
}

}  // namespace manyhead::python
