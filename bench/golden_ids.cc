#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "manyhead/manyhead.h"
#include "tools/manyhead/machine.h"
#include "tools/manyhead/throughput.h"

/// Records token ids and checksums of logits, and tells which of them another build changes.
///
///   golden_ids record FILE NAME=MODEL.gguf...
///   golden_ids compare FILE NAME=MODEL.gguf...
///
/// It uses the public interface alone, so that it compiles against old and new commits. The file
/// holds the prompts' token ids too: a changed tokenizer changes no case. tools/golden_ids.sh
/// builds and runs it.

namespace manyhead::bench {
namespace {

using Json = nlohmann::ordered_json;

/// Describes what a case does before and while it decodes.
struct Recipe {
  const char* name;
  std::int64_t prompt;         ///< tokens
  const char* kv_policy = "";  ///< as SessionOptions::kv_policy
  const char* ablation = "";   ///< as ParseAblation reads it
  bool snapshot = false;       ///< halfway, saved and restored into another session
  bool stepwise = false;       ///< the prompt is appended token by token
  bool mapped = false;         ///< weights stay as the file has them
  std::int64_t chunk = SessionOptions{}.chunk;
};

constexpr const char* kAblation = "0.0,1.0=0.5";

constexpr Recipe kRecipes[] = {
    {.name = "prompt1", .prompt = 1},
    {.name = "prompt7", .prompt = 7},
    {.name = "prompt9", .prompt = 9},
    {.name = "prompt64", .prompt = 64},
    {.name = "prompt700", .prompt = 700},
    {.name = "stepwise64", .prompt = 64, .stepwise = true},
    {.name = "chunk7_64", .prompt = 64, .chunk = 7},
    {.name = "window64", .prompt = 64, .kv_policy = "sink(4)+recent(24)"},
    {.name = "budget64", .prompt = 64, .kv_policy = "budget(40)+recent(8)"},
    {.name = "ablation64", .prompt = 64, .ablation = kAblation},
    {.name = "snapshot64", .prompt = 64, .snapshot = true},
    {.name = "mapped9", .prompt = 9, .mapped = true},
    {.name = "mapped64", .prompt = 64, .mapped = true},
    {.name = "together700",
     .prompt = 700,
     .kv_policy = "sink(4)+recent(128)",
     .ablation = kAblation,
     .snapshot = true},
};
constexpr std::int64_t kPromptTokens = 700;
constexpr std::int64_t kContext = 1024;
constexpr std::int64_t kDecodeTokens = 16;
/// A case whose arithmetic was changed on purpose may move its mean NLL so far, in nats.
constexpr double kMostNllChange = 0.002;

constexpr KvType kTypes[] = {KvType::kF16, KvType::kF32, KvType::kInt8};

/// A model in the ways of keeping weights that the recipes ask for.
struct Models {
  Model packed, mapped;
};

struct Case {
  const Recipe* recipe;
  Isa isa;
  MathMode math;
  KvType type;
  std::int64_t decode_tokens;
};

struct CaseResult {
  std::vector<TokenId> ids;         ///< greedy
  std::vector<std::string> logits;  ///< checksums after the prompt and after each of `ids`
  std::optional<double> mean_nll;   ///< loss of the prompt, if it has 2 tokens
};

bool IsPlain(const Recipe& recipe) { return std::string_view(recipe.name).starts_with("prompt"); }

/// Whether every step of the case has one row.
bool HasSingleRowsOnly(std::string_view recipe) {
  return recipe == "prompt1" || recipe == "stepwise64";
}

/// Greedy tokens of a case; 0 = the case is left out, because the model is too large for it.
std::int64_t DecodeTokensOf(const Model& model, const Recipe& recipe, Isa isa, bool best_isa,
                            KvType type) {
  constexpr std::int64_t kSmall = 50'000'000, kLarge = 1'000'000'000;
  const bool is_large = model.num_parameters() >= kLarge;
  if (model.num_parameters() < kSmall) return kDecodeTokens;
  const bool is_f16 = type == KvType::kF16, is_plain = IsPlain(recipe);
  if (isa == Isa::kScalar) return is_f16 && is_plain && recipe.prompt <= (is_large ? 1 : 9) ? 4 : 0;
  bool wanted = is_plain && recipe.prompt <= 64 && (best_isa || !is_large);
  wanted |= recipe.prompt <= 64 && best_isa && !is_large;
  wanted |= is_f16 && (best_isa || is_plain || recipe.stepwise);
  wanted |= is_f16 && recipe.prompt <= 64 && !is_large;
  return wanted ? kDecodeTokens : 0;
}

std::vector<Case> PlanCases(const Model& model) {
  std::vector<Case> cases;
  const std::vector<Isa> isas = SupportedIsas();
  for (const Isa isa : isas)
    for (const MathMode math : {MathMode::kFast, MathMode::kExact})
      for (const KvType type : kTypes)
        for (const Recipe& recipe : kRecipes)
          if (const std::int64_t tokens =
                  DecodeTokensOf(model, recipe, isa, isa == isas.back(), type);
              tokens > 0)
            cases.push_back({&recipe, isa, math, type, tokens});
  return cases;
}

std::string CaseName(const std::string& model, const Case& one) {
  std::string name = model;
  for (const char* const part : {IsaName(one.isa), one.math == MathMode::kFast ? "fast" : "exact",
                                 KvTypeName(one.type), one.recipe->name})
    name.append("/").append(part);
  return name;
}

/// FNV-1a over the 32-bit patterns of the logits, in 16 hexadecimal digits.
std::string Checksum(std::span<const float> logits) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const float logit : logits)
    hash = (hash ^ std::bit_cast<std::uint32_t>(logit)) * 0x100000001b3;
  std::array<char, 17> digits{};
  std::snprintf(digits.data(), digits.size(), "%016llx", static_cast<unsigned long long>(hash));
  return digits.data();
}

