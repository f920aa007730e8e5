#include "tools/manyhead/memory_measure.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <functional>
#include <random>
#include <utility>
#include <vector>

#include "manyhead/step_profile.h"
#include "tools/manyhead/bench_plan.h"
#include "tools/manyhead/child_process.h"
#include "tools/manyhead/interrupt.h"
#include "tools/manyhead/output.h"
#include "tools/manyhead/progress.h"
#include "tools/manyhead/report.h"
#include "tools/manyhead/throughput.h"

namespace manyhead::cli {
namespace {

constexpr std::int64_t kPromptStep = 2048;  // tokens between two checks of Ctrl-C

std::string TempFolder() {
  std::error_code error;
  return std::filesystem::temp_directory_path(error).string();
}

/// A file without an entry in any folder: it disappears with the processes that hold it, for
/// whatever reason they end.
class TempFile {
 public:
  TempFile() = default;
  TempFile(const TempFile&) = delete;
  TempFile& operator=(const TempFile&) = delete;
  ~TempFile() {
    if (file_ >= 0) close(file_);
  }

  /// Calls `write`, which writes a file of the given name; the name is removed when Make returns.
  /// Errors   those of `write`; kIoError where the file cannot be opened.
  Status Make(const std::function<Status(const std::string&)>& write) {
    std::random_device random;
    const std::string name =
        TempFolder() + "/manyhead-" + std::to_string(random()) + "-" + std::to_string(random());
    if (Status status = write(name); !status.ok()) return status;
    file_ = open(name.c_str(), O_RDONLY | O_CLOEXEC);
    const int error = errno;
    unlink(name.c_str());
    if (file_ >= 0) return {};
    return {StatusCode::kIoError, name + ": cannot be opened: " + std::strerror(error)};
  }
  /// The path by which this process and its children open it.
  std::string path() const { return "/proc/self/fd/" + std::to_string(file_); }

