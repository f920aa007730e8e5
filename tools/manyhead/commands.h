#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace manyhead::cli {

/// A subcommand: its options are added to `app` when it is made; `run` does the work and gives the
/// exit code.
struct Command {
  CLI::App* app = nullptr;
  std::function<int()> run;
};

Command AddGenerate(CLI::App& parent);
Command AddTokenize(CLI::App& parent);
Command AddPerplexity(CLI::App& parent);
Command AddCalibrate(CLI::App& parent);
Command AddBench(CLI::App& parent);
/// Below `bench`.
Command AddBenchAttention(CLI::App& bench);
Command AddHeads(CLI::App& parent);
/// Below `heads`.
Command AddHeadsAblate(CLI::App& heads);
Command AddHeadsProfile(CLI::App& heads);
Command AddHeadsPrune(CLI::App& heads);
Command AddHeadsReport(CLI::App& heads);
Command AddHeadsClassify(CLI::App& heads);
Command AddHeadsCircuits(CLI::App& heads);
Command AddInfo(CLI::App& parent);
Command AddMemory(CLI::App& parent);

}  // namespace manyhead::cli
