#include <algorithm>
#include <chrono>
#include <string>

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

/// Text of the tokens as they come: whole characters, cut at the first stop string.
class TextStream {
 public:
  TextStream(const Tokenizer& tokenizer, const GenerateOptions& options)
      : detokenizer_(tokenizer, /*special=*/false, /*continues=*/true),
        stop_(options.stop),
        on_text_(options.on_text) {}

  void Push(TokenId id) { Show(stop_.Push(detokenizer_.Push(id))); }
  void Finish() {
    Show(stop_.Push(detokenizer_.Flush()));
    Show(stop_.Flush());
  }
  bool stopped() const noexcept { return stop_.stopped(); }
  std::string Take() { return std::move(text_); }

 private:
  void Show(const std::string& piece) {
    if (piece.empty()) return;
    text_ += piece;
    if (on_text_) on_text_(piece);
  }

  Detokenizer detokenizer_;
  StopText stop_;
  const std::function<void(std::string_view)>& on_text_;
  std::string text_;
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

/// Makes the session hold exactly `prompt`, of whose beginning it keeps what it has; false when
/// cancelled on the way. At least the last token is evaluated, for its logits.
Result<bool> Session::Impl::Prefill(std::span<const TokenId> prompt,
                                    const GenerateOptions& generate, Timings& timings) {
  if (Status status = CheckIds(prompt, /*held=*/0); !status.ok()) return status;
  const auto start = Clock::now();
  const auto kept = std::mismatch(prompt.begin(), prompt.end() - 1, tokens.begin(), tokens.end());
  std::int64_t done = kept.first - prompt.begin();
  if (Status status = Truncate(done); !status.ok()) return status;
  const std::int64_t total = static_cast<std::int64_t>(prompt.size());
  const auto observe = [&](std::int64_t count) {
    done += count;
    timings.prefill_tokens += count;
    if (generate.on_prefill) generate.on_prefill(done, total);
    return !Cancelled(generate);
  };
  if (Status status = AppendAll(prompt.subspan(static_cast<std::size_t>(done)), observe);
      !status.ok())
    return status;
  timings.prefill_seconds = SecondsSince(start);
  return done == total;
}

/// Draws and appends tokens until one of the reasons to stop.
Status Session::Impl::Decode(const GenerateOptions& generate, Sampler& sampler,
                             GenerateResult& result) {
  const Tokenizer& tokenizer = model.tokenizer();
  const auto ends = tokenizer.end_tokens();
  // Rows of the embedding beyond the tokenizer's vocabulary are padding and never drawn.
  const std::span<const float> choices(logits.data(),
                                       static_cast<std::size_t>(tokenizer.vocab_size()));
  TextStream text(tokenizer, generate);
  const auto start = Clock::now();
  for (;;) {
    if (static_cast<std::int64_t>(result.ids.size()) == generate.max_tokens) break;
    const Result<TokenId> id = sampler.Sample(choices, tokens);
    if (!id.ok()) return id.status();
    if (result.ids.empty())
      result.timings.time_to_first_token_seconds =
          result.timings.prefill_seconds + SecondsSince(start);
    if (std::binary_search(ends.begin(), ends.end(), *id)) {
      result.stop_reason = StopReason::kEndToken;
      break;
    }
    result.ids.push_back(*id);
    text.Push(*id);
    if (text.stopped()) {
      result.stop_reason = StopReason::kStopText;
      break;
    }
    if (static_cast<std::int64_t>(result.ids.size()) == generate.max_tokens) break;
    if (length() == options.context) {
      result.stop_reason = StopReason::kContext;
      break;
    }
    if (Cancelled(generate)) {
      result.stop_reason = StopReason::kCancelled;
      break;
    }
    if (Status status = AppendChunk({&*id, 1}, logits.data()); !status.ok()) return status;
    ++result.timings.decode_tokens;
  }
  result.timings.decode_seconds = SecondsSince(start);
  text.Finish();
  result.text = text.Take();
  return {};
}

Result<GenerateResult> Session::Generate(std::span<const TokenId> prompt,
                                         const GenerateOptions& options) {
  if (Status status = Validate(options); !status.ok()) return status;
  Result<Sampler> sampler =
      Sampler::Create(options.sampling, impl_->model.tokenizer().vocab_size());
  if (!sampler.ok()) return sampler.status();
  GenerateResult result;
  const Result<bool> ready = impl_->Prefill(prompt, options, result.timings);
  if (!ready.ok()) return ready.status();
  if (!*ready) {
    result.stop_reason = StopReason::kCancelled;
    return result;
  }
  result.ids.reserve(static_cast<std::size_t>(
      std::min(options.max_tokens, impl_->options.context - impl_->length() + 1)));
  result.top_logits = BestLogits({impl_->logits.data(), static_cast<std::size_t>(impl_->vocab())},
                                 options.top_logits);
  if (Status status = impl_->Decode(options, *sampler, result); !status.ok()) return status;
  return result;
}

}  // namespace manyhead
