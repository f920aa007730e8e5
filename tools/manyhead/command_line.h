#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

/// CLI11 behind handles of our own: its header takes longer to compile than any subcommand, so that
/// only command_line.cc and main.cc include it.

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace manyhead::cli {

/// An option or flag of a subcommand, copied freely.
class Option {
 public:
  explicit Option(CLI::Option* option) noexcept : option_(option) {}

  /// The name of its value in the help: "FILE".
  Option Type(const std::string& name) const;
  /// The default in the help; empty: none is shown.
  Option Default(const std::string& text) const;
  /// Shows the value it has now as the default.
  Option ShowDefault() const;
  Option Required() const;
  Option Excludes(const std::string& flag) const;
  Option Excludes(Option other) const;
  Option Needs(Option other) const;
  /// Takes one value each time it is given, though it may be given several times.
  Option OneValueEach() const;
  /// `check` returns what is wrong with a value, or nothing.
  Option Check(std::function<std::string(const std::string&)> check) const;
  /// Whether the command line has it.
  bool Given() const;

 private:
  friend class App;
  CLI::Option* option_;
};

/// A subcommand's part of the command line, copied freely.
class App {
 public:
  explicit App(CLI::App& app) noexcept : app_(&app) {}

  App AddSubcommand(const std::string& name, const std::string& help) const;
  /// Values go to `*value`, which lives until the command line is parsed.
  Option AddOption(const std::string& flags, std::string* value, const std::string& help) const;
  Option AddOption(const std::string& flags, std::optional<std::string>* value,
                   const std::string& help) const;
  Option AddOption(const std::string& flags, std::vector<std::string>* values,
                   const std::string& help) const;
  /// `take` gets the text of the value, and may call RejectUsage.
  Option AddParsed(const std::string& flags, std::function<void(const std::string&)> take,
                   const std::string& help) const;
  Option AddFlag(const std::string& flags, bool* value, const std::string& help) const;
  Option Find(const std::string& flag) const;
  void Remove(Option option) const;

  /// How many subcommands of this one a command line must and may have.
  void RequireSubcommands(std::size_t min, std::size_t max) const;
  /// Text below the help.
  void Footer(const std::string& text) const;
  /// Called when the whole command line has been read, and may call RejectUsage.
  void OnParsed(std::function<void()> check) const;

  /// Whether the command line has this subcommand, and whether it has the flag.
  bool Parsed() const;
  bool Given(const std::string& flag) const;
  std::string Name() const;

 private:
  CLI::App* app_;
};

/// Ends parsing with a usage error (exit code 2): "NAME: message".
[[noreturn]] void RejectUsage(const std::string& name, const std::string& message);
/// The usage errors of two flags that exclude each other, and of one that is missing.
[[noreturn]] void RejectBoth(const std::string& flag, const std::string& other);
[[noreturn]] void RejectMissing(const std::string& flags);

/// "a,b" -> {"a", "b"}; the last item, if empty, does not count.
std::vector<std::string> SplitAtCommas(const std::string& text);

}  // namespace manyhead::cli
