// Filler: paragraphs of ordinary text, around what a prompt asks for.
//
// Thread-compatible.
#ifndef BENCH_QUALITY_FILLER_H_
#define BENCH_QUALITY_FILLER_H_

#include <string>
#include <vector>

#include <absl/status/statusor.h>
#include <absl/strings/string_view.h>

namespace blockmgr {

struct Filler {
  // Sentences, in the order of the text. The first of a paragraph begins with
  // two line ends, the others with a space.
  std::vector<std::string> sentences;
  // The sentences that begin a paragraph, ascending.
  std::vector<size_t> paragraphs;
  std::string fingerprint;  // of all sentences

  // Adds the paragraphs of prose of a text: those that begin with a capital
  // letter, end with a full stop, are not indented, and have hardly anything
  // but letters and spaces. Everything else (headings, lists, code, tables) is
  // left out.
  void Add(absl::string_view text);
};

// Returns the names of the documentation of the machine's packages, sorted:
// plain text and Markdown in /usr/share/doc, and /usr/share/common-licenses.
std::vector<std::string> DocumentationFiles();

// Reads files. Of a long one, the first quarter of a MiB is taken. Errors name
// the file that cannot be read, or say that there are too few paragraphs.
absl::StatusOr<Filler> ReadFiller(const std::vector<std::string>& files);

}  // namespace blockmgr

#endif  // BENCH_QUALITY_FILLER_H_
