#include "tools/manyhead/command_line.h"

#include <CLI/CLI.hpp>
#include <utility>

namespace manyhead::cli {

Option Option::Type(const std::string& name) const {
  option_->type_name(name);
  return *this;
}

Option Option::Default(const std::string& text) const {
  option_->default_str(text);
  return *this;
}

Option Option::ShowDefault() const {
  option_->capture_default_str();
  return *this;
}

Option Option::Required() const {
  option_->required();
  return *this;
}

Option Option::Excludes(const std::string& flag) const {
  option_->excludes(flag);
  return *this;
}

Option Option::Excludes(Option other) const {
  option_->excludes(other.option_);
  return *this;
}

Option Option::Needs(Option other) const {
  option_->needs(other.option_);
  return *this;
}

Option Option::OneValueEach() const {
  option_->allow_extra_args(false);
  return *this;
}

Option Option::Check(std::function<std::string(const std::string&)> check) const {
  option_->check(std::move(check));
  return *this;
}

bool Option::Given() const { return option_->count() > 0; }

App App::AddSubcommand(const std::string& name, const std::string& help) const {
  return App(*app_->add_subcommand(name, help));
}

Option App::AddOption(const std::string& flags, std::string* value, const std::string& help) const {
  return Option(app_->add_option(flags, *value, help));
}

Option App::AddOption(const std::string& flags, std::optional<std::string>* value,
                      const std::string& help) const {
  return Option(app_->add_option(flags, *value, help));
}

Option App::AddOption(const std::string& flags, std::vector<std::string>* values,
                      const std::string& help) const {
  return Option(app_->add_option(flags, *values, help));
}

Option App::AddParsed(const std::string& flags, std::function<void(const std::string&)> take,
                      const std::string& help) const {
  return Option(app_->add_option_function<std::string>(flags, std::move(take), help));
}

Option App::AddFlag(const std::string& flags, bool* value, const std::string& help) const {
  return Option(app_->add_flag(flags, *value, help));
}

Option App::Find(const std::string& flag) const { return Option(app_->get_option(flag)); }

void App::Remove(Option option) const { app_->remove_option(option.option_); }

void App::RequireSubcommands(std::size_t min, std::size_t max) const {
  app_->require_subcommand(min, max);
}

void App::Footer(const std::string& text) const { app_->footer(text); }

void App::OnParsed(std::function<void()> check) const { app_->callback(std::move(check)); }

bool App::Parsed() const { return app_->parsed(); }

bool App::Given(const std::string& flag) const { return app_->count(flag) > 0; }

std::string App::Name() const { return app_->get_name(); }

void RejectUsage(const std::string& name, const std::string& message) {
  throw CLI::ValidationError(name, message);
}

void RejectBoth(const std::string& flag, const std::string& other) {
  throw CLI::ExcludesError(flag, other);
}

void RejectMissing(const std::string& flags) { throw CLI::RequiredError(flags); }

std::vector<std::string> SplitAtCommas(const std::string& text) {
  return CLI::detail::split(text, ',');
}

}  // namespace manyhead::cli
