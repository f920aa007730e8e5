#include <algorithm>
#include <chrono>
#include <optional>
#include <string>

#include "runtime/platform/dcheck.h"
#include "runtime/session/session_impl.h"
#include "runtime/session/stop_text.h"

namespace manyhead {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

std::vector<std::pair<TokenId, float>> BestLogits(std::span<const float> logits,
                                                  std::int64_t count) {
  std::vector<std::pair<TokenId, float>> all;
  if (count == 0) return all;
  for (std::size_t i = 0; i < logits.size(); ++i)
    all.emplace_back(static_cast<TokenId>(i), logits[i]);
  const auto middle =
      all.begin() + std::min<std::int64_t>(count, static_cast<std::int64_t>(all.size()));
  std::partial_sort(all.begin(), middle, all.end(), [](const auto& a, const auto& b) {
    return a.second != b.second ? a.second > b.second : a.first < b.first;
  });
  all.erase(middle, all.end());
  return all;
}

Status Validate(const GenerateOptions& options) {
  if (options.max_tokens < 0)
    return Status(StatusCode::kInvalidArgument,
                  "GenerateOptions: max_tokens = " + std::to_string(options.max_tokens) +
                      "; expected at least 0");
  if (options.top_logits < 0)
    return Status(StatusCode::kInvalidArgument,
                  "GenerateOptions: top_logits = " + std::to_string(options.top_logits) +
                      "; expected at least 0");
  for (const std::string& stop : options.stop)
    if (stop.empty())
      return Status(StatusCode::kInvalidArgument,
                    "GenerateOptions: stop has an empty string; expected at least 1 byte");
  return Validate(options.sampling);
}

bool Cancelled(const GenerateOptions& options) {
  return options.cancel != nullptr && options.cancel->load(std::memory_order_relaxed);
}

/// Converts tokens to text as they come: whole characters, cut at the first stop string.
class TextStream {
 public:
  /// Appends text to `all`, and passes it to options.on_text.
  TextStream(const Tokenizer& tokenizer, const GenerateOptions& options, std::string& all)
      : detokenizer_(tokenizer, /*special=*/false, /*continues=*/true),
        stop_(options.stop),
        on_text_(options.on_text),
        text_(all) {}

  void Push(TokenId id) { Show(stop_.Push(detokenizer_.Push(id))); }
  void Finish() {
    Show(stop_.Push(detokenizer_.Flush()));
    Show(stop_.Flush());
  }
  bool stopped() const noexcept { return stop_.stopped(); }

 private:
  void Show(const std::string& piece) {
    if (piece.empty()) return;
    text_ += piece;
    if (on_text_) on_text_(piece);
  }

  Detokenizer detokenizer_;
  StopText stop_;
  const std::function<void(std::string_view)>& on_text_;
  std::string& text_;
};

}  // namespace

const char* StopReasonName(StopReason reason) noexcept {
  switch (reason) {
    case StopReason::kMaxTokens:
      return "length";
    case StopReason::kEndToken:
      return "eos";
    case StopReason::kStopText:
      return "stop";
    case StopReason::kContext:
      return "context";
    case StopReason::kCancelled:
      return "cancelled";
  }
  return "?";
}

/// Returns the number of the first tokens of `prompt` that need not be evaluated again. The last
/// token is not among them, because its logits are needed, unless the session holds exactly the
/// prompt and its logits. Tokens that were decoded are evaluated again as part of the prompt,
/// unless the cache can no longer go back to the position before them.
Result<std::int64_t> Session::Impl::Reusable(std::span<const TokenId> prompt) const {
  const std::int64_t total = std::ssize(prompt);
  const auto common = std::mismatch(prompt.begin(), prompt.end(), tokens.begin(), tokens.end());
  const std::int64_t held = common.first - prompt.begin();
  if (held == total && total == length() && HasLogits()) return total;
  const std::int64_t most = std::min(held, total - 1), wanted = std::min(most, as_prompt);
  const Result<std::int64_t> exact = cache.ExactLength(sequence, wanted);
  if (!exact.ok() || *exact == wanted) return exact;
  return cache.ExactLength(sequence, most);
}

