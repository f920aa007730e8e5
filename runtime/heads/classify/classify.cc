#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "manyhead/head_classes.h"
#include "manyhead/session.h"
#include "runtime/heads/classify/classify_probes.h"
#include "runtime/heads/classify/conllu.h"
#include "runtime/heads/classify/scores.h"
#include "runtime/heads/classify/scores_syntax.h"
#include "runtime/platform/errors.h"

namespace manyhead {
namespace {

constexpr const char* kName = "ClassifyHeads";

constexpr std::int64_t kMostSentenceTokens = 4096;

std::vector<std::int64_t> HeadCounts(const ModelConfig& config) {
  std::vector<std::int64_t> heads;
  for (const LayerConfig& layer : config.layers) heads.push_back(layer.num_heads);
  return heads;
}

class Classifier {
 public:
  Classifier(const Model& model, const ClassifyOptions& options)
      : model_(model),
        options_(options),
        scorer_(HeadCounts(model.config())),
        syntax_(HeadCounts(model.config())) {}

  Result<HeadClassification> Run();

 private:
  Status MakeInputs();
  Status MakeSentences();
  Status CheckText(std::span<const TokenId> text) const;
  Status CreateSession();
  Status Evaluate(const Probe& probe, std::size_t sentence);
  Status ScoreNeedle(const Probe& probe);
  template <class Scorer>
  Status Show(std::span<const TokenId> ids, Scorer& scorer, std::vector<double>* nll);
  HeadClassification Finish();

