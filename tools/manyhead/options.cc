#include "tools/manyhead/options.h"
#include "manyhead/threads.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <utility>

#include "manyhead/output_file.h"
#include "tools/manyhead/descriptor_io.h"
#include "tools/manyhead/model_path.h"
#include "tools/manyhead/output.h"

namespace manyhead::cli {
namespace {

std::string Describe(const IntRange& range) {
  const std::string least = "a whole number, at least " + std::to_string(range.min);
  if (range.max == std::numeric_limits<std::int64_t>::max()) return least;
  return "a whole number from " + std::to_string(range.min) + " to " + std::to_string(range.max);
}

std::string Describe(const RealRange& range) {
  const std::string min = FormatFixed(range.min, 0);
  if (range.max < std::numeric_limits<float>::max())
    return "a number from " + min + " to " + FormatFixed(range.max, 0);
  return (range.open_min ? "a number above " : "a number, at least ") + min;
}

[[noreturn]] void Reject(const std::string& flags, const std::string& text,
                         const std::string& expected) {
  RejectUsage(flags, "'" + EscapeLine(text) + "' is not " + expected);
}

std::int64_t CheckInt(const std::string& flags, const std::string& text, const IntRange& range) {
  const std::optional<std::int64_t> value = ParseSize(text);
  if (!value || *value < range.min || *value > range.max)
    Reject(flags, text, Describe(range) + " (1k = 1024)");
  return *value;
}

double CheckReal(const std::string& flags, const std::string& text, const RealRange& range) {
  const std::optional<double> value = ParseReal(text);
  if (!value || *value < range.min || *value > range.max ||
      (range.open_min && static_cast<float>(*value) <= static_cast<float>(range.min)))
    Reject(flags, text, Describe(range));
  return *value;
}

std::string ShortReal(double value) {
  std::string text = FormatFixed(value, 2);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.ends_with('.')) text.pop_back();
  return text;
}

/// Adds an option for values separated by commas; `check` converts each to a T.
template <class T, class Check>
Option AddList(App app, const std::string& flags, std::vector<T>* values,
               const std::string& type_name, const std::string& default_text, Check check,
               const std::string& help) {
  return app
      .AddParsed(
          flags,
          [=](const std::string& text) {
            values->clear();
            for (const std::string& item : SplitAtCommas(text))
              values->push_back(check(flags, item));
            if (values->empty() || text.ends_with(','))
              Reject(flags, text, "a list of numbers separated by commas");
          },
          help)
      .Type(type_name)
      .Default(default_text);
}

}  // namespace

Option AddInt(App app, const std::string& flags, std::int64_t* value, IntRange range,
              const std::string& help) {
  return app
      .AddParsed(
          flags, [=](const std::string& text) { *value = CheckInt(flags, text, range); }, help)
      .Type("N")
      .Default(std::to_string(*value));
}

Option AddReal(App app, const std::string& flags, float* value, RealRange range,
               const std::string& help) {
  return app
      .AddParsed(
          flags,
          [=](const std::string& text) {
            *value = static_cast<float>(CheckReal(flags, text, range));
          },
          help)
      .Type("X")
      .Default(ShortReal(double{*value}));
}

Option AddIntList(App app, const std::string& flags, std::vector<std::int64_t>* values,
                  IntRange range, const std::string& help) {
  std::string default_text;
  for (const std::int64_t value : *values)
    default_text += (default_text.empty() ? "" : ",") + std::to_string(value);
  return AddList(
      app, flags, values, "N,...", default_text,
      [range](const std::string& name, const std::string& text) {
        return CheckInt(name, text, range);
      },
      help);
}

Option AddRealList(App app, const std::string& flags, std::vector<double>* values, RealRange range,
                   const std::string& help) {
  std::string default_text;
  for (const double value : *values)
    default_text += (default_text.empty() ? "" : ",") + ShortReal(value);
  return AddList(
      app, flags, values, "X,...", default_text,
      [range](const std::string& name, const std::string& text) {
        return CheckReal(name, text, range);
      },
      help);
}

namespace {

std::string JoinChoices(const std::vector<std::string>& choices) {
  std::string names;
  for (const std::string& choice : choices) names += (names.empty() ? "" : "|") + choice;
  return names;
}

void CheckChoice(const std::string& flags, const std::string& text,
                 const std::vector<std::string>& choices) {
  if (std::find(choices.begin(), choices.end(), text) == choices.end())
    Reject(flags, text, "one of " + JoinChoices(choices));
}

}  // namespace