/// Replaces the session's sequence by a cached prefix of `prompt`, where that is longer than the
/// part of `prompt` that the session holds.
Status Session::Impl::TakePrefix(std::span<const TokenId> prompt) {
  const Result<std::optional<SequenceId>> kept = cache.ForkPrefix(ablation_key, prompt);
  if (!kept.ok()) return kept.status();
  if (!kept->has_value()) return Status();
  const std::int64_t length = cache.length(**kept);
  const Result<std::int64_t> reusable = Reusable(prompt);
  if (!reusable.ok()) return reusable.status();
  if (length <= *reusable) return cache.FreeSequence(**kept);
  if (Status status = cache.FreeSequence(sequence); !status.ok()) return status;
  sequence = **kept;
  tokens.assign(prompt.begin(), prompt.begin() + length);
  roles.assign(tokens.size(), RowRole::kPrefill);
  as_prompt = length;  // KeepPrefix stores no other prefixes
  logits_length = -1;
  return Status();
}

/// Stores the first tokens of the sequence as a cached prefix, as far as they have the bits of a
/// prompt, for later prompts; where there is no room, nothing is stored.
void Session::Impl::KeepPrefix() {
  const auto ids = std::span<const TokenId>(tokens).first(static_cast<std::size_t>(as_prompt));
  const Status kept = cache.StorePrefix(ablation_key, ids, sequence);
  MANYHEAD_DCHECK(kept.ok() || kept.code() == StatusCode::kOutOfPages);
  static_cast<void>(kept);
}

/// Makes the session hold exactly `prompt`, and reuses the tokens that it already holds; returns
/// false when it was cancelled on the way.
Result<bool> Session::Impl::Prefill(std::span<const TokenId> prompt,
                                    const GenerateOptions& generate, Timings& timings) {
  const auto start = Clock::now();
  if (options.prefix_bytes > 0)
    if (Status status = TakePrefix(prompt); !status.ok()) return status;
  const Result<std::int64_t> kept = Reusable(prompt);
  if (!kept.ok()) return kept.status();
  std::int64_t done = *kept;
  if (Status status = Cut(done); !status.ok()) return status;
  const std::int64_t total = static_cast<std::int64_t>(prompt.size());
  const auto observe = [&](std::int64_t count) {
    done += count;
    timings.prefill_tokens += count;
    if (generate.on_prefill) generate.on_prefill(done, total);
    return !Cancelled(generate);
  };
  if (done == total) {
    observe(0);
  } else if (Status status = AppendAll(prompt.subspan(static_cast<std::size_t>(done)),
                                       RowRole::kPrefill, observe);
             !status.ok()) {
    return status;
  }
  if (options.prefix_bytes > 0) KeepPrefix();
  timings.prefill_seconds = SecondsSince(start);
  return done == total;
}

struct Generation::Impl {
  Impl(Session::Impl& owner, std::span<const TokenId> ids, const GenerateOptions& generate,
       Sampler drawn)
      : session(owner),
        prompt(ids.begin(), ids.end()),
        options(generate),
        sampler(std::move(drawn)),
        text(owner.model.tokenizer(), options, result.text) {}

  Status EvaluatePrompt();
  Status Draw();
  void End(StopReason reason) {
    result.stop_reason = reason;
    ended = true;
  }
  std::int64_t count() const noexcept { return static_cast<std::int64_t>(result.ids.size()); }

  Session::Impl& session;
  std::vector<TokenId> prompt;
  GenerateOptions options;
  Sampler sampler;
  GenerateResult result;
  TextStream text;
  bool prompt_done = false;
  bool ended = false;
};

