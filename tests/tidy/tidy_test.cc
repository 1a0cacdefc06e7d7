// Applies the rules of rules.h to every file of the source tree.
#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>
#include <absl/strings/string_view.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/testing/plant_text.h"
#include "tests/tidy/rules.h"

namespace blockmgr::tidy {
namespace {

namespace fs = std::filesystem;

constexpr char kSourceRoot[] = BLOCKMGR_SOURCE_ROOT;

// Sources whose test is not the file the mirrored path would name, and the test
// that stands in.
const std::map<std::string, std::string>& TestExceptions() {
  static const auto& exceptions = *new std::map<std::string, std::string>{
      // Flags of a model, tested with the model.
      {"engine/reference/sim_flags.cc",
       "tests/engine/reference/sim_engine_test.cc"},
      // The inner loops of a class, tested through it.
      {"engine/reference/packed_products.cc",
       "tests/engine/reference/packed_matrix_test.cc"},
      // Compared with dense tensors, method by method.
      {"engine/reference/tiny_scoring.cc", "tests/e2e/methods_test.cc"},
      // Steps of a selection, tested through its whole contract.
      {"blockmgr/eviction/entries.cc",
       "tests/blockmgr/eviction/select_test.cc"},
      {"blockmgr/eviction/protection.cc",
       "tests/blockmgr/eviction/select_test.cc"},
      // The bytes behind a backend, tested through it.
      {"kernels/cpu/kv_arena.cc", "tests/kernels/cpu_backend_test.cc"},
      // The common part of scorers, tested through them.
      {"kernels/cuda/host/device_score_call.cc",
       "tests/kernels/cuda/host/device_scorer_test.cc"},
      // What a step decides, tested with deciding.
      {"scheduler/step_decision.cc", "tests/scheduler/step_planner_test.cc"},
      // Services are tested over a real channel, as parts of one server.
      {"scheduler/server/admin_service.cc",
       "tests/scheduler/server/server_test.cc"},
      {"scheduler/server/engine_service.cc",
       "tests/scheduler/server/server_test.cc"},
      {"scheduler/server/listen_address.cc",
       "tests/scheduler/server/server_test.cc"},
      {"scheduler/server/request_service.cc",
       "tests/scheduler/server/server_test.cc"},
  };
  return exceptions;
}

// Paths git knows or would add; empty without git or outside a work tree.
std::vector<std::string> ListByGit() {
  const std::string command =
      absl::StrCat("git -C '", kSourceRoot,
                   "' ls-files --cached --others --exclude-standard"
                   " 2>/dev/null");
  std::FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return {};
  std::string output;
  std::array<char, 4096> buffer;
  while (const size_t count =
             std::fread(buffer.data(), 1, buffer.size(), pipe)) {
    output.append(buffer.data(), count);
  }
  if (pclose(pipe) != 0) return {};
  return absl::StrSplit(output, '\n', absl::SkipEmpty());
}

// For a release tarball: all files but hidden and build folders.
std::vector<std::string> ListByWalking() {
  std::vector<std::string> paths;
  for (auto entry = fs::recursive_directory_iterator(kSourceRoot);
       entry != fs::recursive_directory_iterator(); ++entry) {
    const std::string name = entry->path().filename().string();
    if (entry->is_directory() &&
        (name[0] == '.' || name == "build" || name == "results")) {
      entry.disable_recursion_pending();
    } else if (entry->is_regular_file()) {
      paths.push_back(fs::relative(entry->path(), kSourceRoot).string());
    }
  }
  return paths;
}

bool IsOurText(absl::string_view path) {
  return IsCppFile(path) || IsCMakeFile(path) ||
         absl::EndsWith(path, ".proto") || absl::EndsWith(path, ".cu") ||
         absl::EndsWith(path, ".cuh") || absl::EndsWith(path, ".sh") ||
         absl::EndsWith(path, ".py") || absl::StartsWith(path, ".ci/");
}

const SourceTree& Tree() {
  static const SourceTree& tree = *[] {
    auto* loaded = new SourceTree;
    std::vector<std::string> paths = ListByGit();
    if (paths.empty()) paths = ListByWalking();
    for (const std::string& path : paths) {
      if (!IsOurText(path)) continue;
      // Listed, but removed from the disk: not there any more.
      std::ifstream file(fs::path(kSourceRoot) / path, std::ios::binary);
      if (!file) continue;
      (*loaded)[path] = std::string(std::istreambuf_iterator<char>(file), {});
    }
    return loaded;
  }();
  return tree;
}

std::string Explain(const Findings& findings) {
  return absl::StrCat(
      "\n", absl::StrJoin(findings, "\n",
                          [](std::string* out, const Finding& finding) {
                            absl::StrAppend(out, finding.ToString());
                          }));
}

using FileRule = Findings (*)(absl::string_view, absl::string_view);

// The findings of a rule in all files for which `applies` holds.
Findings Check(FileRule rule, bool (*applies)(absl::string_view)) {
  Findings all;
  for (const auto& [path, text] : Tree()) {
    if (!applies(path)) continue;
    const Findings findings = rule(path, text);
    all.insert(all.end(), findings.begin(), findings.end());
  }
  return all;
}

#define EXPECT_NO_FINDINGS(expression)                    \
  do {                                                    \
    const Findings findings_ = (expression);              \
    EXPECT_TRUE(findings_.empty()) << Explain(findings_); \
  } while (false)

// Without this, a wrong root would let every other test pass.
TEST(TidyTest, SeesTheSourceTree) {
  for (const char* path :
       {"CMakeLists.txt", "blockmgr/base/ids.h", "tests/tidy/tidy_test.cc"}) {
    EXPECT_EQ(Tree().count(path), 1u) << path << " in " << kSourceRoot;
  }
}

TEST(TidyTest, FoldersAreLayers) {
  EXPECT_NO_FINDINGS(Check(CheckIncludes, IsCppFile));
}

TEST(TidyTest, IncludesNameFilesFromTheRoot) {
  EXPECT_NO_FINDINGS(CheckIncludesExist(Tree()));
}

TEST(TidyTest, LinesFitIntoTheColumns) {
  EXPECT_NO_FINDINGS(Check(CheckLineLengths, IsCppFile));
}

TEST(TidyTest, FilesAndFunctionsAreShort) {
  EXPECT_NO_FINDINGS(Check(CheckSizes, IsCppFile));
}

TEST(TidyTest, IncludeGuardsSpellThePath) {
  EXPECT_NO_FINDINGS(Check(CheckIncludeGuard, IsHeader));
}

TEST(TidyTest, NothingIsLeftForLater) {
  EXPECT_NO_FINDINGS(
      Check(CheckLeftovers, [](absl::string_view) { return true; }));
}

TEST(TidyTest, EverySourceHasALiveTest) {
  EXPECT_NO_FINDINGS(CheckTestsMirrorSources(Tree(), TestExceptions()));
}

TEST(TidyTest, EveryFileIsBuilt) {
  EXPECT_NO_FINDINGS(CheckFilesAreBuilt(Tree()));
}

// Returns the names of the plants in the file `path` whose text is not found
// exactly once in the sources that `planted` chooses. Write such a bug anew.
std::vector<std::string> PlantsWithoutPlace(const char* path,
                                            bool (*planted)(const fs::path&)) {
  const auto plants = ReadPlants((fs::path(kSourceRoot) / path).string());
  EXPECT_TRUE(plants.ok()) << plants.status();
  if (!plants.ok()) return {};
  EXPECT_FALSE(plants->empty());
  SourceTree sources;
  for (const auto& [source, text] : Tree()) {
    if (planted(source)) sources[source] = text;
  }
  std::vector<std::string> missing;
  GraftPlants(*plants, &sources, &missing);
  return missing;
}

// Tests with planted bugs are built at night only.
TEST(TidyTest, EveryPlantedBugHasItsPlace) {
  EXPECT_THAT(PlantsWithoutPlace(
                  "tests/sim/plants.txt",
                  [](const fs::path& path) {
                    const fs::path folder = path.parent_path();
                    return path.extension() == ".cc" &&
                           (folder == "blockmgr" || folder == "scheduler" ||
                            path == "blockmgr/eviction/compaction_moves.cc");
                  }),
              ::testing::IsEmpty());
  EXPECT_THAT(PlantsWithoutPlace("tests/kernels/cuda/plants/plants.txt",
                                 [](const fs::path& path) {
                                   return path.extension() == ".cuh" &&
                                          *path.begin() == "kernels";
                                 }),
              ::testing::IsEmpty());
}

}  // namespace
}  // namespace blockmgr::tidy
