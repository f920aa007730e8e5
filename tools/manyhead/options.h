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

// Declares options that subcommands share. Every value is checked while the command line is parsed,
// so a bad one is a usage error (exit code 2) before any file is opened.

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
/// Adds an option for numbers separated by commas. Every whole number may be written as ParseSize
/// reads it: "32k".
Option AddIntList(App app, const std::string& flags, std::vector<std::int64_t>* values,
                  IntRange range, const std::string& help);
Option AddRealList(App app, const std::string& flags, std::vector<double>* values, RealRange range,
                   const std::string& help);
/// Adds an option for one of `choices`; the first is the default.
Option AddChoice(App app, const std::string& flags, std::string* value,
                 const std::vector<std::string>& choices, const std::string& help);

/// Adds an option for some of `choices`, separated by commas.
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
  std::string weight_type;
};

void AddThreads(App app, std::int64_t* threads);
void AddKvTypeAndMath(App app, SessionFlags* flags);
/// Adds --kv-type with several types, and --math with --weights.
void AddKvTypes(App app, std::vector<KvTypes>* types);
void AddMath(App app, SessionFlags* flags);
void AddContext(App app, SessionFlags* flags);
/// Returns a policy, or JSON, or what a file of either holds; rejects anything else as the value of
/// `flag`.
std::string ReadKvPolicy(const std::string& flag, const std::string& text);
/// Adds --kv-policy and --kv-budget.
void AddKvPolicy(App app, SessionFlags* flags);
SessionOptions ToSessionOptions(const SessionFlags& flags);
ModelOptions ToModelOptions(const SessionFlags& flags);

/// The source of a text, and how it is read.
struct TextFlags {
  std::optional<std::string> text;
  std::optional<std::string> file;  ///< "-" = standard input
  bool special = false;
  bool no_bos = false;
};

void AddText(App app, TextFlags* flags);
EncodeOptions ToEncodeOptions(const TextFlags& flags);
/// Returns the bytes of the text; those of standard input if neither a text nor a file was named.
Result<std::string> ReadText(const TextFlags& flags);

/// Reads a file, "-" being standard input. Texts may come from pipes; `settings`, which are small,
/// only from regular files.
/// Errors   kIoError naming the file, also when it holds more than 2 GiB, settings 64 MiB.
Result<std::string> ReadFile(const std::string& path, bool settings = false);
/// A file with the flag that names it.
struct FlagFile {
  const char* flag;
  std::string path;  ///< empty: the flag is not given
};
/// Checks that each of `outputs` can be written and is a separate file: neither the file of
/// `model`, which is mapped while it is in use, nor one of `inputs`, nor another output, under any
/// name.
/// Errors   kInvalidArgument naming both flags and the path; kIoError as CheckOutputFile.
Status CheckOutputs(const std::string& model, const std::vector<FlagFile>& outputs,
                    std::vector<FlagFile> inputs);

}  // namespace manyhead::cli
