// WordSplitter cuts a text into the words that a vocabulary was trained on
// (pre-tokenizer). Tokens never reach over the end of a word.
//
// The words of a text are adjacent, and together they are the whole text. The
// rules are regular expressions that their models have published:
//
//   gpt-2      contractions, letters, numbers or other characters with the
//              space before them, and white space
//   smollm     as gpt-2, and each number character is a word
//   llama-bpe  words of at most three number characters; letters with any
//              character before them; line ends with the characters before
//   qwen2      as llama-bpe, and each number character is a word
//
// A text is UTF-8. Each run of bytes that is not UTF-8 is a word, and the text
// before it is split as if it ended there.
//
// Thread-safe: nothing changes after construction.
#ifndef ENGINE_TOKENIZER_WORD_SPLITTER_H_
#define ENGINE_TOKENIZER_WORD_SPLITTER_H_

#include <memory>
#include <utility>
#include <vector>

#include <absl/status/statusor.h>
#include <absl/strings/string_view.h>

namespace blockmgr {

class WordSplitter {
 public:
  // `name` is what tokenizer.ggml.pre says. Errs with InvalidArgument if it
  // names none of the rules above.
  static absl::StatusOr<WordSplitter> Create(absl::string_view name);

  // Returns the regular expression of a model, as its authors wrote it but for
  // white space in brackets. That of smollm does what theirs does in two steps.
  // Returns "" if `name` names none of the rules above.
  static absl::string_view PublishedExpression(absl::string_view name);

  // Appends the words of the text, which are borrowed from it. Cost: O(n).
  void Split(absl::string_view text,
             std::vector<absl::string_view>* words) const;

 private:
  struct Pattern;
  explicit WordSplitter(std::shared_ptr<const Pattern> pattern)
      : pattern_(std::move(pattern)) {}

  std::shared_ptr<const Pattern> pattern_;
};

}  // namespace blockmgr

#endif  // ENGINE_TOKENIZER_WORD_SPLITTER_H_
