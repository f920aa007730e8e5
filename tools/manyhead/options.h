#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "manyhead/model.h"
#include "manyhead/session.h"
#include "manyhead/status.h"
#include "manyhead/tokenizer.h"
#include "manyhead/types.h"
#include "tools/manyhead/command_line.h"
#include "tools/manyhead/parse.h"

namespace manyhead::cli {

// Options shared by the subcommands. Every value is checked while the command line is parsed, so a
// bad one is a usage error (exit code 2) before any file is opened.

struct IntRange {
  std::int64_t min = 0;
  std::int64_t max = std::numeric_limits<std::int64_t>::max();
};

struct RealRange {
  double min = 0;
  double max = std::numeric_limits<float>::max();
  bool open_min = false;  ///< `min` itself is not allowed
};

Option AddInt(App app, const std::string& flags, std::int64_t* value, IntRange range,
              const std::string& help);
Option AddReal(App app, const std::string& flags, float* value, RealRange range,
               const std::string& help);
/// Numbers separated by commas.
Option AddIntList(App app, const std::string& flags, std::vector<std::int64_t>* values,
                  IntRange range, const std::string& help);
/// The same, "32k" being 32 * 1024; the help shows no default.
Option AddSizeList(App app, const std::string& flags, std::vector<std::int64_t>* values,
                   IntRange range, const std::string& help);
Option AddRealList(App app, const std::string& flags, std::vector<double>* values, RealRange range,
                   const std::string& help);
/// One of `choices`, the first being the default.
Option AddChoice(App app, const std::string& flags, std::string* value,
                 const std::vector<std::string>& choices, const std::string& help);

/// Some of `choices`, separated by commas.
Option AddChoiceList(App app, const std::string& flags, std::vector<std::string>* values,
                     const std::vector<std::string>& choices, const std::string& help);

void AddModel(App app, std::string* model);

struct SessionFlags {
  std::int64_t threads = 0;
  std::int64_t context = 0;
  KvTypes kv_types;
  std::string kv_policy;
  std::int64_t kv_budget_bytes = 0;
  std::string math;
  std::string weights;
};

void AddThreads(App app, std::int64_t* threads);
void AddKvTypeAndMath(App app, SessionFlags* flags);
void AddContext(App app, SessionFlags* flags);
/// --kv-policy and --kv-budget.
void AddKvPolicy(App app, SessionFlags* flags);
SessionOptions ToSessionOptions(const SessionFlags& flags);
ModelOptions ToModelOptions(const SessionFlags& flags);

/// Where a text comes from, and how it is read.
struct TextFlags {
  std::optional<std::string> text;
  std::optional<std::string> file;  ///< "-" = standard input
  bool special = false;
  bool no_bos = false;
};

void AddText(App app, TextFlags* flags);
EncodeOptions ToEncodeOptions(const TextFlags& flags);
/// The bytes of the text; of standard input if neither a text nor a file was named.
Result<std::string> ReadText(const TextFlags& flags);

/// The bytes of a file, "-" being standard input. Texts come from pipes too; `settings`, which are
/// small, only from regular files.
/// Errors   kIoError naming the file, also when it holds more than 2 GiB, settings 64 MiB.
Result<std::string> ReadFile(const std::string& path, bool settings = false);
/// A file and the flag that names it.
struct FlagFile {
  const char* flag;
  std::string path;  ///< empty: the flag is not given
};
/// Whether each of `outputs` can be written, and is a file of its own: not what `model` stands for,
/// which is mapped while it is in use, none of `inputs`, and no other output, by whatever name.
/// Errors   kInvalidArgument naming both flags and the path; kIoError as CheckOutputFile.
Status CheckOutputs(const std::string& model, const std::vector<FlagFile>& outputs,
                    std::vector<FlagFile> inputs);

}  // namespace manyhead::cli
