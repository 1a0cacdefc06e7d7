// Rules about the tree: nothing dead, nothing untested.
#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>
#include <absl/strings/string_view.h>
#include <absl/strings/strip.h>

#include "tests/tidy/rules.h"

namespace blockmgr::tidy {
namespace {

// "a/b/c.cc" -> "a/b", and "" at the root.
std::string FolderOf(absl::string_view path) {
  const size_t slash = path.rfind('/');
  return slash == absl::string_view::npos ? ""
                                          : std::string(path.substr(0, slash));
}

bool IsInLibraryFolder(absl::string_view path) {
  constexpr std::array<absl::string_view, 6> kFolders = {
      "blockmgr/", "kernels/", "scheduler/", "engine/", "wire/", "bench/"};
  return std::any_of(kFolders.begin(), kFolders.end(),
                     [path](absl::string_view folder) {
                       return absl::StartsWith(path, folder);
                     });
}

bool IsRunAsProgram(absl::string_view path) {
  return absl::EndsWith(path, "/main.cc") || absl::EndsWith(path, "_main.cc") ||
         absl::EndsWith(path, "_bench.cc");
}

bool ContainsTest(absl::string_view text) {
  constexpr std::array<absl::string_view, 7> kMacros = {
      "\nTEST(",
      "\nTEST_F(",
      "\nTEST_P(",
      "\nTYPED_TEST(",
      "\nTYPED_TEST_P(",
      "\nRC_GTEST_PROP(",
      "\nRC_GTEST_FIXTURE_PROP("};
  return std::any_of(kMacros.begin(), kMacros.end(),
                     [text](absl::string_view macro) {
                       return absl::StrContains(text, macro);
                     });
}

// Everything that the CMakeLists.txt files of the tree name: their words
// outside comments, as paths from the root. Variables that spell a folder are
// resolved.
std::set<std::string> NamesInBuildFiles(const SourceTree& tree) {
  std::set<std::string> names;
  for (const auto& [path, text] : tree) {
    if (!absl::EndsWith(path, "CMakeLists.txt")) continue;
    const std::filesystem::path folder = FolderOf(path);
    for (absl::string_view line : absl::StrSplit(text, '\n')) {
      line = line.substr(0, line.find('#'));
      for (absl::string_view word : absl::StrSplit(
               line, absl::ByAnyChar(" \t();\"$<>:"), absl::SkipEmpty())) {
        // The split has cut "${VARIABLE}/rest" down to "{VARIABLE}/rest".
        const bool from_root =
            absl::ConsumePrefix(&word, "{PROJECT_SOURCE_DIR}/");
        absl::ConsumePrefix(&word, "{CMAKE_CURRENT_SOURCE_DIR}/");
        const std::filesystem::path name{std::string(word)};
        names.insert((from_root ? name : folder / name)
                         .lexically_normal()
                         .generic_string());
      }
    }
  }
  return names;
}

bool StartsAProject(absl::string_view text) {
  return absl::StartsWith(text, "project(") ||
         absl::StrContains(text, "\nproject(");
}

// Where the test of a source may be: under its own folder or, for a folder that
// is no layer of its own (kernels/cpu), under its layer's. A source without a
// header is a part of the one whose name it goes on with (scheduler_audit.cc of
// scheduler.h), and may be tested with it.
std::vector<std::string> MirroredTests(const SourceTree& tree,
                                       absl::string_view path) {
  absl::ConsumeSuffix(&path, ".cc");
  const std::string folder = FolderOf(path);
  std::string name(path.substr(folder.size() + 1));
  std::vector<std::string> tests;
  while (true) {
    for (const std::string& place : {folder, LayerFolder(path)}) {
      tests.push_back(absl::StrCat("tests/", place, "/", name, "_test.cc"));
    }
    const size_t cut = name.rfind('_');
    if (tree.count(absl::StrCat(folder, "/", name, ".h")) > 0 ||
        cut == std::string::npos) {
      return tests;
    }
    name.resize(cut);
  }
}

// "proto/x/y.grpc.pb.h" -> "proto/x/y.proto"; other paths stay.
std::string SourceOfGenerated(std::string path) {
  for (const char* suffix : {".grpc.pb.h", ".pb.h"}) {
    absl::string_view stem = path;
    if (absl::ConsumeSuffix(&stem, suffix)) return absl::StrCat(stem, ".proto");
  }
  return path;
}

}  // namespace

Findings CheckIncludesExist(const SourceTree& tree) {
  Findings findings;
  for (const auto& [path, text] : tree) {
    if (!IsCppFile(path)) continue;
    int64_t line_number = 0;
    for (absl::string_view line : absl::StrSplit(text, '\n')) {
      ++line_number;
      if (!absl::ConsumePrefix(&line, "#include \"")) continue;
      const std::string header(line.substr(0, line.find('"')));
      if (tree.count(SourceOfGenerated(header)) > 0) continue;
      findings.push_back(
          {.path = path,
           .line = line_number,
           .rule = "include path",
           .detail = absl::StrCat("no file ", header, " in the tree")});
    }
  }
  return findings;
}

Findings CheckTestsMirrorSources(
    const SourceTree& tree,
    const std::map<std::string, std::string>& exceptions) {
  Findings findings;
  const auto report = [&](const std::string& path, std::string detail) {
    findings.push_back(
        {.path = path, .rule = "missing test", .detail = std::move(detail)});
  };
  const std::set<std::string> built = NamesInBuildFiles(tree);
  for (const auto& [path, text] : tree) {
    if (!absl::EndsWith(path, ".cc") || !IsInLibraryFolder(path) ||
        IsRunAsProgram(path)) {
      continue;
    }
    std::vector<std::string> tests = MirroredTests(tree, path);
    const auto exists = [&](const std::string& place) {
      return tree.count(place) > 0;
    };
    if (exceptions.count(path) > 0) {
      if (std::any_of(tests.begin(), tests.end(), exists)) {
        report(path, "an exception that is no longer needed");
      }
      tests = {exceptions.at(path)};
    }
    const auto test = std::find_if(tests.begin(), tests.end(), exists);
    if (test == tests.end()) {
      report(path, absl::StrCat("expected ", tests.front()));
    } else if (!ContainsTest(tree.at(*test))) {
      report(path, absl::StrCat(*test, " contains no test"));
    } else if (built.count(*test) == 0) {
      report(path, absl::StrCat("no CMakeLists.txt builds ", *test));
    }
  }
  for (const auto& [path, test] : exceptions) {
    if (tree.count(path) == 0) {
      report(path, "an exception that is no longer needed");
    }
  }
  return findings;
}

Findings CheckFilesAreBuilt(const SourceTree& tree) {
  Findings findings;
  std::set<std::string> built = NamesInBuildFiles(tree);
  for (const auto& [path, text] : tree) {
    // Headers of tests are not installed: being used is enough.
    if (!IsCppFile(path)) continue;
    for (absl::string_view line : absl::StrSplit(text, '\n')) {
      if (absl::ConsumePrefix(&line, "#include \"tests/")) {
        built.insert(absl::StrCat("tests/", line.substr(0, line.find('"'))));
      }
    }
  }
  for (const auto& [path, text] : tree) {
    const bool is_list = absl::EndsWith(path, "CMakeLists.txt");
    if (!is_list && !IsCppFile(path)) continue;
    const std::string folder = FolderOf(path);
    if (is_list && (folder.empty() || StartsAProject(text))) continue;
    if (built.count(is_list ? folder : path) > 0) continue;
    findings.push_back({.path = path,
                        .rule = "dead file",
                        .detail = "no CMakeLists.txt names it"});
  }
  return findings;
}

}  // namespace blockmgr::tidy
