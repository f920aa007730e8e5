#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "manyhead/isa.h"
#include "manyhead/model.h"
#include "manyhead/threads.h"
#include "tools/manyhead/commands.h"
#include "tools/manyhead/machine.h"
#include "tools/manyhead/options.h"
#include "tools/manyhead/output.h"
#include "tools/manyhead/report.h"

namespace manyhead::cli {
namespace {

struct Flags {
  std::string model, format;
  std::int64_t threads = 0;
};

struct Machine {
  std::string cpu;
  Isa isa = Isa::kScalar;
  Team team = Team::kOwn;
  std::vector<Isa> isas;
  int online_cpus = 0, allowed_cpus = 0, default_threads = 0;
  std::vector<CpuCache> caches;
  Bandwidth bandwidth;
};

Machine Inspect(const Flags& flags) {
  Machine machine;
  machine.cpu = CpuName();
  if (const Result<Isa> isa = SelectIsa(); isa.ok()) machine.isa = *isa;
  if (const Result<Team> team = SelectTeam(); team.ok()) machine.team = *team;
  machine.isas = SupportedIsas();
  machine.online_cpus = OnlineCpus();
  machine.allowed_cpus = AllowedCpus();
  machine.default_threads = DefaultThreads();
  machine.caches = CpuCaches();
  const int threads = static_cast<int>(flags.threads);
  machine.bandwidth = MeasureReadBandwidth(threads > 0 ? threads : machine.default_threads);
  return machine;
}

std::string CacheName(const CpuCache& cache) {
  const std::string suffix = cache.type == "Data" ? "d" : cache.type == "Instruction" ? "i" : "";
  return "L" + std::to_string(cache.level) + suffix;
}

std::string Join(const std::vector<Isa>& isas) {
  std::string names;
  for (const Isa isa : isas) names += std::string(names.empty() ? "" : " ") + IsaName(isa);
  return names;
}

void PrintMachine(const Machine& machine) {
  std::vector<std::vector<std::string>> rows = {
      {"CPU", machine.cpu},
      {"ISA", std::string(IsaName(machine.isa)) + " (this CPU runs: " + Join(machine.isas) + ")"},
      {"threads", std::to_string(machine.default_threads) + " by default; " +
                      std::to_string(machine.online_cpus) + " CPUs online, " +
                      std::to_string(machine.allowed_cpus) + " allowed by affinity"},
      {"team", TeamName(machine.team)}};
  std::string caches;
  for (const CpuCache& cache : machine.caches)
    caches += (caches.empty() ? "" : ", ") + CacheName(cache) + " " +
              FormatBytes(static_cast<double>(cache.size_bytes)) +
              (cache.shared_by > 1 ? " for " + std::to_string(cache.shared_by) + " CPUs" : "");
  rows.push_back({"caches", caches.empty() ? "unknown" : caches});
  rows.push_back({"memory", FormatFixed(machine.bandwidth.bytes_per_second / 1e9, 1) +
                                " GB/s read by " + std::to_string(machine.bandwidth.threads) +
                                " threads over " +
                                FormatBytes(static_cast<double>(machine.bandwidth.buffer_bytes))});
  Stdout::Write(FormatTable(rows, 2));
}

Json MachineJson(const Machine& machine) {
  Json json;
  json["cpu"] = machine.cpu;
  json["isa"] = IsaName(machine.isa);
  json["supported_isas"] = Json::array();
  for (const Isa isa : machine.isas) json["supported_isas"].push_back(IsaName(isa));
  json["online_cpus"] = machine.online_cpus;
  json["allowed_cpus"] = machine.allowed_cpus;
  json["default_threads"] = machine.default_threads;
  json["team"] = TeamName(machine.team);
  json["caches"] = Json::array();
  for (const CpuCache& cache : machine.caches)
    json["caches"].push_back({{"level", cache.level},
                              {"type", cache.type},
                              {"size_bytes", cache.size_bytes},
                              {"shared_by", cache.shared_by}});
  json["bandwidth"] = {{"bytes_per_second", machine.bandwidth.bytes_per_second},
                       {"threads", machine.bandwidth.threads},
                       {"buffer_bytes", machine.bandwidth.buffer_bytes}};
  return json;
}

std::string FormatShape(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (const std::int64_t size : shape)
    text += (text.size() > 1 ? ", " : "") + std::to_string(size);
  return text + "]";
}

/// Returns the base that the layer rotates by; nothing where positions are learned.
std::optional<double> RopeBase(const ModelConfig& config, const LayerConfig& layer) {
  if (config.positions != PositionKind::kRotary) return std::nullopt;
  return config.ropes.at(static_cast<std::size_t>(layer.rope)).base;
}

std::string WindowName(std::int64_t window) {
  return window > 0 ? std::to_string(window) : std::string("all");
}

void PrintModel(const Model& model) {
  const ModelConfig& config = model.config();
  Stdout::Write(
      "\n" + FormatTable(
                 {{"model", model.path()},
                  {"type", ModelType(model)},
                  {"name", EscapeLine(config.name)},
                  {"weights", FormatBytes(static_cast<double>(model.weight_bytes())) + ", " +
                                  FormatBytes(static_cast<double>(model.weight_bytes_per_token())) +
                                  " read per token"},
                  {"d_model", std::to_string(config.d_model)},
                  {"vocabulary", std::to_string(config.vocab_size) + ", " +
                                     std::string(model.tokenizer().model_name())},
                  {"context", std::to_string(config.context_length)}},
                 2));
  std::vector<std::vector<std::string>> rows = {
      {"layer", "heads", "KV heads", "head_dim", "ffn_dim", "window", "rope base"}};
  for (std::size_t i = 0; i < config.layers.size(); ++i) {
    const LayerConfig& layer = config.layers[i];
    const std::optional<double> base = RopeBase(config, layer);
    rows.push_back({std::to_string(i), std::to_string(layer.num_heads),
                    std::to_string(layer.num_kv_heads), std::to_string(layer.head_dim),
                    std::to_string(layer.ffn_dim), WindowName(layer.window),
                    base ? FormatFixed(*base, 0) : "none"});
  }
  Stdout::Write("\n" + FormatTable(rows, 0));
  rows = {{"tensor", "type", "shape", "bytes"}};
  for (const TensorInfo& tensor : model.tensors())
    rows.push_back({EscapeLine(tensor.name), WeightTypeName(tensor.type), FormatShape(tensor.shape),
                    std::to_string(tensor.size_bytes)});
  Stdout::Write("\n" + FormatTable(rows, 2));
}

Json ModelJson(const Model& model) {
  const ModelConfig& config = model.config();
  Json json;
  json["model_filename"] = model.path();
  json["model_type"] = ModelType(model);
  json["name"] = config.name;
  json["architecture"] = config.architecture;
  json["model_size"] = model.weight_bytes();
  json["weight_bytes_per_token"] = model.weight_bytes_per_token();
  json["model_n_params"] = model.num_parameters();
  json["d_model"] = config.d_model;
  json["vocab_size"] = config.vocab_size;
  json["context_length"] = config.context_length;
  json["tied_embeddings"] = config.tied_embeddings;
  json["tokenizer"] = {{"model", std::string(model.tokenizer().model_name())},
                       {"pre", std::string(model.tokenizer().pre_name())}};
  json["layers"] = Json::array();
  for (const LayerConfig& layer : config.layers) {
    const std::optional<double> base = RopeBase(config, layer);
    json["layers"].push_back(
        {{"num_heads", layer.num_heads},
         {"num_kv_heads", layer.num_kv_heads},
         {"head_dim", layer.head_dim},
         {"head_dim_v", layer.head_dim_v == 0 ? layer.head_dim : layer.head_dim_v},
         {"ffn_dim", layer.ffn_dim},
         {"window", layer.window},
         {"rope_base", base ? Json(*base) : Json(nullptr)}});
  }
  json["tensors"] = Json::array();
  for (const TensorInfo& tensor : model.tensors())
    json["tensors"].push_back({{"name", tensor.name},
                               {"type", WeightTypeName(tensor.type)},
                               {"shape", tensor.shape},
                               {"size_bytes", tensor.size_bytes}});
  return json;
}

int Run(const Flags& flags, bool with_model) {
  Json json;
  if (with_model) {
    const Result<Model> model = LoadModel(flags.model, {.weights = WeightStorage::kMapped});
    if (!model.ok()) return Fail(model.status());
    const Machine machine = Inspect(flags);
    if (flags.format == "json") {
      json = MachineJson(machine);
      json["model"] = ModelJson(*model);
    } else {
      PrintMachine(machine);
      PrintModel(*model);
    }
  } else if (flags.format == "json") {
    json = MachineJson(Inspect(flags));
  } else {
    PrintMachine(Inspect(flags));
  }
  if (flags.format == "json") Stdout::WriteJson(json);
  return Stdout::Finish();
}

}  // namespace

Command AddInfo(App parent) {
  const auto flags = std::make_shared<Flags>();
  const App app = parent.AddSubcommand("info", "Describe this machine, and with -m a model");
  AddModel(app, &flags->model);
  AddThreads(app, &flags->threads);
  AddChoice(app, "-o,--output", &flags->format, {"text", "json"}, "How to print");
  app.Footer(
      "The bandwidth is the best of several reads of a buffer larger than the caches. -m bundled\n"
      "names the bundled model.\n"
      "Examples:\n"
      "  manyhead info\n"
      "  manyhead info -m gemma3-270m -o json");
  return {app, [flags, app] { return Run(*flags, app.Given("--model")); }};
}

}  // namespace manyhead::cli
