// Rules about the text of one file.
#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include <absl/strings/ascii.h>
#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>
#include <absl/strings/string_view.h>
#include <absl/strings/strip.h>

#include "tests/tidy/rules.h"

namespace blockmgr::tidy {
namespace {

std::vector<absl::string_view> Lines(absl::string_view text) {
  absl::ConsumeSuffix(&text, "\n");
  return absl::StrSplit(text, '\n');
}

bool IsWordCharacter(char c) { return absl::ascii_isalnum(c) || c == '_'; }

// Whether `word` occurs in `line`, not as a part of a longer word.
bool ContainsWord(absl::string_view line, absl::string_view word) {
  for (size_t at = line.find(word); at != absl::string_view::npos;
       at = line.find(word, at + 1)) {
    const size_t end = at + word.size();
    if ((at == 0 || !IsWordCharacter(line[at - 1])) &&
        (end == line.size() || !IsWordCharacter(line[end]))) {
      return true;
    }
  }
  return false;
}

// Characters, not bytes, of UTF-8 text.
int64_t CountCharacters(absl::string_view line) {
  return std::count_if(line.begin(), line.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  });
}

int64_t Indent(absl::string_view line) {
  return static_cast<int64_t>(line.size() -
                              absl::StripLeadingAsciiWhitespace(line).size());
}

// Whether `line` can open a function at this indent: not blank, a macro, a
// comment, a label or the end of something else.
bool CanOpenFunction(absl::string_view line, int64_t indent) {
  if (Indent(line) != indent || Indent(line) == int64_t(line.size())) {
    return false;
  }
  const absl::string_view code = line.substr(indent);
  return code[0] != '#' && code[0] != '}' && code[0] != ')' &&
         !absl::StartsWith(code, "//");
}

// Functions at namespace scope close at column 0, those inside a class or an
// indented scope at column 2.
Findings CheckFunctionLengths(absl::string_view path,
                              const std::vector<absl::string_view>& lines) {
  Findings findings;
  constexpr std::array<absl::string_view, 2> kClosings = {"}", "  }"};
  for (size_t end = 0; end < lines.size(); ++end) {
    for (const absl::string_view closing : kClosings) {
      if (lines[end] != closing) continue;
      size_t begin = end;
      while (begin > 0 && !CanOpenFunction(lines[begin], Indent(closing))) {
        --begin;
      }
      const auto length = static_cast<int64_t>(end - begin + 1);
      if (length <= kMaxFunctionLines) continue;
      findings.push_back({.path = std::string(path),
                          .line = static_cast<int64_t>(begin) + 1,
                          .rule = "function length",
                          .detail = absl::StrCat("at most ", kMaxFunctionLines,
                                                 " lines, this has ", length)});
    }
  }
  return findings;
}

std::string GuardOf(absl::string_view path) {
  std::string guard = absl::StrCat(path, "_");
  for (char& c : guard) c = IsWordCharacter(c) ? absl::ascii_toupper(c) : '_';
  return guard;
}

// Spelled in two parts, for this file obeys its own rules.
const std::array<std::string, 4>& LeftoverWords() {
  static const auto& words = *new std::array<std::string, 4>{
      absl::StrCat("TO", "DO"), absl::StrCat("FIX", "ME"),
      absl::StrCat("X", "XX"), absl::StrCat("HA", "CK")};
  return words;
}

// The rule that a line breaks, or "". `next` is the line after it.
std::string LeftoverIn(absl::string_view line, absl::string_view next,
                       bool is_cmake) {
  for (const std::string& word : LeftoverWords()) {
    if (ContainsWord(line, word)) return absl::StrCat(word, " left behind");
  }
  if (absl::StrContains(line, absl::StrCat("DISABLED", "_"))) {
    return "a disabled test";
  }
  const absl::string_view code = absl::StripLeadingAsciiWhitespace(line);
  if (code == absl::StrCat("#if", " 0")) return "code cut out by #if";
  if (absl::StartsWith(code, absl::StrCat("GTEST", "_SKIP"))) {
    const std::string statement = absl::StrCat(line, next);
    return absl::StrContains(statement, "GPU") ||
                   absl::StrContains(statement, "this machine")
               ? ""
               : "a test skipped for another reason than a missing GPU or "
                 "instruction set";
  }
  const char* comment = is_cmake ? "#" : "//";
  if (!absl::StartsWith(code, comment)) return "";
  const absl::string_view commented = absl::StripAsciiWhitespace(
      code.substr(absl::string_view(comment).size()));
  for (const char* start : {"TEST(", "TEST_F(", "TEST_P(", "TYPED_TEST(",
                            "RC_GTEST_PROP(", "add_test(", "bm_test_suite(",
                            "gtest_discover_tests(", "add_subdirectory("}) {
    // A line of prose or of documentation goes on after the arguments.
    if (absl::StartsWith(commented, start) &&
        !absl::StrContains(commented, "):")) {
      return "a test commented out";
    }
  }
  return "";
}

}  // namespace

