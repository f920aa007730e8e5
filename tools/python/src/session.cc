#include "tools/python/src/session.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <string_view>
#include <vector>

#include "manyhead/ablation.h"

namespace manyhead::python {
namespace {

std::string_view View(const nb::bytes& bytes) {
  return {static_cast<const char*>(bytes.data()), bytes.size()};
}
nb::bytes Bytes(std::string_view text) { return nb::bytes(text.data(), text.size()); }

}  // namespace

/// A generation of a session, piece by piece.
class TextStream {
 public:
  /// `owns`: the session serves nothing else, and is closed with the stream.
  TextStream(std::shared_ptr<SharedSession> session, const Ids& prompt,
             const GenerateOptions& options, bool owns)
      : session_(std::move(session)), owns_(owns), pending_(std::make_unique<Pending>()) {
    GenerateOptions generate = options;
    Pending* pending = pending_.get();
    generate.on_text = [pending](std::string_view piece) { pending->text.append(piece); };
    generate.cancel = &pending->cancel;
    // A long prompt takes minutes. A signal's exception stays set until Next raises it.
    generate.on_prefill = [pending](std::int64_t, std::int64_t) {
      const nb::gil_scoped_acquire acquire;
      if (PyErr_CheckSignals() != 0) pending->cancel = true;
    };
    const SharedSession::Lock lock(*session_);
    Session& held = session_->Idle();
    generation_.emplace(Take(held.Begin(Span(prompt), generate)));
    prompt_tokens_ = std::ssize(Span(prompt));
    session_->pending_.reset();  // `prompt` says all that there is to be
    session_->streaming_ = this;
  }
  TextStream(const TextStream&) = delete;
  TextStream& operator=(const TextStream&) = delete;
  ~TextStream() {
    if (!generation_) return;
    try {
      Close();
    } catch (...) {  // the session's own thread frees the stream from within a call
      generation_.reset();
      session_->streaming_ = nullptr;
    }
  }

  /// The next piece of text; none at the end.
  std::optional<nb::bytes> Next() {
    std::string text;
    Status status;
    {
      const SharedSession::Lock lock(*session_);
      status = WithoutGil([&] {
        Status step;
        while (generation_ && pending_->text.empty() && step.ok()) step = Advance();
        text = std::exchange(pending_->text, {});
        return step;
      });
    }
    if (PyErr_Occurred() != nullptr) throw nb::python_error();
    Check(status);
    if (text.empty()) return std::nullopt;
    return Bytes(text);
  }

  /// Ends the text here, as cancelled unless it had ended.
  void Close() {
    const SharedSession::Lock lock(*session_);
    WithoutGil([&] {
      Abandon();
      pending_->text.clear();
    });
  }

  /// Ends a generation under way. The session is locked.
  void Abandon() {
    if (!generation_) return;
    End();
    result_.stop_reason = StopReason::kCancelled;
  }

  GenerateResult Snapshot() {
    const SharedSession::Lock lock(*session_);
    return generation_ ? generation_->result() : result_;
  }
  bool active() {
    const SharedSession::Lock lock(*session_);
    return generation_.has_value();
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
    result_ = generation_->result();
    generation_.reset();
    session_->streaming_ = nullptr;
    if (owns_) {
      session_->session_.reset();
      session_->closed_ = true;
      return;
    }
    // The last token was drawn, but no step has appended it.
    const std::int64_t drawn = std::ssize(result_.ids);
    if (drawn > 0 && session_->session_->length() == prompt_tokens_ + drawn - 1)
      session_->pending_ = result_.ids.back();
  }