Option AddChoice(App app, const std::string& flags, std::string* value,
                 const std::vector<std::string>& choices, const std::string& help) {
  *value = choices.front();
  return app
      .AddParsed(
          flags,
          [=](const std::string& text) {
            CheckChoice(flags, text, choices);
            *value = text;
          },
          help)
      .Type(JoinChoices(choices))
      .Default(*value);
}

Option AddChoiceList(App app, const std::string& flags, std::vector<std::string>* values,
                     const std::vector<std::string>& choices, const std::string& help) {
  *values = {choices.front()};
  return app
      .AddParsed(
          flags,
          [=](const std::string& text) {
            values->clear();
            for (const std::string& item : SplitAtCommas(text)) {
              CheckChoice(flags, item, choices);
              values->push_back(item);
            }
          },
          help)
      .Type(JoinChoices(choices) + ",...")
      .Default(choices.front());
}

void AddModel(App app, std::string* model) {
  app.AddOption("-m,--model", model,
                "GGUF file, or the name of a model that tools/fetch_model.py has fetched; "
                "default: the bundled model")
      .Type("FILE|NAME");
}

void AddThreads(App app, std::int64_t* threads) {
  AddInt(app, "-t,--threads", threads, {0, kMaxThreads},
         "Threads; 0 = the CPUs this process may use");
}

void AddContext(App app, SessionFlags* flags) {
  AddInt(app, "-c,--context", &flags->context, {0},
         "Largest number of tokens held; 0 = the smaller of the model's context and 8192");
}

void AddKvTypeAndMath(App app, SessionFlags* flags) {
  const std::string names = "f32|f16|bf16|int8|int4";
  app.AddParsed(
         "--kv-type",
         [=](const std::string& text) {
           const std::optional<KvTypes> types = ParseKvTypes(text);
           if (!types) Reject("--kv-type", text, "one of " + names + ", nor K/V of them");
           flags->kv_types = *types;
         },
         "How keys and values are stored; K/V for a type each, as f16/int8")
      .Type(names + "[/...]")
      .Default(FormatKvTypes(flags->kv_types));
  AddMath(app, flags);
}

void AddKvTypes(App app, std::vector<KvTypes>* types) {
  app.AddParsed(
         "--kv-type",
         [types](const std::string& text) {
           types->clear();
           for (const std::string& item : SplitAtCommas(text)) {
             const std::optional<KvTypes> parsed = ParseKvTypes(item);
             if (!parsed)
               Reject("--kv-type", item, "one of f32|f16|bf16|int8|int4, nor K/V of them");
             types->push_back(*parsed);
           }
         },
         "How keys and values are stored; K/V for a type each, as f16/int8")
      .Type("TYPE[/TYPE],...")
      .Default("f16");
}

void AddMath(App app, SessionFlags* flags) {
  AddChoice(app, "--math", &flags->math, {"fast", "exact"},
            "fast: int8 activations times low-bit weights; exact: f32 activations");
  AddChoice(app, "--weights", &flags->weights, {"packed", "mapped"},
            "packed: low-bit weights copied side by side at the start, faster to multiply; mapped: "
            "as the file has them");
  AddChoice(app, "--weight-type", &flags->weight_type,
            {"stored", "f32", "f16", "bf16", "q8_0", "q4_0"},
            "The type that matrices of F32, F16 or BF16 get while they are loaded");
}

std::string ReadKvPolicy(const std::string& flag, const std::string& text) {
  if (text.starts_with('{') || ParseKvPolicy(text).ok()) return text;
  std::error_code ignored;  // set for a text that is too long for a name
  const bool is_file = std::filesystem::exists(text, ignored);
  if (const Status policy = ParseKvPolicy(text).status(); !is_file)
    Reject(flag, text, "a policy (" + policy.message() + "), nor a file");
  Result<std::string> file = ReadFile(text, true);
  if (!file.ok()) Reject(flag, text, "a file of policies (" + file.status().message() + ")");
  return *std::move(file);
}

void AddKvPolicy(App app, SessionFlags* flags) {
  app.AddParsed(
         "--kv-policy",
         [=](const std::string& text) { flags->kv_policy = ReadKvPolicy("--kv-policy", text); },
         "What each KV head keeps, and how: full, window(N)[+margin(R)], "
         "sink(N)+recent(N)[+margin(R)], budget(N)[+sink(N)][+recent(N)] or off for all heads, or "
         "JSON, or a file of either")
      .Type("POLICY|JSON|FILE");
  AddInt(app, "--kv-budget", &flags->kv_budget_bytes, {0},
         "Most bytes of the KV cache with its tables and attention's scratch; 0 = what the context "
         "takes");
}

