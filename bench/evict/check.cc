// blockmgr-evict check: golden vectors.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <absl/status/statusor.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>

#include "bench/evict/commands.h"
#include "bench/evict/golden.h"
#include "bench/evict/golden_check.h"
#include "bench/evict/golden_methods.h"
#include "bench/evict/prefixed.h"
#include "blockmgr/base/status_macros.h"
#include "program/flag_names.h"

namespace blockmgr {
namespace {

namespace fs = std::filesystem;

constexpr char kCheckFooter[] =
    "\nA golden file holds cases of an independent float64 reference: inputs\n"
    "(made from a seed), the positions every head keeps, budgets, scores.\n"
    "The methods file maps their methods to policies (all but lukv_solver,\n"
    "which is LU-KV's solver); without --methods it is methods.txt beside the\n"
    "first file, or one folder up. Prints passed and failed cases per method;\n"
    "exits with 1 if any failed or there were none.\n"
    "\nExamples:\n"
    "  blockmgr-evict check tests/golden/vectors/*.txt\n"
    "  blockmgr-evict check mine.txt --methods tests/golden/methods.txt\n";

struct CheckFlags {
  std::vector<std::string> files;
  std::string methods;
  int64_t max_differences = 10;
};

struct Tally {
  int64_t num_passed = 0;
  int64_t num_failed = 0;
};

absl::StatusOr<std::string> FindMethods(const CheckFlags& flags) {
  if (!flags.methods.empty()) return flags.methods;
  const fs::path folder = fs::path(flags.files.front()).parent_path();
  const fs::path beside = folder / "methods.txt";
  if (fs::exists(beside)) return beside.string();
  const fs::path above = (folder / ".." / "methods.txt").lexically_normal();
  if (fs::exists(above)) return above.string();
  return absl::NotFoundError(absl::StrCat(
      "expected methods.txt beside ", flags.files.front(),
      " or one folder up, or another file by --methods, got none of them"));
}

absl::StatusOr<bool> Check(const CheckFlags& flags) {
  std::vector<std::vector<GoldenCase>> cases;
  for (const std::string& file : flags.files) {
    BM_ASSIGN_OR_RETURN(cases.emplace_back(), ReadGoldenFile(file));
  }
  BM_ASSIGN_OR_RETURN(const std::string path, FindMethods(flags));
  const auto methods = ReadGoldenMethods(path);
  if (!methods.ok()) {
    return flags.methods.empty() ? methods.status()
                                 : Prefixed("--methods", methods.status());
  }
  std::map<std::string, Tally> tallies;
  Tally all;
  for (size_t i = 0; i < cases.size(); ++i) {
    for (const GoldenCase& golden : cases[i]) {
      const absl::Status status = CheckGoldenCase(golden, *methods);
      Tally& tally = tallies[golden.method];
      ++(status.ok() ? tally.num_passed : tally.num_failed);
      ++(status.ok() ? all.num_passed : all.num_failed);
      if (status.ok() || all.num_failed > flags.max_differences) continue;
      std::cerr << absl::StreamFormat("%s: case %s: %s\n", flags.files[i],
                                      golden.name,
                                      std::string(status.message()));
    }
  }
  if (all.num_failed > flags.max_differences) {
    std::cerr << absl::StreamFormat("%d more failing cases are not shown\n",
                                    all.num_failed - flags.max_differences);
  }
  size_t width = 6;  // "method"
  for (const auto& [method, tally] : tallies) {
    width = std::max(width, method.size());
  }
  std::cout << absl::StreamFormat("%-*s %7s %7s\n", width, "method", "passed",
                                  "failed");
  for (const auto& [method, tally] : tallies) {
    std::cout << absl::StreamFormat("%-*s %7d %7d\n", width, method,
                                    tally.num_passed, tally.num_failed);
  }
  std::cout << absl::StreamFormat("%-*s %7d %7d\n", width, "all",
                                  all.num_passed, all.num_failed);
  if (all.num_passed + all.num_failed == 0) {
    return absl::InvalidArgumentError("expected at least one case, got none");
  }
  return all.num_failed == 0;
}

}  // namespace

void AddCheckCommand(CLI::App& app, int* exit_status) {
  CLI::App* check = app.add_subcommand(
      "check", "Compare this library with golden vectors, case by case.");
  check->footer(kCheckFooter);
  auto flags = std::make_shared<CheckFlags>();
  check->add_option("FILE", flags->files, "golden files, such as qkv.txt")
      ->required();
  check
      ->add_option("--methods", flags->methods,
                   "what policy each method of the files is")
      ->type_name("FILE");
  check
      ->add_option("--max-differences", flags->max_differences,
                   "how many failing cases to explain")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  check->callback([flags, exit_status, check] {
    const absl::StatusOr<bool> passed = Check(*flags);
    if (!passed.ok()) {
      PrintError(*check, passed.status().message());
    }
    *exit_status = passed.ok() && *passed ? 0 : 1;
  });
}

}  // namespace blockmgr
