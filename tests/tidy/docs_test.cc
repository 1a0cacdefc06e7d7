// What README.md, CONTRIBUTING.md and docs/ say that can be checked: links lead
// somewhere, flags and metrics are those of the programs.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include <absl/strings/ascii.h>
#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_replace.h>
#include <absl/strings/str_split.h>
#include <absl/strings/string_view.h>
#include <absl/strings/strip.h>
#include <gtest/gtest.h>

namespace blockmgr::tidy {
namespace {

namespace fs = std::filesystem;

const fs::path& Root() {
  static const auto& root = *new fs::path(BLOCKMGR_SOURCE_ROOT);
  return root;
}

std::string ReadFile(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

// Text by path from the root.
const std::map<std::string, std::string>& Docs() {
  static const auto& docs = *[] {
    auto* texts = new std::map<std::string, std::string>;
    std::vector<fs::path> paths = {Root() / "README.md",
                                   Root() / "CONTRIBUTING.md"};
    for (const auto& entry : fs::directory_iterator(Root() / "docs")) {
      paths.push_back(entry.path());
    }
    for (const fs::path& path : paths) {
      (*texts)[fs::relative(path, Root()).string()] = ReadFile(path);
    }
    return texts;
  }();
  return docs;
}

// The sources of everything that takes flags.
const std::string& Programs() {
  static const auto& text = *[] {
    auto* all = new std::string;
    for (const char* folder : {"bench", "engine", "examples", "program",
                               "python", "scheduler", "scripts", "tests/sim"}) {
      for (const auto& entry :
           fs::recursive_directory_iterator(Root() / folder)) {
        const std::string extension = entry.path().extension().string();
        if (extension == ".cc" || extension == ".h" || extension == ".py" ||
            extension == ".sh") {
          absl::StrAppend(all, ReadFile(entry.path()), "\n");
        }
      }
    }
    return all;
  }();
  return text;
}

std::vector<std::string> Matches(const std::string& text,
                                 const std::regex& pattern) {
  std::vector<std::string> found;
  for (auto match = std::sregex_iterator(text.begin(), text.end(), pattern);
       match != std::sregex_iterator(); ++match) {
    found.push_back((*match)[1].str());
  }
  return found;
}

// The anchors of a text's headings, as code hosts make them.
std::set<std::string> Anchors(const std::string& text) {
  std::set<std::string> anchors;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    if (!absl::StartsWith(line, "#")) continue;
    const absl::string_view title =
        absl::StripAsciiWhitespace(line.substr(line.find_first_not_of('#')));
    std::string anchor;
    for (const char c : title) {
      if (c == ' ') anchor += '-';
      if (absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' ||
          c == '_') {
        anchor += absl::ascii_tolower(static_cast<unsigned char>(c));
      }
    }
    anchors.insert(anchor);
  }
  return anchors;
}

// What the README shows is what the compiled example does.
TEST(DocsTest, PagesShowCodeOfTheExamples) {
  const std::map<std::string, std::string> examples = {
      {"README.md", "examples/embed.cc"},
      {"docs/eviction.md", "examples/value_size_scorer.h"},
      {"docs/kernels.md", "examples/cuda_pool.cc"}};
  for (const auto& [page, source] : examples) {
    const std::string& text = Docs().at(page);
    const std::string example = ReadFile(Root() / source);
    ASSERT_FALSE(example.empty()) << source;
    const std::string begin = "```cpp\n";
    int num_blocks = 0;
    for (size_t at = text.find(begin); at != std::string::npos;
         at = text.find(begin, at)) {
      at += begin.size();
      const std::string code = text.substr(at, text.find("```", at) - at);
      EXPECT_NE(example.find(code), std::string::npos)
          << "not in " << source << ":\n"
          << code;
      ++num_blocks;
    }
    EXPECT_GE(num_blocks, 1) << page;
  }
}

TEST(DocsTest, LinksLeadSomewhere) {
  int num_links = 0;
  for (const auto& [path, text] : Docs()) {
    for (const std::string& link :
         Matches(text, std::regex(R"(\]\(([^)\s]+)\))"))) {
      if (absl::StartsWith(link, "http")) continue;
      ++num_links;
      const std::vector<std::string> parts = absl::StrSplit(link, '#');
      const fs::path target = parts[0].empty()
                                  ? Root() / path
                                  : (Root() / path).parent_path() / parts[0];
      EXPECT_TRUE(fs::exists(target)) << path << ": " << link;
      if (parts.size() > 1) {
        EXPECT_TRUE(Anchors(ReadFile(target)).contains(parts[1]))
            << path << ": no heading for " << link;
      }
    }
  }
  EXPECT_GT(num_links, 40);
}

// A flag stands in the sources as it is, or as the row of an option: the flag
// of "step_timeout_s" is --step-timeout (scheduler/server/option_flags.h).
bool IsFlag(const std::string& flag) {
  if (absl::StrContains(Programs(), flag)) return true;
  absl::string_view name = flag;
  absl::ConsumePrefix(&name, "--");
  absl::ConsumePrefix(&name, "no-");
  const std::string row =
      absl::StrCat("(\"", absl::StrReplaceAll(name, {{"-", "_"}}));
  return absl::StrContains(Programs(), absl::StrCat(row, "\"")) ||
         absl::StrContains(Programs(), absl::StrCat(row, "_s\""));
}

TEST(DocsTest, FlagsAreThoseOfThePrograms) {
  const std::set<std::string> of_others = {
      "--test-dir",     "--preset",           "--install",
      "--strip",        "--benchmark_filter", "--benchmark_repetitions",
      "--worker-urls",  "--policy",           "--port",
      "--scheduler-cls"};
  int num_flags = 0;
  for (const auto& [path, text] : Docs()) {
    for (const std::string& flag :
         Matches(text, std::regex(R"((--[a-z][a-z0-9_-]+))"))) {
      if (of_others.contains(flag)) continue;
      ++num_flags;
      EXPECT_TRUE(IsFlag(flag)) << path << ": " << flag;
    }
  }
  EXPECT_GT(num_flags, 100);
}

TEST(DocsTest, EveryMetricIsExplained) {
  const std::regex name(R"((blockmgr_[a-z_]+))");
  std::set<std::string> exported;
  for (const char* source : {"scheduler/server/metrics_exporter.cc",
                             "scheduler/scheduler_stats.h"}) {
    for (const std::string& metric :
         Matches(ReadFile(Root() / source),
                 std::regex(R"re("(blockmgr_[a-z_]+)")re"))) {
      exported.insert(metric);
    }
  }
  EXPECT_GT(exported.size(), 30u);
  std::set<std::string> explained;
  for (const std::string& metric :
       Matches(Docs().at("docs/operations.md"), name)) {
    explained.insert(absl::EndsWith(metric, "_seconds_bucket")
                         ? metric.substr(0, metric.rfind("_bucket"))
                         : metric);
  }
  EXPECT_EQ(explained, exported);
}

}  // namespace
}  // namespace blockmgr::tidy