Status Generation::Impl::EvaluatePrompt() {
  const Result<bool> ready = session.Prefill(prompt, options, result.timings);
  if (!ready.ok()) return ready.status();
  prompt_done = true;
  if (!*ready) {
    End(StopReason::kCancelled);
    return {};
  }
  result.ids.reserve(static_cast<std::size_t>(
      std::min(options.max_tokens, session.options.context - session.length() + 1)));
  result.top_logits = BestLogits({session.logits.data(), static_cast<std::size_t>(session.vocab())},
                                 options.top_logits);
  if (options.max_tokens == 0) End(StopReason::kMaxTokens);
  return {};
}

/// Appends the token drawn before, if any, draws the next, and decides whether it is the last.
Status Generation::Impl::Draw() {
  const Tokenizer& tokenizer = session.model.tokenizer();
  const auto start = Clock::now();
  if (!result.ids.empty()) {
    if (Status status =
            session.AppendChunk({&result.ids.back(), 1}, RowRole::kDecode, session.logits.data());
        !status.ok())
      return status;
    ++result.timings.decode_tokens;
  }
  // Rows of the embedding beyond the tokenizer's vocabulary are padding and never drawn.
  const std::span<const float> choices(session.logits.data(),
                                       static_cast<std::size_t>(tokenizer.vocab_size()));
  const Result<TokenId> id = sampler.Sample(choices, session.tokens);
  if (!id.ok()) return id.status();
  session.next_seed = sampler.next_seed();
  // The time that the caller spends on the text counts neither to a step nor to the first token.
  if (result.ids.empty())
    result.timings.time_to_first_token_seconds =
        result.timings.prefill_seconds + SecondsSince(start);
  else
    result.timings.decode_seconds += SecondsSince(start);
  const auto ends = tokenizer.end_tokens();
  if (std::binary_search(ends.begin(), ends.end(), *id)) {
    End(StopReason::kEndToken);
  } else {
    result.ids.push_back(*id);
    text.Push(*id);
    if (text.stopped()) {
      End(StopReason::kStopText);
    } else if (count() == options.max_tokens) {
      End(StopReason::kMaxTokens);
    } else if (session.length() == session.options.context) {
      End(StopReason::kContext);
    } else if (Cancelled(options)) {
      End(StopReason::kCancelled);
    }
  }
  if (ended) text.Finish();
  return {};
}

Generation::Generation(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
Generation::Generation(Generation&&) noexcept = default;
Generation& Generation::operator=(Generation&&) noexcept = default;
Generation::~Generation() = default;

Result<bool> Generation::Step() {
  Impl& self = *impl_;
  if (self.ended) return false;
  Status status = self.prompt_done ? Status() : self.EvaluatePrompt();
  if (status.ok() && !self.ended) status = self.Draw();
  if (!status.ok()) {
    self.ended = true;
    return status;
  }
  return !self.ended;
}

const GenerateResult& Generation::result() const noexcept { return impl_->result; }

Result<Generation> Session::Begin(std::span<const TokenId> prompt, const GenerateOptions& options) {
  if (Status status = Validate(options); !status.ok()) return status;
  Result<Sampler> sampler =
      Sampler::Create(options.sampling, impl_->model.tokenizer().vocab_size());
  if (!sampler.ok()) return sampler.status();
  if (Status status = impl_->CheckIds(prompt, /*held=*/0); !status.ok()) return status;
  return Generation(
      std::make_unique<Generation::Impl>(*impl_, prompt, options, *std::move(sampler)));
}

Result<GenerateResult> Session::Generate(std::span<const TokenId> prompt,
                                         const GenerateOptions& options) {
  Result<Generation> generation = Begin(prompt, options);
  if (!generation.ok()) return generation.status();
  for (;;) {
    const Result<bool> more = generation->Step();
    if (!more.ok()) return more.status();
    if (!*more) return std::move(generation->impl_->result);
  }
}

}  // namespace manyhead
