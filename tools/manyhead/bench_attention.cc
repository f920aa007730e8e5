#include <algorithm>
#include <memory>
#include <new>
#include <numeric>
#include <string>
#include <vector>

#include "manyhead/threads.h"
#include "tools/manyhead/attention_run.h"
#include "tools/manyhead/commands.h"
#include "tools/manyhead/environment.h"
#include "tools/manyhead/interrupt.h"
#include "tools/manyhead/machine.h"
#include "tools/manyhead/memory_measure.h"
#include "tools/manyhead/options.h"
#include "tools/manyhead/output.h"
#include "tools/manyhead/rows.h"
#include "tools/manyhead/throughput.h"

namespace manyhead::cli {
namespace {

struct Flags {
  std::vector<std::int64_t> heads = {32}, kv_heads = {8}, head_dims = {128}, q_lens = {1},
                            kv_lens = {4096}, threads = {0}, windows = {0}, sinks = {0},
                            alibi = {0}, offs = {0};
  std::vector<double> softcaps = {0};
  std::vector<std::string> kv_types = {"f16"};
  std::int64_t repetitions = 9;
  std::string format;
};

/// Calls fn for every combination of the values in `lists`; the last list changes fastest.
template <class Fn>
void ForEachCombination(const std::vector<std::vector<std::int64_t>>& lists, Fn&& fn) {
  std::vector<std::size_t> at(lists.size(), 0);
  for (;;) {
    std::vector<std::int64_t> values;
    for (std::size_t i = 0; i < lists.size(); ++i) values.push_back(lists[i][at[i]]);
    fn(values);
    std::size_t i = lists.size();
    while (i > 0 && ++at[i - 1] == lists[i - 1].size()) at[--i] = 0;
    if (i == 0) return;
  }
}

std::vector<AttentionShape> ShapesOf(const Flags& flags) {
  std::vector<AttentionShape> shapes;
  const auto indices = [](std::size_t count) {
    std::vector<std::int64_t> of(count);
    std::iota(of.begin(), of.end(), 0);
    return of;
  };
  ForEachCombination({flags.heads, flags.kv_heads, flags.head_dims, flags.q_lens, flags.kv_lens,
                      indices(flags.kv_types.size()), flags.windows, indices(flags.softcaps.size()),
                      flags.sinks, flags.alibi, flags.offs, flags.threads},
                     [&](const std::vector<std::int64_t>& x) {
                       AttentionShape shape;
                       shape.heads = x[0];
                       shape.kv_heads = x[1];
                       shape.head_dim = x[2];
                       shape.q_len = x[3];
                       shape.kv_len = x[4];
                       shape.kv_type = *ParseKvType(flags.kv_types[x[5]]);
                       shape.window = x[6];
                       shape.softcap = flags.softcaps[x[7]];
                       shape.sinks = x[8] != 0;
                       shape.alibi = x[9] != 0;
                       shape.off = x[10];
                       shape.threads = x[11];
                       shapes.push_back(shape);
                     });
  return shapes;
}

/// Checks what the ranges of single flags do not cover, and names the flags.
Status CheckShape(const AttentionShape& shape) {
  const auto number = [](std::int64_t n) { return " " + std::to_string(n); };
  std::string message;
  if (shape.heads % shape.kv_heads != 0) {
    message = "--heads" + number(shape.heads) + " is not a multiple of --kv-heads" +
              number(shape.kv_heads);
  } else if (shape.q_len > shape.kv_len) {
    message = "--q-len" + number(shape.q_len) + " exceeds --kv-len" + number(shape.kv_len);
  } else if (shape.off > shape.kv_heads) {
    message = "--off" + number(shape.off) + " exceeds --kv-heads" + number(shape.kv_heads);
  } else {
    return Status();
  }
  return Status(StatusCode::kInvalidArgument, "bench attention: " + message);
}

/// Calls TimeAttention, and reports an error where the machine lacks the memory.
Result<std::optional<AttentionTiming>> Time(const AttentionShape& shape, std::int64_t repetitions) {
  try {
    return TimeAttention(shape, repetitions);
  } catch (const std::bad_alloc&) {
    const double queries = static_cast<double>(shape.heads * shape.head_dim) *
                           static_cast<double>(shape.q_len) * sizeof(float);
    return Status(StatusCode::kIoError,
                  "bench attention: out of memory at --q-len " + std::to_string(shape.q_len) +
                      ", --kv-len " + std::to_string(shape.kv_len) + ": queries and results take " +
                      FormatFixed(2 * queries * 0x1p-20, 0) + " MiB besides the cache");
  }
}

/// Returns the least time that the machine could take divided by the median.
double OfRoofline(const AttentionTiming& timing, const Roofline& machine) {
  return machine.Bound(static_cast<double>(timing.bytes), static_cast<double>(timing.flops)) /
         timing.median_seconds;
}

Json TimingJson(const AttentionTiming& timing, const Roofline& machine) {
  const AttentionShape& shape = timing.shape;
  Json json;
  json["heads"] = shape.heads;
  json["kv_heads"] = shape.kv_heads;
  json["head_dim"] = shape.head_dim;
  json["q_len"] = shape.q_len;
  json["kv_len"] = shape.kv_len;
  json["kv_type"] = KvTypeName(shape.kv_type);
  json["window"] = shape.window;
  json["softcap"] = shape.softcap;
  json["sinks"] = shape.sinks;
  json["alibi"] = shape.alibi;
  json["off"] = shape.off;
  json["threads"] = shape.threads;
  json["isa"] = IsaName(timing.isa);
  json["median_seconds"] = timing.median_seconds;
  const MedianInterval median = ComputeMedian(timing.samples_seconds);
  json["median_low_seconds"] = median.low ? Json(*median.low) : Json();
  json["median_high_seconds"] = median.high ? Json(*median.high) : Json();
  json["median_coverage"] = median.low ? Json(median.coverage) : Json();
  json["min_seconds"] = timing.min_seconds;
  json["samples_seconds"] = timing.samples_seconds;
  json["bytes"] = timing.bytes;
  json["flops"] = timing.flops;
  json["bytes_per_second"] = static_cast<double>(timing.bytes) / timing.median_seconds;
  json["flops_per_second"] = static_cast<double>(timing.flops) / timing.median_seconds;
  json["of_roofline"] = machine.bytes_per_second > 0 ? Json(OfRoofline(timing, machine)) : Json();
  json["machine_bytes_per_second"] = OrNull(machine.bytes_per_second);
  json["machine_flops_per_second"] = OrNull(machine.flops_per_second);
  json["max_abs_error"] = timing.max_abs_error;
  json["cpu_info"] = CpuName();
  return json;
}

std::string Extras(const AttentionShape& shape) {
  std::string text;
  const auto add = [&text](const std::string& extra) {
    text.append(text.empty() ? "" : " ").append(extra);
  };
  if (shape.window > 0) add("window " + std::to_string(shape.window));
  if (shape.softcap > 0) add("softcap " + FormatFixed(shape.softcap, 2));
  if (shape.sinks) add("sinks");
  if (shape.alibi) add("alibi");
  if (shape.off > 0) add("off " + std::to_string(shape.off));
  return text;
}

std::vector<RowColumn> Columns() {
  return {{"heads", true, 5},
          {"D"},
          {"q", false, 5},
          {"kv", false, 6},
          {"type", false, 4},
          {"extras", false, 6},
          {"isa", false, 6},
          {"threads"},
          {"median ms", false, 9},
          {"interval", false, 15},
          {"GB/s", false, 5},
          {"GFLOP/s"},
          {"roofline"},
          {"error", false, 7}};
}

std::vector<std::string> Cells(const AttentionTiming& timing, const Roofline& machine) {
  const AttentionShape& shape = timing.shape;
  const double ms = timing.median_seconds * 1e3;
  const MedianInterval median = ComputeMedian(timing.samples_seconds);
  char error[32];
  std::snprintf(error, sizeof error, "%.1e", timing.max_abs_error);
  return {std::to_string(shape.heads) + "/" + std::to_string(shape.kv_heads),
          std::to_string(shape.head_dim),
          std::to_string(shape.q_len),
          std::to_string(shape.kv_len),
          KvTypeName(shape.kv_type),
          Extras(shape),
          IsaName(timing.isa),
          std::to_string(shape.threads),
          FormatFixed(ms, 3),
          median.low ? FormatFixed(*median.low * 1e3, 3) + "-" + FormatFixed(*median.high * 1e3, 3)
                     : "n/a",
          FormatFixed(static_cast<double>(timing.bytes) / ms * 1e-6, 1),
          FormatFixed(static_cast<double>(timing.flops) / ms * 1e-6, 1),
          machine.bytes_per_second > 0 ? FormatFixed(OfRoofline(timing, machine), 2) : "",
          error};
}

int Run(const Flags& flags) {
  CatchInterrupt();
  const std::vector<AttentionShape> shapes = ShapesOf(flags);
  for (const AttentionShape& shape : shapes) {
    if (const Status status = CheckShape(shape); !status.ok()) return Fail(status);
  }
  SessionOptions limits;
  for (const std::int64_t threads : flags.threads)
    limits.threads =
        std::max(limits.threads, static_cast<int>(threads == 0 ? AllowedCpus() : threads));
  WarnOfThreads(limits.threads);
  const Result<Isa> isa = SelectIsa();
  if (!isa.ok()) return Fail(isa.status());
  limits.isa = *isa;
  const Roofline machine = MeasureRooflineInChildProcess(limits);
  RowWriter writer(flags.format, Columns(), /*at_once=*/true);
  Status status;
  std::int64_t rows = 0;
  for (const AttentionShape& shape : shapes) {
    if (Interrupted().load() || !Stdout::ok()) break;
    Result<std::optional<AttentionTiming>> timing = Time(shape, flags.repetitions);
    if (!timing.ok()) status = timing.status();
    if (!timing.ok() || !timing->has_value()) break;
    writer.Add(TimingJson(**timing, machine), Cells(**timing, machine));
    ++rows;
  }
  if (status.ok() || rows > 0) writer.Finish();
  return status.ok() ? Stdout::Finish() : Fail(status);
}

}  // namespace

Command AddBenchAttention(App bench) {
  const auto flags = std::make_shared<Flags>();
  const App app = bench.AddSubcommand("attention", "Measure one layer's attention over a cache");
  constexpr std::int64_t kMaxTokens = 1 << 24;
  AddIntList(app, "--heads", &flags->heads, {1, 65536}, "Query heads");
  AddIntList(app, "--kv-heads", &flags->kv_heads, {1, 65536}, "Key/value heads");
  AddIntList(app, "--head-dim", &flags->head_dims, {1, 1024}, "Elements of a head");
  AddIntList(app, "--q-len", &flags->q_lens, {1, kMaxTokens}, "Query tokens, the last of kv-len");
  AddIntList(app, "--kv-len", &flags->kv_lens, {1, kMaxTokens}, "Tokens in the cache");
  AddChoiceList(app, "--kv-type", &flags->kv_types, {"f16", "f32", "bf16", "int8", "int4"},
                "Numbers of the cache");
  AddIntList(app, "--window", &flags->windows, {0, kMaxTokens}, "Tokens a query sees; 0 = all");
  AddRealList(app, "--softcap", &flags->softcaps, {0, 1 << 20}, "Soft-cap of the logits; 0 = none");
  AddIntList(app, "--sinks", &flags->sinks, {0, 1}, "1 = with a sink logit per head");
  AddIntList(app, "--alibi", &flags->alibi, {0, 1}, "1 = with ALiBi");
  AddIntList(app, "--off", &flags->offs, {0, 65536}, "KV heads that are off: nothing is read");
  AddIntList(app, "-t,--threads", &flags->threads, {0, kMaxThreads},
             "Thread counts; 0 = the CPUs this process may use");
  AddInt(app, "-r,--repetitions", &flags->repetitions, {1, 1 << 20}, "Counted runs of each");
  AddChoice(app, "-o,--output", &flags->format, RowFormats(), "How to print");
  app.Footer(
      "One row per combination of the lists. roofline is the least time that the memory bandwidth\n"
      "and the FMA peak, measured once before the runs with the most threads, allow, over the "
      "median;\n"
      "a cache that fits into the CPU's can be above 1. interval holds the true median with a\n"
      "probability of 95 %, or of fewer than 6 runs is their range. error compares a sample of "
      "rows with double precision.\n"
      "Examples:\n"
      "  manyhead bench attention --heads 32 --kv-heads 8,32 --kv-len 4096 --kv-type f16,int8 -t "
      "2");
  return {app, [flags] { return Run(*flags); }};
}

}  // namespace manyhead::cli
