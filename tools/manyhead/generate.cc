#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "manyhead/model.h"
#include "manyhead/sampling.h"
#include "manyhead/session.h"
#include "tools/manyhead/ablate_flags.h"
#include "tools/manyhead/commands.h"
#include "tools/manyhead/interrupt.h"
#include "tools/manyhead/model_text.h"
#include "tools/manyhead/options.h"
#include "tools/manyhead/output.h"
#include "tools/manyhead/parse.h"
#include "tools/manyhead/progress.h"
#include "tools/manyhead/report.h"

namespace manyhead::cli {
namespace {

struct Flags {
  std::string model, format;
  TextFlags text;
  std::optional<std::vector<TokenId>> prompt_ids;
  SessionFlags session;
  AblationFlags ablation;
  GenerateOptions generate;
  std::optional<std::uint64_t> seed;
  std::string save_session, load_session;
  bool convert_session = false;

  bool HasPrompt() const { return text.text || text.file || prompt_ids; }
};

/// Returns a seed that every JSON reader can represent.
std::uint64_t RandomSeed() { return std::random_device()(); }

/// Checks that a text of `bytes` bytes may have as few tokens as `session` holds. A text that is
/// far too long is refused before tokenizing it costs time and memory.
Status CheckTextLength(const Tokenizer& tokenizer, const Session& session, std::size_t bytes) {
  // Factor in bytes by which composing characters may shorten a text.
  constexpr std::int64_t kMostShrink = 4;
  std::size_t longest = 1;
  for (TokenId id = 0; id < tokenizer.vocab_size(); ++id)
    longest = std::max(longest, tokenizer.Piece(id, true).size());
  const std::int64_t most = session.context() * kMostShrink * static_cast<std::int64_t>(longest);
  if (static_cast<std::int64_t>(bytes) <= most) return {};
  return {StatusCode::kOutOfPages,
          "the prompt has " + std::to_string(bytes) +
              " bytes, which are more than context = " + std::to_string(session.context()) +
              " tokens of up to " + std::to_string(longest) + " bytes"};
}

/// Returns the ids of the prompt that the flags add; the begin token only if the session holds
/// none.
Result<std::vector<TokenId>> PromptIds(const Flags& flags, const Tokenizer& tokenizer,
                                       const Session& session) {
  if (flags.prompt_ids) return *flags.prompt_ids;
  if (!flags.HasPrompt()) return std::vector<TokenId>();
  const Result<std::string> text = ReadText(flags.text);
  if (!text.ok()) return text.status();
  if (Status status = CheckTextLength(tokenizer, session, text->size()); !status.ok())
    return status;
  EncodeOptions options = ToEncodeOptions(flags.text);
  if (!flags.load_session.empty()) options.add_special = false;
  Result<std::vector<TokenId>> ids = tokenizer.Encode(*text, options);
  if (ids.ok() && options.add_special) WarnOfTwoBegins(tokenizer, *ids);
  return ids;
}

Json ToJson(const Model& model, const Session& session, const std::vector<TokenId>& prompt,
            const GenerateOptions& options, const GenerateResult& result) {
  const Timings& timings = result.timings;
  Json json;
  json["model"] = ModelType(model);
  json["prompt_ids"] = prompt;
  json["ids"] = result.ids;
  json["text"] = result.text;
  json["stop_reason"] = StopReasonName(result.stop_reason);
  json["seed"] = options.sampling.seed;
  json["timings"] = {
      {"prefill_tokens", timings.prefill_tokens},
      {"prefill_seconds", timings.prefill_seconds},
      {"prefill_tokens_per_second", OrNull(timings.prefill_rate())},
      {"decode_tokens", timings.decode_tokens},
      {"decode_seconds", timings.decode_seconds},
      {"decode_tokens_per_second", OrNull(timings.decode_rate())},
      {"time_to_first_token_seconds", OrNull(timings.time_to_first_token_seconds)},
  };
  if (options.top_logits > 0) json["top_logits"] = result.top_logits;
  json["kv"] = KvJson(session.cache());
  json["isa"] = IsaName(session.isa());
  json["threads"] = session.threads();
  return json;
}

void PrintStatistics(const Model& model, const Session& session, const GenerateOptions& options,
                     const GenerateResult& result) {
  const Timings& timings = result.timings;
  const KvUsage usage = session.cache().usage();
  const KvTokenBytes bytes = MeasureKvTokenBytes(session.cache());
  std::string seed;
  if (options.sampling.temperature > 0) seed = ", seed " + std::to_string(options.sampling.seed);
  const auto line = [](const char* name, const std::string& text) {
    std::fprintf(stderr, "%-9s %s\n", name, text.c_str());
  };
  std::fputs("\n", stderr);
  line("model", ModelType(model) + ", " + IsaName(session.isa()) + ", " +
                    std::to_string(session.threads()) + " threads");
  line("prefill", FormatOrAbsent(timings.prefill_rate(), 1, " tokens/s") + " (" +
                      std::to_string(timings.prefill_tokens) + " tokens), first token after " +
                      FormatOrAbsent(timings.time_to_first_token_seconds, 3, " s"));
  line("decode", FormatOrAbsent(timings.decode_rate(), 1, " tokens/s") + " (" +
                     std::to_string(timings.decode_tokens) + " tokens)");
  line("KV cache", FormatBytes(static_cast<double>(bytes.total)) + " per token, " +
                       FormatRange(bytes.per_head) + " per token and head, " +
                       FormatKvTypes({session.options().k_type, session.options().v_type}) +
                       "; pages hold " + FormatBytes(static_cast<double>(usage.used_bytes)));
  line("end", std::string(StopReasonName(result.stop_reason)) + " after " +
                  std::to_string(result.ids.size()) + " tokens" + seed);
}

void PrintTopLogits(const Tokenizer& tokenizer, const GenerateResult& result) {
  for (const auto& [id, logit] : result.top_logits)
    std::fprintf(stderr, "top       %8.4f  %d  %s\n", static_cast<double>(logit), id,
                 EscapeLine(tokenizer.Piece(id, true)).c_str());
}

Result<Session> CreateSession(const Model& model, const Flags& flags) {
  const SlowNotice notice("preparing the weights");
  Result<Session> session = Session::Create(model, ToSessionOptions(flags.session));
  if (session.ok()) WarnOfLongContext(model.config(), flags.session.context);
  if (!session.ok() || !flags.ablation.Given()) return session;
  const Status status = Ablate(flags.ablation, flags.session, model, *session);
  return status.ok() ? std::move(session) : Result<Session>(status);
}

/// Restores a saved session into `session`, and puts its tokens before `prompt`.
Status LoadSession(const Flags& flags, Session& session, std::vector<TokenId>& prompt) {
  if (flags.load_session.empty()) return {};
  const Status status = session.Restore(flags.load_session, {flags.convert_session});
  if (status.ok()) prompt.insert(prompt.begin(), session.tokens().begin(), session.tokens().end());
  return status;
}

/// Saves the session. The last token has been drawn but not evaluated: without it the next run
/// would draw it again.
Status SaveSession(const Flags& flags, Session& session, std::size_t prompt_tokens,
                   const GenerateResult& result) {
  if (flags.save_session.empty()) return {};
  const auto all = static_cast<std::int64_t>(prompt_tokens + result.ids.size());
  if (!result.ids.empty() && session.length() < std::min(all, session.context()))
    if (Status status = session.Append({&result.ids.back(), 1}).status(); !status.ok())
      return status;
  return session.Save(flags.save_session);
}

/// Prints the lines after the generated text.
void PrintEnd(const Model& model, const Session& session, const GenerateOptions& options,
              const GenerateResult& result) {
  Stdout::Write("\n");
  PrintStatistics(model, session, options, result);
  PrintTopLogits(model.tokenizer(), result);
}

Status CheckFiles(const Flags& flags) {
  return CheckOutputs(flags.model, {{"--save-session", flags.save_session}},
                      {{"-f", flags.text.file.value_or("")}});
}

int Run(const Flags& flags) {
  if (Status status = CheckFiles(flags); !status.ok()) return Fail(status);
  const Result<Model> model = LoadModel(flags.model, ToModelOptions(flags.session));
  if (!model.ok()) return Fail(model.status());
  Result<Session> session = CreateSession(*model, flags);
  if (!session.ok()) return Fail(session.status());
  Result<std::vector<TokenId>> prompt = PromptIds(flags, model->tokenizer(), *session);
  if (!prompt.ok()) return Fail(prompt.status());
  const std::vector<TokenId> shown = *prompt;
  if (Status status = LoadSession(flags, *session, *prompt); !status.ok()) return Fail(status);

  const bool human = flags.format == "text";
  GenerateOptions options = flags.generate;
  const bool continues = !flags.load_session.empty();
  options.sampling.seed = flags.seed.value_or(continues ? session->next_seed() : RandomSeed());
  options.cancel = &Interrupted();
  Progress prefill("reading the prompt", "tokens");
  Progress decode("generating", "tokens");
  // The prompt is shown once the session has accepted it: if refused, standard output stays empty.
  bool prompt_shown = !human;
  const auto show_prompt = [&] {
    if (prompt_shown) return;
    prompt_shown = true;
    Stdout::Write(flags.text.text ? *flags.text.text : model->tokenizer().Decode(shown));
  };
  options.on_prefill = [&](std::int64_t done, std::int64_t total) {
    prefill.Update(done, total);
    if (done != total) return;
    prefill.Clear();  // before the prompt, so as not to overwrite its last line
    show_prompt();
  };
  options.on_text = [&](std::string_view text) {
    show_prompt();
    if (human) {
      Stdout::Write(text);
      if (!Stdout::ok()) Interrupt();
    } else {
      decode.Update(session->length() - static_cast<std::int64_t>(prompt->size()),
                    options.max_tokens);
    }
  };
  CatchInterrupt();
  const Result<GenerateResult> result = session->Generate(*prompt, options);
  prefill.Clear();
  decode.Clear();
  if (!result.ok()) {
    if (human && prompt_shown) {
      Stdout::Write("\n");  // the error has a line of its own
      Stdout::Finish();
    }
    return Fail(result.status());
  }
  show_prompt();
  const Status saved = SaveSession(flags, *session, prompt->size(), *result);
  if (human)
    PrintEnd(*model, *session, options, *result);
  else
    Stdout::WriteJson(ToJson(*model, *session, *prompt, options, *result));
  return saved.ok() ? Stdout::Finish() : Fail(saved);
}

void AddSampling(App app, Flags* flags) {
  SamplingParams& sampling = flags->generate.sampling;
  AddReal(app, "--temperature", &sampling.temperature, {}, "0 takes the best token each time");
  AddInt(app, "--top-k", &sampling.top_k, {}, "Draw from the K best tokens; 0 = all");
  AddReal(app, "--top-p", &sampling.top_p, {0, 1},
          "Draw from the best tokens that sum up to P; 1 = all");
  AddReal(app, "--min-p", &sampling.min_p, {0, 1},
          "Draw from tokens at least P times as likely as the best; 0 = all");
  AddReal(app, "--repeat-penalty", &sampling.repeat_penalty, {.min = 0, .open_min = true},
          "Make recent tokens less likely; 1 = off");
  app.AddParsed(
         "--seed",
         [flags](const std::string& text) {
           flags->seed = ParseUnsigned(text);
           if (!flags->seed)
             RejectUsage("--seed", "'" + EscapeLine(text) + "' is not a whole number, at least 0");
         },
         "Repeat a run; default: random, and printed")
      .Type("N");
}

void AddPrompt(App app, Flags* flags) {
  AddText(app, &flags->text);
  app.AddParsed(
         "--prompt-ids",
         [flags](const std::string& text) {
           Result<std::vector<TokenId>> ids = ParseIds(text);
           if (!ids.ok()) RejectUsage("--prompt-ids", ids.status().message());
           flags->prompt_ids = *std::move(ids);
         },
         "The prompt as token ids, e.g. 1,2,3")
      .Type("IDS")
      .Excludes("--prompt")
      .Excludes("--file");
}

void AddSessionFiles(App app, Flags* flags) {
  app.AddOption("--save-session", &flags->save_session, "Save the session to FILE at the end")
      .Type("FILE");
  const Option load = app.AddOption("--load-session", &flags->load_session,
                                    "Restore the session from FILE; a prompt is appended to it")
                          .Type("FILE");
  app.AddFlag("--convert-session", &flags->convert_session,
              "Load keys and values of other types than --kv-type")
      .Needs(load);
}

}  // namespace

Command AddGenerate(App parent) {
  const auto flags = std::make_shared<Flags>();
  const App app = parent.AddSubcommand("generate", "Continue a prompt");
  AddModel(app, &flags->model);
  AddPrompt(app, flags.get());
  AddInt(app, "-n,--max-tokens", &flags->generate.max_tokens, {}, "Most tokens to generate");
  AddSampling(app, flags.get());
  AddThreads(app, &flags->session.threads);
  AddContext(app, &flags->session);
  AddKvTypeAndMath(app, &flags->session);
  AddKvPolicy(app, &flags->session);
  AddAblation(app, &flags->ablation);
  AddSessionFiles(app, flags.get());
  app.AddOption("--stop", &flags->generate.stop, "End before this text; may be repeated")
      .Type("TEXT")
      .OneValueEach();
  AddInt(app, "--top-logits", &flags->generate.top_logits, {},
         "Report the K best logits after the prompt");
  AddChoice(app, "-o,--output", &flags->format, {"text", "json"}, "How to print");
  app.Footer(
      std::string(kAblationHelp) +
      "The text goes to standard output as it is decoded, the statistics to standard error. "
      "Ctrl-C\n"
      "ends the text and prints the statistics (exit code 0); a second one kills.\n"
      "Examples:\n"
      "  manyhead generate -p 'the cat sat on the mat. the cat sat'\n"
      "  manyhead generate -m gemma3-270m -p 'The sky is' -n 48 --temperature 0.8 --top-p 0.95\n"
      "  manyhead generate -m model.gguf --prompt-ids 2,818,5279 --top-logits 8 -o json\n"
      "  manyhead generate -p 'Once upon' --save-session story; manyhead generate --load-session "
      "story");
  app.OnParsed([flags, sub = app] {
    if (!flags->HasPrompt() && flags->load_session.empty())
      RejectUsage("generate",
                  "a prompt is needed: -p TEXT, -f FILE, --prompt-ids or --load-session FILE");
    for (const auto& [name, file] : {std::pair("--save-session", &flags->save_session),
                                     std::pair("--load-session", &flags->load_session)})
      if (sub.Given(name) && file->empty()) RejectUsage(name, "the file name is empty");
    for (const std::string& stop : flags->generate.stop)
      if (stop.empty()) RejectUsage("--stop", "the text is empty");
  });
  return {app, [flags] { return Run(*flags); }};
}

}  // namespace manyhead::cli
