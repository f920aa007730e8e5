#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <iostream>
#include <new>
#include <sstream>
#include <string>
#include <vector>

#include "manyhead/isa.h"
#include "manyhead/threads.h"
#include "tools/manyhead/commands.h"
#include "tools/manyhead/descriptor_io.h"
#include "tools/manyhead/interrupt.h"
#include "tools/manyhead/output.h"

namespace manyhead::cli {
namespace {

int UsageError(std::string message, const std::string& command) {
  std::fprintf(stderr, "manyhead: %s (see %s --help)\n", EscapeLine(message).c_str(),
               command.c_str());
  return kExitUsage;
}

/// Returns the word where a subcommand is expected and none has that name; empty if this is not the
/// error.
std::string UnknownSubcommand(const CLI::App& app, int argc, char** argv) {
  const CLI::App* at = &app;
  int next = 1;
  for (; !at->get_subcommands().empty(); ++next) at = at->get_subcommands().front();
  const auto any = [](const CLI::App*) { return true; };
  if (at->get_subcommands(any).empty() || next >= argc || argv[next][0] == '-') return "";
  return argv[next];
}

/// Reads -pg of `bench` as --pg: other programs call it so, though short flags have one letter.
void AcceptPg(std::vector<char*>& words) {
  static char long_name[] = "--pg";
  if (words.size() < 2 || std::strcmp(words[1], "bench") != 0) return;
  for (char*& word : words)
    if (std::strcmp(word, "-pg") == 0) word = long_name;
}

int RunCommandLine(int argc, char** argv) {
  CLI::App app("manyhead runs language models on CPUs, with attention and cache head by head");
  app.name("manyhead");
  app.set_version_flag("--version", "manyhead " MANYHEAD_VERSION);
  app.require_subcommand(1);
  app.footer(
      "Examples:\n"
      "  manyhead generate -p 'the cat sat on the mat. the cat sat'\n"
      "  manyhead generate -m model.gguf -p 'The capital of France is' -n 32 -o json\n"
      "  manyhead bench -m model.gguf -p 512 -n 64 -d 0,4096\n"
      "Exit codes: 0 done (also after Ctrl-C, with what there is), 1 failure, 2 usage.\n"
      "MANYHEAD_ISA=scalar|avx2|avx512|amx lowers the instruction set.\n"
      "MANYHEAD_TEAM=own|openmp says whose threads work.");
  const App root(app);
  const Command commands[] = {AddGenerate(root),  AddTokenize(root), AddPerplexity(root),
                              AddCalibrate(root), AddBench(root),    AddMemory(root),
                              AddHeads(root),     AddInfo(root)};
  std::string name = "manyhead";
  try {
    std::vector<char*> words(argv, argv + argc);
    AcceptPg(words);
    app.parse(argc, words.data());
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success)) {
      std::ostringstream text;
      app.exit(error, text, text);
      Stdout::Write(text.str());
      return Stdout::Finish();
    }
    if (const std::string word = UnknownSubcommand(app, argc, argv); !word.empty())
      return UsageError("no subcommand " + word, name);
    for (const Command& command : commands)
      if (command.app.Parsed()) name += " " + command.app.Name();
    return UsageError(error.what(), name);
  }
  if (const Result<Isa> isa = SelectIsa(); !isa.ok())
    return UsageError(isa.status().message(), name);
  if (const Result<Team> team = SelectTeam(); !team.ok())
    return UsageError(team.status().message(), name);
  for (const Command& command : commands)
    if (command.app.Parsed()) return command.run();
  return kExitUsage;
}

}  // namespace
}  // namespace manyhead::cli

int main(int argc, char** argv) {
  using manyhead::Status;
  using manyhead::StatusCode;
  // Both errors are detected by the writes: a closed pipe, and a file at the process's size limit.
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  manyhead::cli::MakeStderrWait();
  try {
    const int code = manyhead::cli::RunCommandLine(argc, argv);
    std::cout.flush();
    return code;
  } catch (const std::bad_alloc&) {
    return manyhead::cli::Fail(Status(StatusCode::kIoError, "out of memory"));
  } catch (const std::exception& error) {
    return manyhead::cli::Fail(Status(StatusCode::kIoError, error.what()));
  }
}
