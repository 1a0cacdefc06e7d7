// The rules of the house that a compiler does not know, as functions over a
// file's path and text.
//
// Nothing here touches the disk: tidy_test.cc applies the rules to the source
// tree and rules_test.cc to small bad examples. Paths are relative to the root
// of the repository, with forward slashes. The scanners work on lines, not on a
// syntax tree: they rely on the layout that clang-format gives.
#ifndef TESTS_TIDY_RULES_H_
#define TESTS_TIDY_RULES_H_

#include <cstdint>
#include <map>
#include <ostream>
#include <string>
#include <vector>

#include <absl/strings/string_view.h>

namespace blockmgr::tidy {

// All files the rules look at: path -> text.
using SourceTree = std::map<std::string, std::string>;

// One broken rule, printed as "path:line: rule: detail".
struct Finding {
  std::string path;
  int64_t line = 1;
  std::string rule;
  std::string detail;

  std::string ToString() const;
  friend std::ostream& operator<<(std::ostream& out, const Finding& finding) {
    return out << finding.ToString();
  }
};

using Findings = std::vector<Finding>;

inline constexpr int64_t kMaxColumns = 80;
inline constexpr int64_t kMaxFunctionLines = 70;
inline constexpr int64_t kMaxFileLines = 800;

bool IsHeader(absl::string_view path);      // .h or .cuh
bool IsDeviceCode(absl::string_view path);  // .cu or .cuh
bool IsCppFile(absl::string_view path);     // .h, .cc, .cu or .cuh
bool IsCMakeFile(absl::string_view path);

// The folder of the layer that a file belongs to: "kernels" for
// kernels/cpu/a.cc. Empty outside all layers.
std::string LayerFolder(absl::string_view path);

// Rules about one file. Each is given C++ files only, unless it says otherwise.

// Folders are layers: who may include whom, and who may use which library.
// Device code sees CUDA, std and headers of its own folder only: nvcc is an
// order slower with Abseil, and knows no C++20.
Findings CheckIncludes(absl::string_view path, absl::string_view text);

// At most kMaxColumns characters; lines with a URL, includes and guards may be
// longer, because they cannot be broken.
Findings CheckLineLengths(absl::string_view path, absl::string_view text);

// At most kMaxFileLines lines, and kMaxFunctionLines from a function's first
// line to its closing brace.
Findings CheckSizes(absl::string_view path, absl::string_view text);

// Headers only: a guard that spells the path.
Findings CheckIncludeGuard(absl::string_view path, absl::string_view text);

// Any text file: no work left for later, no test that does not run. Skipping is
// for hardware that is missing: the message says "GPU" or "this machine".
Findings CheckLeftovers(absl::string_view path, absl::string_view text);

// Rules about the whole tree.

// Includes with quotes name a file of the tree, from its root. Generated
// protobuf headers stand for their .proto.
Findings CheckIncludesExist(const SourceTree& tree);

// Every .cc of a library folder has a test in the mirrored place under tests/
// that contains a test and is built. Entry points (main.cc) and benchmarks
// (*_bench.cc) are run as programs. `exceptions`: source -> the test file that
// stands in for the mirrored one.
Findings CheckTestsMirrorSources(
    const SourceTree& tree,
    const std::map<std::string, std::string>& exceptions);

// Every C++ file, and the folder of every CMakeLists.txt, is named by some
// CMakeLists.txt; for a header of tests, being included will do. A
// CMakeLists.txt that calls project() starts a tree of its own.
Findings CheckFilesAreBuilt(const SourceTree& tree);

}  // namespace blockmgr::tidy

#endif  // TESTS_TIDY_RULES_H_
