#include "bench/evict/golden.h"

#include <bit>
#include <cmath>
#include <optional>
#include <sstream>
#include <utility>

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>
#include <absl/strings/string_view.h>

#include "blockmgr/base/bits.h"
#include "blockmgr/base/invalid.h"
#include "blockmgr/base/read_file.h"
#include "blockmgr/base/status_macros.h"

namespace blockmgr {
namespace {

// A made input of more values (1 GiB) is a mistake in the file.
constexpr int64_t kMaxInputValues = int64_t{1} << 28;
// The fields of an input overlap from here on.
constexpr int kMaxBits = 21;

// Takes the words of one line in turn; the first that does not fit sticks.
class Words {
 public:
  explicit Words(absl::string_view line)
      : words_(absl::StrSplit(line, ' ', absl::SkipEmpty())) {}

  bool empty() const { return next_ == words_.size(); }
  bool failed() const { return !error_.empty(); }
  // The word that was expected where the line stopped fitting; empty: it fits.
  const std::string& error() const { return error_; }

  std::string Text(absl::string_view what) {
    if (!empty()) return std::string(words_[next_++]);
    Fail(what, "the end of the line");
    return "";
  }

  template <typename T>
  T Number(absl::string_view what) {
    const std::string word = Text(what);
    T value = {};
    if (!failed() && !Parse(word, &value)) Fail(what, word);
    return value;
  }

  uint64_t Hex(absl::string_view what) {
    const std::string word = Text(what);
    uint64_t value = 0;
    if (!failed() && !absl::SimpleHexAtoi(word, &value)) {
      Fail(what, word);
    }
    return value;
  }

  // n, then n values; nothing is allocated on the word of n.
  template <typename T>
  std::vector<T> Numbers(absl::string_view what) {
    const auto count = Number<int64_t>("a count");
    std::vector<T> values;
    for (int64_t i = 0; i < count && !failed(); ++i) {
      values.push_back(Number<T>(what));
    }
    return values;
  }

  std::vector<std::string> Rest() {
    std::vector<std::string> rest;
    while (!empty()) rest.push_back(Text(""));
    return rest;
  }

  void Fail(absl::string_view expected, absl::string_view got) {
    if (failed()) return;
    error_ = absl::StrCat("expected ", expected, ", got '", got, "'");
  }

 private:
  static bool Parse(const std::string& word, float* value) {
    return absl::SimpleAtof(word, value);  // reads nan and inf, too
  }
  static bool Parse(const std::string& word, double* value) {
    return absl::SimpleAtod(word, value);
  }
  template <typename T>
  static bool Parse(const std::string& word, T* value) {
    return absl::SimpleAtoi(word, value);
  }

  std::vector<absl::string_view> words_;
  size_t next_ = 0;
  std::string error_;
};

GoldenInput ReadInput(Words& words) {
  GoldenInput input;
  input.seed = words.Number<uint64_t>("a seed");
  input.bits = words.Number<int>("a number of bits");
  if (input.bits < 1 || input.bits > kMaxBits) {
    words.Fail("1 to 21 bits", absl::StrCat(input.bits));
  }
  input.scale = words.Number<double>("a scale");
  input.dims = words.Numbers<int64_t>("a size");
  int64_t size = 1;
  for (const int64_t dim : input.dims) {
    if (dim < 1 || size > kMaxInputValues / dim) {
      words.Fail("at most 2^28 values in all", absl::StrCat(dim));
      break;
    }
    size *= dim;
  }
  input.fnv1a64 = words.Hex("a hash in hexadecimal");
  return input;
}

// One line but `case`, `end` and comments.
void ReadItem(const std::string& kind, Words& words, GoldenCase* golden) {
  const auto key = [&] { return words.Text("a name"); };
  const auto head = [&] { return words.Number<int32_t>("a head"); };
  if (kind == "m") {
    golden->method = key();
  } else if (kind == "i") {
    const std::string name = key();
    golden->integers[name] = words.Number<int64_t>("an integer");
  } else if (kind == "d") {
    const std::string name = key();
    golden->numbers[name] = words.Number<double>("a number");
  } else if (kind == "in") {
    const std::string name = key();
    golden->inputs[name] = ReadInput(words);
  } else if (kind == "tab") {
    const std::string name = key();
    golden->tables[name] = words.Numbers<float>("a number");
  } else if (kind == "b") {
    golden->budgets = words.Numbers<int32_t>("a budget");
  } else if (kind == "kept") {
    const int32_t index = head();
    golden->kept[index] = words.Numbers<int32_t>("a position");
  } else if (kind == "sc") {
    const int32_t index = head();
    golden->scores[index] = words.Numbers<double>("a score");
  } else {
    golden->others[kind].push_back(words.Rest());
  }
  if (!words.empty()) words.Fail("the end of the line", words.Text(""));
}

}  // namespace

absl::StatusOr<std::vector<float>> GoldenInput::Generate() const {
  size_t size = 1;
  for (const int64_t dim : dims) size *= static_cast<size_t>(dim);
  const uint64_t mask = (uint64_t{1} << bits) - 1;
  uint64_t hash = 0xcbf29ce484222325ull;
  std::vector<float> values(size);
  for (size_t i = 0; i < size; ++i) {
    const uint64_t u = SplitMix64((seed << 32) | i);
    const uint64_t sum = (u & mask) + ((u >> 21) & mask) + ((u >> 42) & mask);
    values[i] = static_cast<float>(
        (std::ldexp(static_cast<double>(sum), -bits) - 1.5) * scale);
    uint32_t bytes = std::bit_cast<uint32_t>(values[i]);
    for (int byte = 0; byte < 4; ++byte, bytes >>= 8) {
      hash = (hash ^ (bytes & 0xFFu)) * 0x100000001b3ull;
    }
  }
  if (hash == fnv1a64) return values;
  return absl::DataLossError(
      absl::StrCat("golden input of seed ", seed, ": expected hash ",
                   absl::Hex(fnv1a64), ", got ", absl::Hex(hash)));
}

absl::StatusOr<std::vector<GoldenCase>> ReadGoldenFile(
    const std::string& path) {
  BM_ASSIGN_OR_RETURN(const std::string bytes, ReadFile(path));
  std::istringstream file(bytes);
  std::vector<GoldenCase> cases;
  std::optional<GoldenCase> open;
  std::string text;
  int64_t line = 0;
  while (std::getline(file, text)) {
    ++line;
    Words words(text);
    if (words.empty() || text[0] == '#') continue;
    const std::string kind = words.Text("");
    if (kind == "case") {
      if (open.has_value()) words.Fail("end before the next case", kind);
      open.emplace();
      open->name = words.Text("a name");
    } else if (!open.has_value()) {
      words.Fail("case", kind);
    } else if (kind == "end") {
      cases.push_back(*std::exchange(open, std::nullopt));
    } else {
      ReadItem(kind, words, &*open);
    }
    if (words.failed()) {
      return Invalid(path, ":", line, ": ", words.error());
    }
  }
  if (open.has_value()) {
    return Invalid(path, ":", line, ": expected end of case '", open->name,
                   "', got the end of the file");
  }
  return cases;
}

}  // namespace blockmgr
