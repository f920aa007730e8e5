#include "manyhead/model.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "manyhead/ablation.h"
#include "manyhead/session.h"
#include "tools/python/src/binding.h"

namespace manyhead::python {
namespace {

using Ids = DenseArray<const TokenId, 1>;

std::span<const TokenId> Span(const Ids& ids) { return {ids.data(), ids.shape(0)}; }
std::string_view View(const nb::bytes& bytes) {
  return {static_cast<const char*>(bytes.data()), bytes.size()};
}
nb::bytes Bytes(std::string_view text) { return nb::bytes(text.data(), text.size()); }

/// A generation in progress with its session.
class TextStream {
 public:
  TextStream(const Model& model, const Ids& prompt, const SessionOptions& session,
             const Ablation& ablation, const GenerateOptions& options)
      : pending_(std::make_unique<Pending>()) {
    GenerateOptions generate = options;
    Pending* pending = pending_.get();
    generate.on_text = [pending](std::string_view piece) { pending->text.append(piece); };
    generate.cancel = &pending->cancel;
    // A long prompt takes minutes. The exception of a signal remains set until Next raises it.
    generate.on_prefill = [pending](std::int64_t, std::int64_t) {
      const nb::gil_scoped_acquire acquire;
      if (PyErr_CheckSignals() != 0) pending->cancel = true;
    };
    session_.emplace(Take(WithoutGil([&] { return Session::Create(model, session); })));
    Check(WithoutGil([&] { return session_->SetAblation(ablation); }));
    generation_.emplace(Take(session_->Begin(Span(prompt), generate)));
  }

  /// Returns the next piece of text; none at the end.
  std::optional<nb::bytes> Next() {
    std::string text;
    const Status status = WithoutGil([&] {
      const std::lock_guard lock(mutex_);
      Status step;
      while (generation_ && pending_->text.empty() && step.ok()) step = Advance();
      text = std::exchange(pending_->text, {});
      return step;
    });
    if (PyErr_Occurred() != nullptr) throw nb::python_error();
    Check(status);
    if (text.empty()) return std::nullopt;
    return Bytes(text);
  }

  /// Releases the session's memory; the text ends here.
  void Close() {
    WithoutGil([&] {
      const std::lock_guard lock(mutex_);
      End();
      pending_->text.clear();
    });
  }

  GenerateResult Snapshot() {
    return WithoutGil([&] {
      const std::lock_guard lock(mutex_);
      return generation_ ? generation_->result() : result_;
    });
  }
  bool active() {
    return WithoutGil([&] {
      const std::lock_guard lock(mutex_);
      return generation_.has_value();
    });
  }

 private:
  struct Pending {
    std::string text;
    std::atomic<bool> cancel = false;
  };

  Status Advance() {
    const Result<bool> more = generation_->Step();
    if (!more.ok() || !*more) End();
    return more.status();
  }
  void End() {
    if (!generation_) return;
    result_ = generation_->result();
    generation_.reset();
    session_.reset();
  }

