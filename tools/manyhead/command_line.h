#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

/// Wraps CLI11 in handles: its header takes longer to compile than any subcommand, so only
/// command_line.cc and main.cc include it.

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace manyhead::cli {

/// An option or flag of a subcommand; copies refer to the same option.
class Option {
 public:
  explicit Option(CLI::Option* option) noexcept : option_(option) {}

  /// Sets the name of its value in the help: "FILE".
  Option Type(const std::string& name) const;
  /// Sets the default in the help; empty: none is shown.
  Option Default(const std::string& text) const;
  /// Shows the current value as the default.
  Option ShowDefault() const;
  Option Required() const;
  Option Excludes(const std::string& flag) const;
  Option Excludes(Option other) const;
  Option Needs(Option other) const;
  /// Lets the option appear several times, with one value each.
  Option OneValueEach() const;
  /// Sets a check that returns the error in a value, or nothing.
  Option Check(std::function<std::string(const std::string&)> check) const;
  /// Returns true where the command line has the option.
  bool Given() const;

 private:
  friend class App;
  CLI::Option* option_;
};

/// The part of the command line that belongs to a subcommand; copies refer to the same part.
class App {
 public:
  explicit App(CLI::App& app) noexcept : app_(&app) {}

  App AddSubcommand(const std::string& name, const std::string& help) const;
  /// Adds an option whose value is written to `*value`, which must live until the command line is
  /// parsed.
  Option AddOption(const std::string& flags, std::string* value, const std::string& help) const;
  Option AddOption(const std::string& flags, std::optional<std::string>* value,
                   const std::string& help) const;
  Option AddOption(const std::string& flags, std::vector<std::string>* values,
                   const std::string& help) const;
  /// Adds an option whose value is passed to `take`, which may call RejectUsage.
  Option AddParsed(const std::string& flags, std::function<void(const std::string&)> take,
                   const std::string& help) const;
  Option AddFlag(const std::string& flags, bool* value, const std::string& help) const;
  Option Find(const std::string& flag) const;
  void Remove(Option option) const;

  /// Sets how many subcommands of this one a command line must and may have.
  void RequireSubcommands(std::size_t min, std::size_t max) const;
  /// Sets the text below the help.
  void Footer(const std::string& text) const;
  /// Sets a function that is called after the whole command line has been read; it may call
  /// RejectUsage.
  void OnParsed(std::function<void()> check) const;

  /// Return true where the command line has this subcommand, or the flag.
  bool Parsed() const;
  bool Given(const std::string& flag) const;
  std::string Name() const;

 private:
  CLI::App* app_;
};

/// Ends parsing with a usage error (exit code 2): "NAME: message".
[[noreturn]] void RejectUsage(const std::string& name, const std::string& message);
/// Report two flags that exclude each other, and a flag that is missing, as usage errors.
[[noreturn]] void RejectBoth(const std::string& flag, const std::string& other);
[[noreturn]] void RejectMissing(const std::string& flags);

/// Splits "a,b" into {"a", "b"}; an empty last item is ignored.
std::vector<std::string> SplitAtCommas(const std::string& text);

}  // namespace manyhead::cli