/// -log softmax(logits)[id]
double Nll(std::span<const float> logits, TokenId id) {
  const double most = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(double{logit} - most);
  return most + std::log(sum) - double{logits[static_cast<std::size_t>(id)]};
}

/// Deletes a file at the end of the scope.
class TemporaryFile {
 public:
  TemporaryFile()
      : path_(std::filesystem::temp_directory_path() /
              ("golden_ids." + std::to_string(getpid()) + ".session")) {}
  ~TemporaryFile() {
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

/// Runs one case; its functions return the first error.
class CaseRun {
 public:
  CaseRun(const Model& model, const Case& one, std::span<const TokenId> prompt)
      : model_(model),
        case_(one),
        prompt_(prompt.first(static_cast<std::size_t>(one.recipe->prompt))) {}

  Result<CaseResult> Run() {
    if (Status status = ScorePrompt(); !status.ok()) return status;
    Result<Session> session = Create();
    if (!session.ok()) return session.status();
    if (Status status = Prefill(*session); !status.ok()) return status;
    for (std::int64_t i = 0; i < case_.decode_tokens; ++i) {
      if (case_.recipe->snapshot && i == case_.decode_tokens / 2) {
        session = Reopen(*session);
        if (!session.ok()) return session.status();
      }
      const TokenId id = cli::ArgMax(session->logits());
      if (id < 0) return Status(StatusCode::kInvalidArgument, "a logit is NaN");
      result_.ids.push_back(id);
      if (Status status = Append(*session, {&id, 1}); !status.ok()) return status;
    }
    return std::move(result_);
  }

 private:
  Result<Session> Create() const {
    SessionOptions options;
    options.context = kContext;
    options.k_type = options.v_type = case_.type;
    options.kv_policy = case_.recipe->kv_policy;
    options.math = case_.math;
    options.isa = case_.isa;
    options.chunk = case_.recipe->chunk;
    Result<Session> session = Session::Create(model_, options);
    if (!session.ok() || *case_.recipe->ablation == '\0') return session;
    const Result<Ablation> ablation = ParseAblation(case_.recipe->ablation, model_.config());
    if (!ablation.ok()) return ablation.status();
    if (Status status = session->SetAblation(*ablation); !status.ok()) return status;
    return session;
  }

  Status Append(Session& session, std::span<const TokenId> ids) {
    const Result<std::span<const float>> logits = session.Append(ids);
    if (logits.ok()) result_.logits.push_back(Checksum(*logits));
    return logits.status();
  }

  Status Prefill(Session& session) {
    if (!case_.recipe->stepwise) return Append(session, prompt_);
    double sum = 0;
    for (std::size_t i = 0; i < prompt_.size(); ++i) {
      if (i > 0) sum += Nll(session.logits(), prompt_[i]);
      if (Status status = Append(session, prompt_.subspan(i, 1)); !status.ok()) return status;
    }
    result_.mean_nll = sum / static_cast<double>(prompt_.size() - 1);
    return {};
  }

  /// The mean NLL of a prompt that is evaluated as such, on a session of its own.
  Status ScorePrompt() {
    if (case_.recipe->stepwise || prompt_.size() < 2) return {};
    Result<Session> session = Create();
    if (!session.ok()) return session.status();
    std::vector<double> nll(prompt_.size() - 1);
    if (Status status = session->Score(prompt_, nll); !status.ok()) return status;
    double sum = 0;
    for (const double each : nll) sum += each;
    result_.mean_nll = sum / static_cast<double>(nll.size());
    return {};
  }

  Result<Session> Reopen(const Session& session) const {
    const TemporaryFile file;
    if (Status status = session.Save(file.path()); !status.ok()) return status;
    Result<Session> restored = Create();
    if (!restored.ok()) return restored;
    if (Status status = restored->Restore(file.path()); !status.ok()) return status;
    return restored;
  }

  const Model& model_;
  const Case& case_;
  std::span<const TokenId> prompt_;
  CaseResult result_;
};

Json ToJson(const Result<CaseResult>& result) {
  if (!result.ok()) return {{"error", result.status().message()}};
  Json json;
  json["mean_nll"] = result->mean_nll ? Json(*result->mean_nll) : Json();
  json["ids"] = result->ids;
  json["logits"] = result->logits;
  return json;
}

/// Plain sentences, the same at every call.
std::string PromptText() {
  constexpr std::array kSubjects = {"The gardener",    "A sailor",    "My neighbour",
                                    "The old teacher", "Her brother", "The engineer",
                                    "A traveller"};
  constexpr std::array kVerbs = {"carried", "found", "painted", "sold", "repaired"};
  constexpr std::array kObjects = {"a lamp",   "two maps", "the clock", "three boats",
                                   "a bridge", "a letter", "the well",  "nine birds"};
  constexpr std::array kPlaces = {"near the river", "in the square", "behind the mill",
                                  "at the harbour", "on the hill",   "before noon"};
  std::string text;
  std::uint32_t state = 2024;
  const auto pick = [&state](const auto& words) {
    state = state * 1664525U + 1013904223U;
    return words[(state >> 16) % words.size()];
  };
  constexpr int kSentences = 100;
  for (int i = 0; i < kSentences; ++i) {
    text.append(pick(kSubjects)).append(" ").append(pick(kVerbs)).append(" ");
    text.append(pick(kObjects)).append(" ").append(pick(kPlaces)).append(". ");
  }
  return text;
}

Result<std::vector<TokenId>> MakePrompt(const Model& model) {
  Result<std::vector<TokenId>> ids = model.tokenizer().Encode(PromptText());
  if (!ids.ok()) return ids;
  if (static_cast<std::int64_t>(ids->size()) < kPromptTokens)
    return Status(StatusCode::kInvalidArgument, "the text has " + std::to_string(ids->size()) +
                                                    " tokens, " + std::to_string(kPromptTokens) +
                                                    " are needed");
  ids->resize(kPromptTokens);
  return ids;
}

Result<Models> Load(const std::string& path) {
  Result<Model> packed = Model::Load(path);
  if (!packed.ok()) return packed.status();
  Result<Model> mapped = Model::Load(path, {.weights = WeightStorage::kMapped});
  if (!mapped.ok()) return mapped.status();
  return Models{*std::move(packed), *std::move(mapped)};
}

/// The cases of one model by name.
Json RunModel(const std::string& name, const Models& models, std::span<const TokenId> prompt) {
  Json results = Json::object();
  const std::vector<Case> cases = PlanCases(models.packed);
  std::string at;
  for (const Case& one : cases) {
    const std::string case_name = CaseName(name, one);
    const std::string folder = case_name.substr(0, case_name.rfind('/'));
    if (folder != at) std::fprintf(stderr, "%s\n", folder.c_str());
    at = folder;
    const Model& model = one.recipe->mapped ? models.mapped : models.packed;
    results[case_name] = ToJson(CaseRun(model, one, prompt).Run());
  }
  return results;
}

/// Returns what differs between two results of a case; empty if nothing does.
std::string Difference(const Json& before, const Json& after) {
  if (before.contains("error") || after.contains("error"))
    return before == after ? "" : "error: " + before.dump() + ", now " + after.dump();
  if (before == after) return "";
  const auto first = [&](const char* key) {
    const Json &a = before[key], &b = after[key];
    std::size_t i = 0;
    while (i < a.size() && i < b.size() && a[i] == b[i]) ++i;
    return i == a.size() && i == b.size() ? std::string() : std::to_string(i);
  };
  const std::string logits = first("logits"), ids = first("ids");
  std::string text = logits.empty() ? "logits equal" : "logits from " + logits + " on";
  text += ids.empty() ? ", ids equal" : ", ids from " + ids + " on";
  const Json &nll = before["mean_nll"], &nll_after = after["mean_nll"];
  if (nll.is_number() && nll_after.is_number()) {
    std::array<char, 100> line{};
    const double from = nll.get<double>(), to = nll_after.get<double>();
    std::snprintf(line.data(), line.size(), ", mean NLL %.5f -> %.5f (%+.5f)", from, to, to - from);
    text += line.data();
  }
  return text;
}

/// Whether a difference is more than a change of many rows' arithmetic may bring.
bool IsTooLarge(const std::string& name, const Json& before, const Json& after) {
  if (HasSingleRowsOnly(name.substr(name.rfind('/') + 1))) return true;
  if (before.contains("error") || after.contains("error")) return true;
  const Json &a = before["mean_nll"], &b = after["mean_nll"];
  return !a.is_number() || !b.is_number() ||
         std::abs(a.get<double>() - b.get<double>()) > kMostNllChange;
}

/// Prints what differs; whether all of it is allowed.
bool Compare(const Json& before, const Json& after) {
  std::int64_t equal = 0, allowed = 0, too_large = 0, absent = 0;
  for (const auto& [name, result] : after.items()) {
    if (!before.contains(name)) {
      ++absent;
      continue;
    }
    const std::string difference = Difference(before[name], result);
    if (difference.empty()) {
      ++equal;
      continue;
    }
    const bool fails = IsTooLarge(name, before[name], result);
    ++(fails ? too_large : allowed);
    std::printf("%-8s %s: %s\n", fails ? "FAILS" : "differs", name.c_str(), difference.c_str());
  }
  std::printf("%lld cases equal, %lld differ within %.3f nats, %lld fail, %lld were not recorded\n",
              static_cast<long long>(equal), static_cast<long long>(allowed), kMostNllChange,
              static_cast<long long>(too_large), static_cast<long long>(absent));
  return too_large == 0;
}

/// Prints the cases that could not run, which are none in a useful record.
bool HasNoErrors(const Json& cases) {
  bool none = true;
  for (const auto& [name, result] : cases.items()) {
    if (!result.contains("error")) continue;
    std::printf("FAILS    %s: %s\n", name.c_str(), result["error"].get<std::string>().c_str());
    none = false;
  }
  return none;
}

[[noreturn]] void Die(const std::string& message) {
  std::fprintf(stderr, "golden_ids: %s\n", message.c_str());
  std::exit(2);
}

Json ReadRecord(const std::string& path) {
  std::ifstream file(path);
  Json json = Json::parse(file, nullptr, false);
  if (json.is_discarded() || !json.contains("cases")) Die(path + " holds no record");
  return json;
}

void Write(const std::string& path, const Json& json) {
  std::ofstream file(path);
  file << json.dump(1) << "\n";
  file.close();
  if (!file) Die("cannot write " + path);
}

/// `argument` is NAME=PATH. `record` gives the prompt when one is there, and else takes it.
Json RunArgument(const std::string& argument, Json& record) {
  const std::size_t equals = argument.find('=');
  if (equals == std::string::npos) Die("'" + argument + "' is not NAME=MODEL.gguf");
  const std::string name = argument.substr(0, equals);
  const Result<Models> models = Load(argument.substr(equals + 1));
  if (!models.ok()) Die(models.status().message());
  Json& ids = record["prompts"][name];
  if (ids.is_null()) {
    const Result<std::vector<TokenId>> prompt = MakePrompt(models->packed);
    if (!prompt.ok()) Die(name + ": " + prompt.status().message());
    ids = *prompt;
  }
  return RunModel(name, *models, ids.get<std::vector<TokenId>>());
}

int Main(const std::vector<std::string>& arguments) {
  const bool records = !arguments.empty() && arguments[0] == "record";
  if (arguments.size() < 3 || (!records && arguments[0] != "compare"))
    Die("usage: golden_ids record|compare FILE NAME=MODEL.gguf...");
  const std::string& path = arguments[1];
  Json record =
      records ? Json{{"cpu", cli::CpuName()}, {"prompts", Json::object()}} : ReadRecord(path);
  if (record["cpu"] != cli::CpuName())
    std::printf("recorded on %s, compared on %s\n", record["cpu"].get<std::string>().c_str(),
                cli::CpuName().c_str());
  Json cases = Json::object();
  for (std::size_t i = 2; i < arguments.size(); ++i) {
    cases.update(RunArgument(arguments[i], record));
    if (!records) continue;
    record["cases"] = cases;  // after each model, so that a run that is ended keeps what it has
    Write(path, record);
  }
  return (records ? HasNoErrors(cases) : Compare(record["cases"], cases)) ? 0 : 1;
}

}  // namespace
}  // namespace manyhead::bench

int main(int argc, char** argv) {
  try {
    return manyhead::bench::Main({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "golden_ids: %s\n", error.what());
    return 2;
  }
}