  const Model& model_;
  const ClassifyOptions& options_;
  HeadScorer scorer_;
  SyntaxScorer syntax_;
  std::vector<DependencySentence> sentences_;
  std::vector<std::vector<TokenWords>> tokens_;  // [sentence]
  std::vector<Probe> probes_;
  std::optional<Session> session_;
};

Status Classifier::CheckText(std::span<const TokenId> text) const {
  const auto size = static_cast<std::int64_t>(text.size());
  if (size < kLeastText)
    return InvalidArgument(kName, "tokens of the text = ", size, "; expected at least ",
                           kLeastText);
  for (const TokenId id : text)
    if (id < 0 || id >= model_.config().vocab_size)
      return InvalidArgument(kName, "id = ", id, "; expected 0..", model_.config().vocab_size - 1);
  return Status();
}

Status Classifier::MakeInputs() {
  const Tokenizer& tokenizer = model_.tokenizer();
  std::vector<TokenId> text = options_.text;
  if (text.empty()) {
    Result<std::vector<TokenId>> ids = tokenizer.Encode(ProbeText());
    if (!ids.ok()) return ids.status();
    text = *std::move(ids);
  }
  if (Status status = CheckText(text); !status.ok()) return status;
  if (model_.config().context_length < kProbeContext)
    return InvalidArgument(kName, "context of the model = ", model_.config().context_length,
                           "; expected at least ", kProbeContext);
  Result<std::vector<Probe>> probes = MakeProbes(tokenizer, text, options_.seed);
  if (!probes.ok()) return probes.status();
  probes_ = *std::move(probes);
  return options_.conllu.empty() ? Status() : MakeSentences();
}

Status Classifier::MakeSentences() {
  Result<std::vector<DependencySentence>> sentences = ParseConllu(options_.conllu);
  if (!sentences.ok()) return sentences.status();
  sentences_ = *std::move(sentences);
  const std::int64_t most = std::min(model_.config().context_length, kMostSentenceTokens);
  for (const DependencySentence& sentence : sentences_) {
    Result<std::vector<TokenId>> ids = model_.tokenizer().Encode(sentence.text);
    if (!ids.ok()) return ids.status();
    if (static_cast<std::int64_t>(ids->size()) > most)
      return Status(StatusCode::kInvalidArgument,
                    "CoNLL-U: line " + std::to_string(sentence.line) + ": the sentence has " +
                        std::to_string(ids->size()) + " tokens; expected at most " +
                        std::to_string(most));
    Result<std::vector<TokenWords>> tokens = AlignWords(model_.tokenizer(), *ids, sentence);
    if (!tokens.ok()) return tokens.status();
    tokens_.push_back(*std::move(tokens));
    probes_.push_back({ProbeKind::kSentence, *std::move(ids), 0, 0, 0});
  }
  return Status();
}

/// Creates a session with keys and values as f32, so that the storage of heads has no influence.
Status Classifier::CreateSession() {
  SessionOptions options;
  options.k_type = options.v_type = KvType::kF32;
  options.math = options_.math;
  options.threads = options_.threads;
  options.isa = options_.isa;
  options.context = kProbeContext;
  for (const Probe& probe : probes_)
    options.context = std::max(options.context, static_cast<std::int64_t>(probe.ids.size()));
  Result<Session> session = Session::Create(model_, options);
  if (!session.ok()) return session.status();
  session_ = *std::move(session);
  return Status();
}

/// Evaluates `ids` after the tokens that the session holds and passes every row to `scorer`. `nll`,
/// if not null, gets the loss of each token but the first.
template <class Scorer>
Status Classifier::Show(std::span<const TokenId> ids, Scorer& scorer, std::vector<double>* nll) {
  CaptureOptions capture;
  capture.on_row = [&scorer](const CapturedRow& row) { scorer.Add(row); };
  if (Status status = session_->SetCapture(&capture); !status.ok()) return status;
  Status status;
  if (nll != nullptr) {
    nll->resize(ids.size() - 1);
    status = session_->Score(ids, *nll);
  } else {
    status = session_->Append(ids).status();
  }
  if (Status off = session_->SetCapture(nullptr); status.ok() && !off.ok()) return off;
  return status;
}

/// Scores a probe with a needle. A token counts as copied when the model gives it more than half of
/// the probability: no other token can then be the most likely one.
Status Classifier::ScoreNeedle(const Probe& probe) {
  std::vector<double> nll;
  scorer_.Begin(probe);
  const std::span<const TokenId> ids = probe.ids;
  const auto again = static_cast<std::size_t>(probe.again);
  if (Status status = session_->Append(ids.first(again)).status(); !status.ok()) return status;
  if (Status status = Show(ids.subspan(again), scorer_, &nll); !status.ok()) return status;
  std::vector<bool> copied(static_cast<std::size_t>(probe.count));
  for (std::size_t i = 1; i < copied.size(); ++i) copied[i] = nll[i - 1] < std::log(2.0);
  scorer_.End(copied);
  return Status();
}

Status Classifier::Evaluate(const Probe& probe, std::size_t sentence) {
  if (Status status = session_->Truncate(0); !status.ok()) return status;
  switch (probe.kind) {
    case ProbeKind::kNeedle:
      return ScoreNeedle(probe);
    case ProbeKind::kSentence:
      syntax_.Begin(sentences_[sentence], tokens_[sentence]);
      return Show(probe.ids, syntax_, nullptr);
    case ProbeKind::kText:
    case ProbeKind::kRepeat:
      break;
  }
  scorer_.Begin(probe);
  Status status = Show(probe.ids, scorer_, nullptr);
  scorer_.End();
  return status;
}

HeadClassification Classifier::Finish() {
  HeadClassification result;
  const std::vector<HeadScores> scores = scorer_.Scores();
  std::vector<std::vector<DependencyScore>> dependencies = syntax_.Scores();
  const std::vector<LayerConfig>& layers = model_.config().layers;
  for (std::size_t layer = 0, i = 0; layer < layers.size(); ++layer)
    for (std::int64_t head = 0; head < layers[layer].num_heads; ++head, ++i) {
      HeadReport report;
      report.id = {static_cast<std::int64_t>(layer), head};
      report.kv_head = head / (layers[layer].num_heads / layers[layer].num_kv_heads);
      report.scores = scores[i];
      report.scores.dependencies = std::move(dependencies[i]);
      report.head_class = ClassOf(report.scores, options_.thresholds);
      result.heads.push_back(std::move(report));
    }
  result.probes = std::move(probes_);
  return result;
}

Result<HeadClassification> Classifier::Run() {
  if (Status status = MakeInputs(); !status.ok()) return status;
  if (Status status = CreateSession(); !status.ok()) return status;
  std::int64_t done = 0, total = 0;
  for (const Probe& probe : probes_) total += static_cast<std::int64_t>(probe.ids.size());
  std::size_t sentence = 0;
  for (const Probe& probe : probes_) {
    if (options_.cancel != nullptr && options_.cancel->load())
      return Status(StatusCode::kIoError, "ClassifyHeads: cancelled before all scores were known");
    if (Status status = Evaluate(probe, sentence); !status.ok()) return status;
    sentence += probe.kind == ProbeKind::kSentence;
    done += static_cast<std::int64_t>(probe.ids.size());
    if (options_.on_progress) options_.on_progress(done, total);
  }
  return Finish();
}

}  // namespace

Result<HeadClassification> ClassifyHeads(const Model& model, const ClassifyOptions& options) {
  return Classifier(model, options).Run();
}

}  // namespace manyhead
