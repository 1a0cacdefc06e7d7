// libFuzzer on one of the targets. See -help=1, and CONTRIBUTING.md.
//
//   fuzz --target=NAME [--write-seeds=FOLDER] [libFuzzer's options] [CORPUS..]
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

#include <absl/strings/str_cat.h>
#include <absl/strings/string_view.h>
#include <absl/strings/strip.h>
#include <google/protobuf/stubs/logging.h>

#include "tests/fuzz/fuzz_target.h"

namespace blockmgr::fuzz {
namespace {

const FuzzTarget* target = nullptr;

[[noreturn]] void Die(const std::string& what) {
  std::fprintf(stderr, "fuzz: %s\n", what.c_str());
  std::exit(2);
}

void ChooseTarget(absl::string_view name) {
  std::string names;
  for (const FuzzTarget& known : FuzzTargets()) {
    if (known.name == name) target = &known;
    absl::StrAppend(&names, names.empty() ? "" : ", ", known.name);
  }
  if (target == nullptr) {
    Die(absl::StrCat("--target: expected one of ", names, ", got '", name,
                     "'"));
  }
}

void WriteSeeds(const std::string& folder) {
  int number = 0;
  for (const std::string& seed : target->make_seeds()) {
    const std::string path = absl::StrCat(folder, "/seed_", number++);
    std::ofstream file(path, std::ios::binary);
    if (!(file << seed << std::flush)) Die("cannot write " + path);
  }
}

}  // namespace
}  // namespace blockmgr::fuzz

// libFuzzer leaves arguments with two dashes to us.
extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  using blockmgr::fuzz::target;
  google::protobuf::SetLogHandler(nullptr);
  std::string seeds;
  for (int i = 1; i < *argc; ++i) {
    absl::string_view argument = (*argv)[i];
    if (absl::ConsumePrefix(&argument, "--target=")) {
      blockmgr::fuzz::ChooseTarget(argument);
    } else if (absl::ConsumePrefix(&argument, "--write-seeds=")) {
      seeds = std::string(argument);
    }
  }
  if (target == nullptr) blockmgr::fuzz::ChooseTarget("");
  if (!seeds.empty()) blockmgr::fuzz::WriteSeeds(seeds);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  blockmgr::fuzz::target->run(
      absl::string_view(reinterpret_cast<const char*>(data), size));
  return 0;
}