 private:
  int file_ = -1;
};

/// Checks that the weights of `one`, if they are random, fit into the folder for temporary files,
/// and that its resident memory fits into the machine's.
Status CheckRoom(const MemoryCase& one, bool random) {
  const std::int64_t head_dim = one.shape->config.layers.front().head_dim;
  if (random && head_dim < 2)
    return Status(StatusCode::kUnsupported, "head_dim = " + std::to_string(head_dim) +
                                                " cannot be measured; expected at least 2, which "
                                                "rotary embedding turns");
  const Result<MemoryPlan> plan = PlanMemory(*one.shape, one.options);
  if (!plan.ok()) return plan.status();
  std::error_code error;
  const auto disk = std::filesystem::space(TempFolder(), error).available;
  if (random && !error && static_cast<std::uintmax_t>(plan->weight_bytes) > disk)
    return Status(StatusCode::kIoError, "random weights take " +
                                            FormatBytes(static_cast<double>(plan->weight_bytes)) +
                                            "; " + TempFolder() + " has room for " +
                                            FormatBytes(static_cast<double>(disk)));
  const std::int64_t memory = AvailableMemoryBytes();
  if (memory > 0 && plan->total_bytes > memory)
    return Status(StatusCode::kIoError,
                  "running it takes " + FormatBytes(static_cast<double>(plan->total_bytes)) +
                      " of memory; " + FormatBytes(static_cast<double>(memory)) + " are available");
  return {};
}

Status Stopped() { return Status(StatusCode::kIoError, "interrupted"); }

/// Appends `count` tokens in steps of up to `step`, and adds their time to `*nanoseconds`.
Status AppendTimed(const Model& model, Session& session, std::int64_t count, std::int64_t step,
                   std::int64_t* nanoseconds) {
  Progress progress(step == 1 ? "decoding" : "reading the prompt", "tokens");
  const auto vocab = static_cast<std::uint64_t>(model.config().vocab_size);
  for (std::int64_t done = 0; done < count;) {
    if (Interrupted().load()) return Stopped();
    // A multiplicative hash spreads the ids over the vocabulary; their meaning does not matter.
    std::vector<TokenId> ids;
    for (std::int64_t i = 0; i < std::min(step, count - done); ++i) {
      const auto mixed = static_cast<std::uint64_t>(session.length() + i + 1) * 0x9E3779B97F4A7C15U;
      ids.push_back(static_cast<TokenId>((mixed >> 33) % vocab));
    }
    const std::int64_t start = SteadyNanoseconds();
    const RowRole role = step == 1 ? RowRole::kDecode : RowRole::kPrefill;
    if (const auto logits = session.Append(ids, role); !logits.ok()) return logits.status();
    *nanoseconds += SteadyNanoseconds() - start;
    done += static_cast<std::int64_t>(ids.size());
    progress.Update(done, count);
  }
  return {};
}

double PerSecond(std::int64_t tokens, std::int64_t nanoseconds) {
  return ComputeThroughput(1, tokens, nanoseconds).tokens_per_second;
}

std::int64_t QueryHeads(const ModelConfig& config) {
  std::int64_t heads = 0;
  for (const LayerConfig& layer : config.layers) heads += layer.num_heads;
  return heads;
}

/// Runs the case in the child process.
Result<Json> RunCase(const MemoryCase& one, const MeasureOptions& options) {
  const Result<Model> model = Model::Load(
      options.model, {.weights = one.options.weights, .threads = one.options.session.threads});
  if (!model.ok()) return model.status();
  Result<Session> session = Session::Create(*model, one.options.session);
  if (!session.ok()) return session.status();
  const std::int64_t context = session->context();
  const std::int64_t decoded = std::min(options.decode_tokens, context - 1);
  std::int64_t prefill_ns = 0, decode_ns = 0;
  if (Status status = AppendTimed(*model, *session, context - decoded, kPromptStep, &prefill_ns);
      !status.ok())
    return status;
  StepProfile profile;
  session->SetProfile(&profile);
  if (Status status = AppendTimed(*model, *session, decoded, 1, &decode_ns); !status.ok())
    return status;
  const KvUsage usage = session->cache().usage();
  const BenchTest test = {.n_prompt = 0, .n_gen = decoded, .n_depth = context - decoded};
  const double attention = profile[StepPhase::kAttention].seconds;
  return Json{
      {"kv_bytes", usage.used_bytes},
      {"kv_table_bytes", usage.table_bytes},
      {"scratch_bytes", session->scratch_bytes()},
      {"prefill_tokens_per_second", PerSecond(context - decoded, prefill_ns)},
      {"decode_tokens_per_second", decoded > 0 ? PerSecond(decoded, decode_ns) : 0},
      {"seconds_per_head",
       decoded > 0 ? attention / static_cast<double>(decoded * QueryHeads(model->config())) : 0},
      {"bytes_per_token",
       model->weight_bytes_per_token() +
           KvReadBytesPerToken(model->config(), MeasureKvHeads(session->cache()), test)}};
}

}  // namespace

Result<std::optional<Json>> MeasureCase(const MemoryCase& one, const MeasureOptions& wanted) {
  MeasureOptions options = wanted;
  if (Status status = CheckRoom(one, options.model.empty()); !status.ok()) return status;
  TempFile file;
  if (options.model.empty()) {
    Status status =
        file.Make([&](const std::string& path) { return WriteRandomModel(*one.shape, path); });
    if (!status.ok()) return status;
    options.model = file.path();
  }
  const auto ran = RunInChildProcess([&] { return RunCase(one, options); });
  if (!ran.ok()) return ran.status();
  if (!ran->has_value()) return std::optional<Json>();
  Json measured = (*ran)->value;
  measured["resident_bytes"] = (*ran)->peak_resident_bytes;
  return std::optional<Json>(std::move(measured));
}

Roofline MeasureRooflineInChildProcess(const SessionOptions& session) {
  const auto ran = RunInChildProcess([&]() -> Result<Json> {
    const Roofline roofline = MeasureRoofline(*session.isa, session.threads);
    return Json{roofline.bytes_per_second, roofline.flops_per_second};
  });
  if (!ran.ok() || !ran->has_value()) return {};
  return {(*ran)->value[0].get<double>(), (*ran)->value[1].get<double>()};
}

}  // namespace manyhead::cli