  std::shared_ptr<SharedSession> session_;
  bool owns_;
  std::unique_ptr<Pending> pending_;  // the generation's callbacks point to it
  std::optional<Generation> generation_;
  std::int64_t prompt_tokens_ = 0;
  GenerateResult result_;
};

SharedSession::Lock::Lock(SharedSession& shared) : shared_(shared) {
  const std::thread::id self = std::this_thread::get_id();
  if (shared.owner_.load() == self)
    Raise({StatusCode::kInvalidArgument,
           "Session: called from within one of its own calls; expected one call at a time"});
  WithoutGil([&] { shared.mutex_.lock(); });
  shared.owner_ = self;
}
SharedSession::Lock::~Lock() {
  shared_.owner_ = std::thread::id();
  shared_.mutex_.unlock();
}

SharedSession::SharedSession(const Model& model, const SessionOptions& options,
                             const Ablation& ablation)
    : model_(model) {
  session_.emplace(Take(WithoutGil([&] { return Session::Create(model, options); })));
  Check(WithoutGil([&] { return session_->SetAblation(ablation); }));
}

Session& SharedSession::Open() {
  if (session_) return *session_;
  Raise({StatusCode::kInvalidArgument, "Session: it is closed; expected an open session"});
}

Session& SharedSession::Idle() {
  if (streaming_ != nullptr)
    Raise({StatusCode::kInvalidArgument,
           "Session: a generation is under way; expected its end, or close() of it"});
  return Open();
}

/// Where the context is full, the token has no room and is dropped.
Status SharedSession::AppendPending(Session& session) {
  const std::optional<TokenId> id = std::exchange(pending_, std::nullopt);
  if (!id || session.length() == session.context()) return Status();
  return session.Append({&*id, 1}, RowRole::kDecode).status();
}

void SharedSession::Close() {
  const Lock lock(*this);
  WithoutGil([&] {
    if (streaming_ != nullptr) streaming_->Abandon();
    session_.reset();
    pending_.reset();
    closed_ = true;
  });
}

namespace {

std::optional<RowRole> ParseRole(const std::optional<std::string>& name) {
  if (!name) return std::nullopt;
  if (*name == "prefill") return RowRole::kPrefill;
  if (*name == "decode") return RowRole::kDecode;
  Raise({StatusCode::kInvalidArgument, "role = '" + *name + "'; expected 'prefill' or 'decode'"});
}

HeldTokens ParseHeld(const std::string& name) {
  if (name == "reevaluate") return HeldTokens::kReevaluate;
  if (name == "keep") return HeldTokens::kKeep;
  if (name == "drop") return HeldTokens::kDrop;
  Raise({StatusCode::kInvalidArgument,
         "held = '" + name + "'; expected 'reevaluate', 'keep' or 'drop'"});
}

/// One token decodes, also as the last step of a long text: the role of all is that of the whole.
RowRole RoleOf(const Ids& ids, const std::optional<std::string>& name) {
  return ParseRole(name).value_or(ids.shape(0) == 1 ? RowRole::kDecode : RowRole::kPrefill);
}

void Append(SharedSession& self, const Ids& ids, const std::optional<std::string>& role_name) {
  const RowRole role = RoleOf(ids, role_name);
  self.Feed(Span(ids), [&](Session& session, std::span<const TokenId> step) {
    return session.Append(step, role).status();
  });
}

void AppendLogits(SharedSession& self, const Ids& ids, const std::optional<std::string>& role_name,
                  const DenseArray<float, 2>& out) {
  const RowRole role = RoleOf(ids, role_name);
  const std::int64_t vocab = self.model().config().vocab_size;
  CheckShape(out, "out", "[n, vocab_size]", {static_cast<std::int64_t>(ids.shape(0)), vocab});
  float* rows = out.data();
  self.Feed(Span(ids), [&](Session& session, std::span<const TokenId> step) {
    const std::size_t size = step.size() * static_cast<std::size_t>(vocab);
    const Status status = session.AppendLogits(step, {rows, size}, role);
    rows += size;
    return status;
  });
}

/// Steps overlap by one token, which the next step scores the successor of.
void Score(SharedSession& self, const Ids& ids, const DenseArray<double, 1>& out) {
  const auto tokens = static_cast<std::int64_t>(ids.shape(0));
  CheckShape(out, "out", "[n - 1]", {std::max<std::int64_t>(0, tokens - 1)});
  Check(self.Call([&](Session& session) {
    return session.Score(Span(ids), {out.data(), out.shape(0)});
  }));
}

bool CopyLogits(SharedSession& self, const DenseArray<float, 1>& out) {
  CheckShape(out, "out", "[vocab_size]", {self.model().config().vocab_size});
  return self.Call([&](Session& session) {
    const std::span<const float> logits = session.logits();
    std::ranges::copy(logits, out.data());
    return !logits.empty();
  });
}

std::vector<TokenId> Tokens(SharedSession& self) {
  std::vector<TokenId> ids = self.Look([](const Session& session) {
    return std::vector<TokenId>(session.tokens().begin(), session.tokens().end());
  });
  if (self.pending()) ids.push_back(*self.pending());
  return ids;
}

using Layers = std::vector<std::optional<DenseArray<float, 3>>>;

/// Where captured rows of some heads go: an array for each layer, or none.
struct CapturePlaces {
  std::vector<float*> weights;                   ///< [heads, n, total]
  std::vector<float*> outputs;                   ///< [n, heads, Dv]
  std::vector<std::vector<std::int64_t>> index;  ///< [layer][head]: among the layer's chosen heads
  std::vector<std::int64_t> heads;               ///< [layer]: how many are chosen
  std::int64_t first = 0;                        ///< position of the first of n rows
  std::int64_t rows = 0;                         ///< n
  std::int64_t total = 0;                        ///< keys: first + n

