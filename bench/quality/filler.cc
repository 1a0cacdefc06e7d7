#include "bench/quality/filler.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <system_error>

#include <absl/status/status.h>
#include <absl/strings/ascii.h>
#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_split.h>

#include "blockmgr/base/invalid.h"
#include "blockmgr/base/read_file.h"

namespace blockmgr {
namespace {

constexpr size_t kMinParagraphBytes = 160;
constexpr size_t kMaxParagraphBytes = 2000;
constexpr double kMinShareOfLetters = 0.93;
constexpr size_t kMaxFileBytes = size_t{1} << 18;
constexpr size_t kMaxFiles = 400;
// With fewer, prompts would be alike.
constexpr size_t kMinParagraphs = 20;

bool IsLetter(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return absl::ascii_isalpha(byte) || c == ' ' || c == ',' || c == '.';
}

bool IsProse(absl::string_view paragraph) {
  if (paragraph.size() < kMinParagraphBytes ||
      paragraph.size() > kMaxParagraphBytes || paragraph.back() != '.' ||
      !absl::ascii_isupper(static_cast<unsigned char>(paragraph.front()))) {
    return false;
  }
  const auto num_letters =
      static_cast<double>(std::ranges::count_if(paragraph, IsLetter));
  return num_letters >=
         kMinShareOfLetters * static_cast<double>(paragraph.size());
}

// Returns where the first sentence of the text ends.
size_t EndOfSentence(absl::string_view text) {
  for (size_t i = 0; i + 2 < text.size(); ++i) {
    if (absl::StartsWith(text.substr(i), ". ") &&
        absl::ascii_isupper(static_cast<unsigned char>(text[i + 2]))) {
      return i + 1;
    }
  }
  return text.size();
}

// FNV-1a, 64 bits.
uint64_t HashOf(const std::vector<std::string>& sentences) {
  uint64_t hash = 14695981039346656037u;
  for (const std::string& sentence : sentences) {
    for (const char c : sentence) {
      hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
    }
  }
  return hash;
}

bool IsText(const std::filesystem::path& path) {
  const std::string name = path.filename().string();
  return name == "README" || path.extension() == ".txt" ||
         path.extension() == ".md";
}

}  // namespace

void Filler::Add(absl::string_view text) {
  std::vector<std::string> found;
  std::string paragraph;
  bool is_flush = true;
  const auto end_paragraph = [&] {
    if (is_flush && IsProse(paragraph)) found.push_back(paragraph);
    paragraph.clear();
    is_flush = true;
  };
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    const absl::string_view words = absl::StripAsciiWhitespace(line);
    if (words.empty()) {
      end_paragraph();
      continue;
    }
    is_flush = is_flush && line.front() == words.front();
    absl::StrAppend(&paragraph, paragraph.empty() ? "" : " ", words);
  }
  end_paragraph();
  for (const std::string& prose : found) {
    paragraphs.push_back(sentences.size());
    absl::string_view rest = prose;
    absl::string_view before = "\n\n";
    while (!rest.empty()) {
      const size_t end = EndOfSentence(rest);
      sentences.push_back(absl::StrCat(before, rest.substr(0, end)));
      rest = absl::StripLeadingAsciiWhitespace(rest.substr(end));
      before = " ";
    }
  }
  fingerprint = absl::StrFormat("%016x", HashOf(sentences));
}

std::vector<std::string> DocumentationFiles() {
  namespace fs = std::filesystem;
  std::vector<std::string> files;
  std::error_code error;  // what cannot be read is left out
  for (const auto& entry :
       fs::directory_iterator("/usr/share/common-licenses", error)) {
    if (!entry.is_symlink()) files.push_back(entry.path().string());
  }
  for (fs::recursive_directory_iterator
           at("/usr/share/doc", fs::directory_options::skip_permission_denied,
              error),
       end;
       at != end; at.increment(error)) {
    if (at->is_regular_file(error) && IsText(at->path())) {
      files.push_back(at->path().string());
    }
  }
  std::ranges::sort(files);
  return files;
}

absl::StatusOr<Filler> ReadFiller(const std::vector<std::string>& files) {
  std::string all;
  const size_t num_files = std::min(files.size(), kMaxFiles);
  for (size_t i = 0; i < num_files; ++i) {
    // If there are more files than needed, every n-th is read, so that all
    // folders are represented.
    const std::string& name = files[i * files.size() / num_files];
    const absl::StatusOr<std::string> text = ReadFile(name);
    if (!text.ok()) {
      return absl::NotFoundError(absl::StrCat("--filler: cannot read ", name,
                                              ": ", text.status().message()));
    }
    absl::StrAppend(&all, absl::string_view(*text).substr(0, kMaxFileBytes),
                    "\n\n");
  }
  Filler filler;
  filler.Add(all);
  if (filler.paragraphs.size() < kMinParagraphs) {
    return Invalid("--filler: expected files with at least ", kMinParagraphs,
                   " paragraphs of prose, got ", filler.paragraphs.size(),
                   " in ", files.size(), " files");
  }
  return filler;
}

}  // namespace blockmgr
