#pragma once

#include <functional>

#include "tools/manyhead/command_line.h"

namespace manyhead::cli {

/// A subcommand: its options are added to `app` when it is made; `run` does the work and returns
/// the exit code.
struct Command {
  App app;
  std::function<int()> run;
};

Command AddGenerate(App parent);
Command AddTokenize(App parent);
Command AddPerplexity(App parent);
Command AddCalibrate(App parent);
Command AddBench(App parent);
/// The following is a subcommand of `bench`.
Command AddBenchAttention(App bench);
Command AddHeads(App parent);
/// The following are subcommands of `heads`.
Command AddHeadsAblate(App heads);
Command AddHeadsExport(App heads);
Command AddHeadsProfile(App heads);
Command AddHeadsPrune(App heads);
Command AddHeadsReport(App heads);
Command AddHeadsClassify(App heads);
Command AddHeadsCircuits(App heads);
Command AddInfo(App parent);
Command AddMemory(App parent);

}  // namespace manyhead::cli