std::string Finding::ToString() const {
  return absl::StrCat(path, ":", line, ": ", rule, ": ", detail);
}

bool IsHeader(absl::string_view path) {
  return absl::EndsWith(path, ".h") || absl::EndsWith(path, ".cuh");
}

bool IsDeviceCode(absl::string_view path) {
  return absl::EndsWith(path, ".cu") || absl::EndsWith(path, ".cuh");
}

bool IsCppFile(absl::string_view path) {
  return IsHeader(path) || absl::EndsWith(path, ".cc") || IsDeviceCode(path);
}

bool IsCMakeFile(absl::string_view path) {
  return absl::EndsWith(path, "CMakeLists.txt") ||
         absl::EndsWith(path, ".cmake");
}

Findings CheckLineLengths(absl::string_view path, absl::string_view text) {
  Findings findings;
  int64_t line_number = 0;
  for (const absl::string_view line : Lines(text)) {
    ++line_number;
    if (absl::StrContains(line, "://") || absl::StartsWith(line, "#include") ||
        absl::StrContains(line, GuardOf(path))) {
      continue;
    }
    const int64_t columns = CountCharacters(line);
    if (columns <= kMaxColumns) continue;
    findings.push_back(
        {.path = std::string(path),
         .line = line_number,
         .rule = "line length",
         .detail = absl::StrCat("at most ", kMaxColumns, " columns, this has ",
                                columns)});
  }
  return findings;
}

Findings CheckSizes(absl::string_view path, absl::string_view text) {
  const std::vector<absl::string_view> lines = Lines(text);
  Findings findings = CheckFunctionLengths(path, lines);
  if (static_cast<int64_t>(lines.size()) > kMaxFileLines) {
    findings.push_back(
        {.path = std::string(path),
         .line = kMaxFileLines + 1,
         .rule = "file length",
         .detail = absl::StrCat("at most ", kMaxFileLines, " lines, this has ",
                                lines.size())});
  }
  return findings;
}

Findings CheckIncludeGuard(absl::string_view path, absl::string_view text) {
  const std::string guard = GuardOf(path);
  const std::vector<absl::string_view> lines = Lines(text);
  const auto opening = std::find_if(
      lines.begin(), lines.end(),
      [](absl::string_view line) { return absl::StartsWith(line, "#"); });
  if (opening != lines.end() && *opening == absl::StrCat("#ifndef ", guard) &&
      opening + 1 != lines.end() &&
      opening[1] == absl::StrCat("#define ", guard) &&
      lines.back() == absl::StrCat("#endif  // ", guard)) {
    return {};
  }
  return {{.path = std::string(path),
           .line = opening == lines.end() ? 1 : opening - lines.begin() + 1,
           .rule = "include guard",
           .detail = absl::StrCat("expected #ifndef, #define and #endif  // ",
                                  guard)}};
}

Findings CheckLeftovers(absl::string_view path, absl::string_view text) {
  Findings findings;
  const std::vector<absl::string_view> lines = Lines(text);
  for (size_t i = 0; i < lines.size(); ++i) {
    const absl::string_view next = i + 1 < lines.size() ? lines[i + 1] : "";
    std::string leftover = LeftoverIn(lines[i], next, IsCMakeFile(path));
    if (leftover.empty()) continue;
    findings.push_back({.path = std::string(path),
                        .line = static_cast<int64_t>(i) + 1,
                        .rule = "leftover",
                        .detail = std::move(leftover)});
  }
  return findings;
}

}  // namespace blockmgr::tidy