  std::mutex mutex_;
  std::unique_ptr<Pending> pending_;  // the session's callbacks point to it
  std::optional<Session> session_;
  std::optional<Generation> generation_;
  GenerateResult result_;
};

void BindOptions(nb::module_& module) {
  using nb::arg;
  nb::class_<SessionOptions>(module, "SessionOptions")
      .def(
          "__init__",
          [](SessionOptions* self, std::int64_t context, const std::string& k_type,
             const std::string& v_type, const std::string& kv_policy, std::int64_t kv_budget_bytes,
             const std::string& math, int threads, const std::optional<std::string>& isa,
             std::int64_t chunk) {
            new (self) SessionOptions{.context = context,
                                      .k_type = ParseKvTypeOrRaise(k_type),
                                      .v_type = ParseKvTypeOrRaise(v_type),
                                      .kv_policy = kv_policy,
                                      .kv_budget_bytes = kv_budget_bytes,
                                      .math = ParseMathOrRaise(math),
                                      .threads = threads,
                                      .isa = ParseIsaOrRaise(isa),
                                      .chunk = chunk};
          },
          nb::kw_only(), arg("context"), arg("k_type"), arg("v_type"), arg("kv_policy"),
          arg("kv_budget_bytes"), arg("math"), arg("threads"), arg("isa").none(), arg("chunk"));
  nb::class_<GenerateOptions>(module, "GenerateOptions")
      .def(
          "__init__",
          [](GenerateOptions* self, std::int64_t max_tokens, float temperature, std::int64_t top_k,
             float top_p, float min_p, float repeat_penalty, std::int64_t repeat_last_n,
             std::uint64_t seed, const std::vector<nb::bytes>& stop) {
            auto* options = new (self) GenerateOptions();
            options->max_tokens = max_tokens;
            options->sampling = {.temperature = temperature,
                                 .top_k = top_k,
                                 .top_p = top_p,
                                 .min_p = min_p,
                                 .repeat_penalty = repeat_penalty,
                                 .repeat_last_n = repeat_last_n,
                                 .seed = seed};
            for (const nb::bytes& text : stop) options->stop.emplace_back(View(text));
          },
          nb::kw_only(), arg("max_tokens"), arg("temperature"), arg("top_k"), arg("top_p"),
          arg("min_p"), arg("repeat_penalty"), arg("repeat_last_n"), arg("seed"), arg("stop"));
}

void BindTextStream(nb::module_& module) {
  nb::class_<Timings>(module, "Timings", "Where the time of a generation went.")
      .def_ro("prefill_tokens", &Timings::prefill_tokens)
      .def_ro("prefill_seconds", &Timings::prefill_seconds)
      .def_ro("decode_tokens", &Timings::decode_tokens, "Steps after the prompt.")
      .def_ro("decode_seconds", &Timings::decode_seconds)
      .def_ro("time_to_first_token_seconds", &Timings::time_to_first_token_seconds)
      .def_prop_ro("prefill_rate", &Timings::prefill_rate, "Tokens a second.")
      .def_prop_ro("decode_rate", &Timings::decode_rate, "Tokens a second.");
  nb::class_<TextStream>(module, "TextStream")
      .def(nb::init<const Model&, const Ids&, const SessionOptions&, const Ablation&,
                    const GenerateOptions&>(),
           nb::arg("model"), nb::arg("prompt").noconvert(), nb::arg("session"), nb::arg("ablation"),
           nb::arg("options"), nb::keep_alive<1, 2>())
      .def("next", &TextStream::Next)
      .def("close", &TextStream::Close)
      .def("ids", [](TextStream& self) { return self.Snapshot().ids; })
      .def("text", [](TextStream& self) { return Bytes(self.Snapshot().text); })
      .def("timings", [](TextStream& self) { return self.Snapshot().timings; })
      .def("stop_reason",
           [](TextStream& self) { return StopReasonName(self.Snapshot().stop_reason); })
      .def("active", &TextStream::active);
}

void LastLogits(const Model& model, const Ids& ids, const SessionOptions& options,
                const Ablation& ablation, const DenseArray<float, 1>& out) {
  CheckShape(out, "out", "[vocab_size]", {model.config().vocab_size});
  Check(WithoutGil([&] {
    Result<Session> session = Session::Create(model, options);
    if (!session.ok()) return session.status();
    if (Status status = session->SetAblation(ablation); !status.ok()) return status;
    const Result<std::span<const float>> logits = session->Append(Span(ids), RowRole::kPrefill);
    if (!logits.ok()) return logits.status();
    std::copy(logits->begin(), logits->end(), out.data());
    return Status();
  }));
}

void BindLayerConfig(nb::module_& module) {
  nb::class_<LayerConfig>(module, "LayerConfig", "The shape of one decoder layer.")
      .def_ro("num_heads", &LayerConfig::num_heads)
      .def_ro("num_kv_heads", &LayerConfig::num_kv_heads)
      .def_ro("head_dim", &LayerConfig::head_dim)
      .def_ro("head_dim_v", &LayerConfig::head_dim_v)
      .def_ro("ffn_dim", &LayerConfig::ffn_dim)
      .def_ro("window", &LayerConfig::window, "Tokens a query sees including itself; 0 = all.");
}

WeightStorage ParseWeightsOrRaise(const std::string& name) {
  if (name == "packed") return WeightStorage::kPacked;
  if (name == "mapped") return WeightStorage::kMapped;
  Raise({StatusCode::kInvalidArgument, "weights = '" + name + "'; expected 'packed' or 'mapped'"});
}

}  // namespace

void BindModel(nb::module_& module) {
  using nb::arg;
  BindOptions(module);
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
      .def("logits", &LastLogits, arg("ids").noconvert(), arg("options"), arg("ablation"),
           arg("out").noconvert())
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
  BindTextStream(module);
}

}  // namespace manyhead::python
