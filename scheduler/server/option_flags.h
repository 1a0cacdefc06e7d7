// OptionFlags: a visitor of the options in scheduler_options.h and server.h
// that makes flags of them.
#ifndef SCHEDULER_SERVER_OPTION_FLAGS_H_
#define SCHEDULER_SERVER_OPTION_FLAGS_H_

#include <string>
#include <type_traits>
#include <utility>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_replace.h>
#include <absl/strings/string_view.h>
#include <absl/strings/strip.h>
#include <CLI/CLI.hpp>

#include "scheduler/server/flag_checks.h"

namespace blockmgr {

// Adds a flag for every option it visits, under the heading `group`. The flag
// of max_num_seqs is --max-num-seqs, the one of step_timeout_s is
// --step-timeout. Defaults are the values of the options, which are borrowed
// and must outlive the parsing. The parser checks the names of choices.
// SchedulerOptions::Validate checks ranges later.
class OptionFlags {
 public:
  OptionFlags(CLI::App* app, std::string group)
      : app_(app), group_(std::move(group)) {}

  template <typename T>
  void Number(absl::string_view name, T& value, std::type_identity_t<T> /*min*/,
              std::type_identity_t<T> /*max*/, const char* help) {
    app_->add_option(FlagOf(name), value, help)
        ->check(AnyNumber<T>())
        ->capture_default_str()
        ->group(group_);
  }
  void Fraction(absl::string_view name, double& value, const char* help) {
    Number(name, value, 0, 1, help);
  }
  // An option that is on by default can be switched off by --no-NAME.
  void Bool(absl::string_view name, bool& value, const std::string& help) {
    const std::string flag = FlagOf(name);
    app_->add_flag(value ? absl::StrCat(flag, ",!--no-", flag.substr(2)) : flag,
                   value, value ? absl::StrCat(help, " (on by default)") : help)
        ->group(group_);
  }
  template <typename Enum>
  void Choice(absl::string_view name, Enum& value, const char* help) {
    app_->add_option(FlagOf(name), value, help)
        ->transform(NameIn<Enum>())
        ->default_str(std::string(EnumName(value)))
        ->group(group_);
  }

 private:
  static std::string FlagOf(absl::string_view name) {
    const absl::string_view without_unit = absl::StripSuffix(name, "_s");
    return absl::StrCat("--", absl::StrReplaceAll(without_unit, {{"_", "-"}}));
  }

  CLI::App* const app_;
  const std::string group_;
};

}  // namespace blockmgr

#endif  // SCHEDULER_SERVER_OPTION_FLAGS_H_