SessionOptions ToSessionOptions(const SessionFlags& flags) {
  SessionOptions options;
  options.context = flags.context;
  options.threads = static_cast<int>(flags.threads);
  options.k_type = flags.kv_types.k;
  options.v_type = flags.kv_types.v;
  options.kv_policy = flags.kv_policy;
  options.kv_budget_bytes = flags.kv_budget_bytes;
  options.math = flags.math == "exact" ? MathMode::kExact : MathMode::kFast;
  return options;
}

ModelOptions ToModelOptions(const SessionFlags& flags) {
  ModelOptions options;
  options.weights = flags.weights == "mapped" ? WeightStorage::kMapped : WeightStorage::kPacked;
  options.threads = static_cast<int>(flags.threads);
  constexpr std::pair<std::string_view, WeightType> kTypes[] = {
      {"f32", WeightType::kF32},   {"f16", WeightType::kF16},   {"bf16", WeightType::kBf16},
      {"q8_0", WeightType::kQ8_0}, {"q4_0", WeightType::kQ4_0},
  };
  for (const auto& [name, type] : kTypes)
    if (flags.weight_type == name) options.weight_type = type;
  return options;
}

void AddText(App app, TextFlags* flags) {
  const Option text = app.AddOption("-p,--prompt", &flags->text, "The text").Type("TEXT");
  const Option file =
      app.AddOption("-f,--file", &flags->file, "Read the text from FILE; - is standard input")
          .Type("FILE");
  text.Excludes(file);
  app.AddFlag("--special", &flags->special,
              "Read special tokens such as <|im_start|> in the text as tokens");
  app.AddFlag("--no-bos", &flags->no_bos, "Add no begin and end tokens");
}

EncodeOptions ToEncodeOptions(const TextFlags& flags) {
  EncodeOptions options;
  options.add_special = !flags.no_bos;
  options.parse_special = flags.special;
  return options;
}

Result<std::string> ReadText(const TextFlags& flags) {
  if (flags.text) return *flags.text;
  return ReadFile(flags.file.value_or("-"));
}

Result<std::string> ReadFile(const std::string& path, bool settings) {
  const bool is_stdin = path == "-";
  const auto fail = [&](const std::string& reason) {
    return Status(StatusCode::kIoError,
                  (is_stdin ? "standard input" : path) + ": cannot be read: " + reason);
  };
  // Without O_NONBLOCK, opening a FIFO waits for its writer.
  const int wait = settings ? O_NONBLOCK : 0;
  const int file = is_stdin ? STDIN_FILENO : open(path.c_str(), O_RDONLY | O_CLOEXEC | wait);
  if (file < 0) return fail(std::strerror(errno));
  struct stat info = {};
  if (settings && !is_stdin && fstat(file, &info) == 0 && !S_ISREG(info.st_mode)) {
    close(file);
    return fail("expected a regular file");
  }
  const std::size_t most = std::size_t{1} << (settings ? 26 : 31);
  std::string bytes;
  std::array<char, 1 << 16> block{};
  std::ptrdiff_t count = 0;
  while ((count = ReadSome(file, block)) > 0) {
    bytes.append(block.data(), static_cast<std::size_t>(count));
    if (bytes.size() > most) {
      if (!is_stdin) close(file);
      return fail("more than " + std::to_string(most) + " bytes");
    }
  }
  const int error = errno;
  if (!is_stdin) close(file);
  if (count < 0) return fail(std::strerror(error));
  return bytes;
}

Status CheckOutputs(const std::string& model, const std::vector<FlagFile>& outputs,
                    std::vector<FlagFile> inputs) {
  namespace fs = std::filesystem;
  // LoadModel reports a model that is not found.
  if (Result<std::string> path = FindModel(model); path.ok())
    inputs.push_back({"-m", *std::move(path)});
  for (const FlagFile& output : outputs) {
    if (output.path.empty()) continue;
    for (const FlagFile& other : inputs) {
      std::error_code error;  // a file that does not exist is no other file
      const bool same =
          fs::equivalent(output.path, other.path, error) ||
          fs::weakly_canonical(output.path, error) == fs::weakly_canonical(other.path, error);
      if (other.path.empty() || other.path == "-" || !same) continue;
      return Status(StatusCode::kInvalidArgument, std::string(output.flag) + " " + output.path +
                                                      ": is the file of " + other.flag +
                                                      " too; expected another");
    }
    if (Status status = CheckOutputFile(output.path); !status.ok()) return status;
    inputs.push_back(output);
  }
  return Status();
}

}  // namespace manyhead::cli
