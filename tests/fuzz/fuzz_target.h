// What reads bytes from outside, as functions of one input, for a fuzzer.
//
// Two programs run them: fuzz_test, in every build, a few thousand inputs that
// follow from seeds; and fuzz (preset fuzz), libFuzzer, which looks for inputs
// that reach new code for as long as it is let.
#ifndef TESTS_FUZZ_FUZZ_TARGET_H_
#define TESTS_FUZZ_FUZZ_TARGET_H_

#include <string>
#include <vector>

#include <absl/strings/string_view.h>

namespace blockmgr::fuzz {

struct FuzzTarget {
  const char* name;
  // Aborts on what must not be. Every input is allowed.
  void (*run)(absl::string_view input);
  // Inputs to begin with: right ones, that get far.
  std::vector<std::string> (*make_seeds)();
};

const std::vector<FuzzTarget>& FuzzTargets();

// Inputs of several parts have this between them, so that a part may grow.
inline constexpr absl::string_view kPartEnd("\xF5\xF6\xF7\xF8");

// Aborts, with `what` on stderr.
void Require(bool holds, absl::string_view what);

// The targets: a daemon and its peers, a model's file, an engine, files and
// flags.
void RunCommands(absl::string_view input);
std::vector<std::string> MakeCommands();
void RunGguf(absl::string_view input);
std::vector<std::string> MakeGguf();
void RunPlans(absl::string_view input);
std::vector<std::string> MakePlans();
void RunTexts(absl::string_view input);
std::vector<std::string> MakeTexts();

}  // namespace blockmgr::fuzz

#endif  // TESTS_FUZZ_FUZZ_TARGET_H_