  void Put(const CapturedRow& row) const {
    const auto l = static_cast<std::size_t>(row.head.layer);
    const std::int64_t head = index[l][static_cast<std::size_t>(row.head.head)];
    const std::int64_t at = row.position - first;
    if (at < 0 || at >= rows) return;
    if (weights[l] != nullptr) {
      float* const to = weights[l] + (head * rows + at) * total;
      std::fill(std::copy(row.weights.begin(), row.weights.end(), to), to + total, 0.0F);
    }
    if (outputs[l] != nullptr)
      std::ranges::copy(row.output, outputs[l] + (at * heads[l] + head) * std::ssize(row.output));
  }
};

/// The places for `chosen` heads, whose arrays have the right shapes.
CapturePlaces PlacesOf(const std::vector<LayerConfig>& layers, const std::vector<HeadId>& chosen,
                       const Layers& weights, const Layers& outputs, std::int64_t first,
                       std::int64_t rows) {
  CapturePlaces places;
  places.first = first;
  places.rows = rows;
  places.total = first + rows;
  if (weights.size() != layers.size() || outputs.size() != layers.size())
    Raise({StatusCode::kInvalidArgument, "capture: expected an array or None for each layer"});
  for (const LayerConfig& layer : layers)
    places.index.emplace_back(static_cast<std::size_t>(layer.num_heads), -1);
  places.heads.resize(layers.size());
  for (const auto& [layer, head] : chosen) {  // those that do not exist are SetCapture's to name
    const auto l = static_cast<std::size_t>(layer);
    if (layer < 0 || l >= layers.size()) continue;
    const std::int64_t index = places.heads[l]++;
    if (head >= 0 && head < layers[l].num_heads)
      places.index[l][static_cast<std::size_t>(head)] = index;
  }
  for (std::size_t l = 0; l < layers.size(); ++l) {
    if (weights[l])
      CheckShape(*weights[l], "weights", "[heads, n, total]",
                 {places.heads[l], rows, places.total});
    if (outputs[l])
      CheckShape(*outputs[l], "outputs", "[n, heads, Dv]",
                 {rows, places.heads[l], layers[l].head_dim_v});
    places.weights.push_back(weights[l] ? weights[l]->data() : nullptr);
    places.outputs.push_back(outputs[l] ? outputs[l]->data() : nullptr);
  }
  return places;
}

/// Appends `ids` and fills the arrays with the rows of the heads; `logits` [n, vocab_size].
void Capture(SharedSession& self, const Ids& ids,
             const std::vector<std::pair<std::int64_t, std::int64_t>>& heads, const Layers& weights,
             const Layers& outputs, const std::optional<DenseArray<float, 2>>& logits) {
  const std::vector<LayerConfig>& layers = self.model().config().layers;
  const std::int64_t vocab = self.model().config().vocab_size;
  const std::int64_t first = self.Call([](Session& session) { return session.length(); });
  const auto count = static_cast<std::int64_t>(ids.shape(0));
  CaptureOptions options{.heads = HeadIds(heads), .weights = false};
  const CapturePlaces places = PlacesOf(layers, options.heads, weights, outputs, first, count);
  for (const float* layer : places.weights) options.weights |= layer != nullptr;
  options.on_row = [&](const CapturedRow& row) { places.Put(row); };
  if (logits) CheckShape(*logits, "logits", "[n, vocab_size]", {count, vocab});
  float* rows = logits ? logits->data() : nullptr;
  self.Feed(
      Span(ids),
      [&](Session& session, std::span<const TokenId> step) {
        if (rows == nullptr) return session.Append(step, RowRole::kPrefill).status();
        const std::size_t size = step.size() * static_cast<std::size_t>(vocab);
        const Status status = session.AppendLogits(step, {rows, size}, RowRole::kPrefill);
        rows += size;
        return status;
      },
      options.heads.empty() ? nullptr : &options);
}

void BindOptions(nb::module_& module) {
  using nb::arg;
  nb::class_<SessionOptions>(module, "SessionOptions")
      .def(
          "__init__",
          [](SessionOptions* self, std::int64_t context, const std::string& k_type,
             const std::string& v_type, const std::string& kv_policy, std::int64_t kv_budget_bytes,
             std::int64_t prefix_bytes, const std::string& math, int threads,
             const std::optional<std::string>& isa, std::int64_t chunk) {
            new (self) SessionOptions{.context = context,
                                      .k_type = ParseKvTypeOrRaise(k_type),
                                      .v_type = ParseKvTypeOrRaise(v_type),
                                      .kv_policy = kv_policy,
                                      .kv_budget_bytes = kv_budget_bytes,
                                      .prefix_bytes = prefix_bytes,
                                      .math = ParseMathOrRaise(math),
                                      .threads = threads,
                                      .isa = ParseIsaOrRaise(isa),
                                      .chunk = chunk};
          },
          nb::kw_only(), arg("context"), arg("k_type"), arg("v_type"), arg("kv_policy"),
          arg("kv_budget_bytes"), arg("prefix_bytes"), arg("math"), arg("threads"),
          arg("isa").none(), arg("chunk"));
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
  using nb::arg;
  nb::class_<Timings>(module, "Timings", "Where the time of a generation went.")
      .def_ro("prefill_tokens", &Timings::prefill_tokens)
      .def_ro("prefill_seconds", &Timings::prefill_seconds)
      .def_ro("decode_tokens", &Timings::decode_tokens, "Steps after the prompt.")
      .def_ro("decode_seconds", &Timings::decode_seconds)
      .def_ro("time_to_first_token_seconds", &Timings::time_to_first_token_seconds)
      .def_prop_ro("prefill_rate", &Timings::prefill_rate, "Tokens a second.")
      .def_prop_ro("decode_rate", &Timings::decode_rate, "Tokens a second.")
      .def("__repr__", &Represent);
  nb::class_<TextStream>(module, "TextStream")
      .def(nb::init<std::shared_ptr<SharedSession>, const Ids&, const GenerateOptions&, bool>(),
           arg("session"), arg("prompt").noconvert(), arg("options"), arg("owns"))
      .def("next", &TextStream::Next)
      .def("close", &TextStream::Close)
      .def("ids", [](TextStream& self) { return self.Snapshot().ids; })
      .def("text", [](TextStream& self) { return Bytes(self.Snapshot().text); })
      .def("timings", [](TextStream& self) { return self.Snapshot().timings; })
      .def("stop_reason",
           [](TextStream& self) { return StopReasonName(self.Snapshot().stop_reason); })
      .def("active", &TextStream::active);
}

}  // namespace

void BindSession(nb::module_& module) {
  using nb::arg;
  BindOptions(module);
  const auto look = [](auto read) {
    return [read](SharedSession& self) { return self.Look(read); };
  };
  nb::class_<SharedSession>(module, "Session")
      .def(nb::init<const Model&, const SessionOptions&, const Ablation&>(), arg("model"),
           arg("options"), arg("ablation"))
      .def("close", &SharedSession::Close)
      .def_prop_ro("closed", &SharedSession::closed)
      .def("append", &Append, arg("ids").noconvert(), arg("role").none())
      .def("append_logits", &AppendLogits, arg("ids").noconvert(), arg("role").none(),
           arg("out").noconvert())
      .def("score", &Score, arg("ids").noconvert(), arg("out").noconvert())
      .def("logits", &CopyLogits, arg("out").noconvert(), "False where they are not known.")
      .def("capture", &Capture, nb::kw_only(), arg("ids").noconvert(), arg("heads"),
           arg("weights").noconvert(), arg("outputs").noconvert(), arg("logits").noconvert().none())
      .def("tokens", &Tokens)
      .def(
          "truncate",
          [](SharedSession& self, std::int64_t length) {
            Check(self.Call([&](Session& session) { return session.Truncate(length); }));
          },
          arg("length"))
      .def(
          "set_ablation",
          [](SharedSession& self, const Ablation& ablation, const std::string& held) {
            const HeldTokens what = ParseHeld(held);
            Check(self.Call([&](Session& session) { return session.SetAblation(ablation, what); }));
          },
          arg("ablation"), arg("held"))
      .def(
          "save",
          [](SharedSession& self, const nb::bytes& path) {
            const std::string name(View(path));
            Check(self.Call([&](Session& session) { return session.Save(name); }));
          },
          arg("path"))
      .def(
          "restore",
          [](SharedSession& self, const nb::bytes& path, bool convert_types) {
            const std::string name(View(path));
            Check(self.Call([&](Session& session) {
              return session.Restore(name, {.convert_types = convert_types});
            }));
          },
          arg("path"), arg("convert_types"))
      .def("usage", look([](const Session& session) { return session.cache().usage(); }))
      .def_prop_ro("context", look([](const Session& session) { return session.context(); }))
      .def_prop_ro("threads", look([](const Session& session) { return session.threads(); }))
      .def_prop_ro("isa", look([](const Session& session) { return IsaName(session.isa()); }))
      .def_prop_ro("scratch_bytes",
                   look([](const Session& session) { return session.scratch_bytes(); }));
  BindTextStream(module);
}

}  // namespace manyhead::python
