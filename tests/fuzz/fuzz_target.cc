#include "tests/fuzz/fuzz_target.h"

#include <cstdio>
#include <cstdlib>

namespace blockmgr::fuzz {

const std::vector<FuzzTarget>& FuzzTargets() {
  static const auto* const targets = new std::vector<FuzzTarget>{
      {.name = "commands", .run = RunCommands, .make_seeds = MakeCommands},
      {.name = "gguf", .run = RunGguf, .make_seeds = MakeGguf},
      {.name = "plans", .run = RunPlans, .make_seeds = MakePlans},
      {.name = "texts", .run = RunTexts, .make_seeds = MakeTexts}};
  return *targets;
}

void Require(bool holds, absl::string_view what) {
  if (holds) return;
  std::fprintf(stderr, "fuzz: %.*s\n", static_cast<int>(what.size()),
               what.data());
  std::abort();
}

}  // namespace blockmgr::fuzz
