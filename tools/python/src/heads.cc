#include "manyhead/heads.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <span>

#include "manyhead/ablation.h"
#include "manyhead/model.h"
#include "manyhead/session.h"
#include "tools/python/src/binding.h"

namespace manyhead::python {
namespace {

using Ids = DenseArray<const TokenId, 1>;

/// Evaluates all ids in an empty session, after a call of `prepare` with it. Ctrl-C ends it; the
/// exception of the signal's handler is then raised.
template <class Prepare>
void Evaluate(const Model& model, const Ids& ids, const SessionOptions& options,
              const Ablation& ablation, const Prepare& prepare) {
  constexpr std::size_t kStep = 512;  // tokens between two checks of signals
  const Status status = WithoutGil([&] {
    Result<Session> session = Session::Create(model, options);
    if (!session.ok()) return session.status();
    if (Status ablated = session->SetAblation(ablation); !ablated.ok()) return ablated;
    if (Status prepared = prepare(*session); !prepared.ok()) return prepared;
    std::span<const TokenId> left(ids.data(), ids.shape(0));
    do {
      const auto step = left.first(std::min(left.size(), kStep));
      if (const auto logits = session->Append(step, RowRole::kPrefill); !logits.ok())
        return logits.status();
      left = left.subspan(step.size());
      const nb::gil_scoped_acquire acquire;
      if (PyErr_CheckSignals() != 0) break;
    } while (!left.empty());
    return Status();
  });
  if (PyErr_Occurred() != nullptr) throw nb::python_error();
  Check(status);
}

HeadProfile Profile(const Model& model, const Ids& ids, const SessionOptions& options,
                    const Ablation& ablation, std::int64_t every, std::int64_t sink_tokens,
                    std::int64_t recent) {
  HeadProfile profile;
  Evaluate(model, ids, options, ablation, [&](Session& session) {
    return session.SetHeadProfile(&profile, {every, sink_tokens, recent});
  });
  return profile;
}

}  // namespace

void BindHeads(nb::module_& module) {
  using nb::arg;
  nb::class_<HeadStats>(module, "HeadStats", "What one query head did.")
      .def_ro("seconds", &HeadStats::seconds, "Of attention, over all threads.")
      .def_ro("kv_bytes", &HeadStats::kv_bytes, "Of keys and values that were read.")
      .def_ro("rows", &HeadStats::rows, "Looked at; what follows are means over them.")
      .def_ro("entropy", &HeadStats::entropy, "Nats.")
      .def_prop_ro("effective_tokens", &HeadStats::effective_tokens, "e to the entropy.")
      .def_ro("sink_mass", &HeadStats::sink_mass, "Weight of the text's first tokens.")
      .def_ro("recent_mass", &HeadStats::recent_mass, "Weight of the last tokens.")
      .def_ro("mean_distance", &HeadStats::mean_distance, "Tokens; 0 is the query itself.")
      .def_ro("median_distance", &HeadStats::median_distance)
      .def_ro("max_weight", &HeadStats::max_weight)
      .def_ro("output_norm", &HeadStats::output_norm,
              "Of what the head adds to the residual stream.")
      .def("__repr__", &Represent);
  nb::class_<HeadProfile>(module, "HeadProfile", "What every head did over a text.")
      .def_ro("heads", &HeadProfile::heads, "[layer][query head]")
      .def_ro("steps", &HeadProfile::steps)
      .def_ro("tokens", &HeadProfile::tokens)
      .def("__repr__", &Represent);
  module.def("head_profile", &Profile, nb::kw_only(), arg("model"), arg("ids").noconvert(),
             arg("options"), arg("ablation"), arg("every"), arg("sink_tokens"), arg("recent"));
}

}  // namespace manyhead::python
