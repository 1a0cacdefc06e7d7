#include "tests/golden/golden_reader.h"

#include <bit>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <utility>

#include <absl/strings/str_cat.h>

#include "blockmgr/base/bits.h"

namespace blockmgr {
namespace {

// strtod through a word: streams do not read "nan" and "inf".
double ReadNumber(std::istream& stream) {
  std::string word;
  stream >> word;
  return std::strtod(word.c_str(), nullptr);
}

template <typename T>
std::vector<T> ReadNumbers(std::istream& stream) {
  size_t count = 0;
  stream >> count;
  std::vector<T> values;
  while (values.size() < count && stream) {
    values.push_back(static_cast<T>(ReadNumber(stream)));
  }
  return values;
}

GoldenInput ReadInput(std::istream& stream) {
  GoldenInput input;
  stream >> input.seed >> input.bits;
  input.scale = ReadNumber(stream);
  for (const double dim : ReadNumbers<double>(stream)) {
    input.dims.push_back(static_cast<int64_t>(dim));
  }
  stream >> std::hex >> input.fnv1a64 >> std::dec;
  return input;
}

// Lines of other kinds (margins, comments) are skipped.
void ReadLine(std::istream& line, GoldenCase* golden) {
  std::string kind, key;
  int32_t head = 0;
  line >> kind;
  if (kind == "m") {
    line >> golden->method;
  } else if (kind == "i") {
    line >> key;
    line >> golden->integers[key];
  } else if (kind == "d") {
    line >> key;
    golden->numbers[key] = ReadNumber(line);
  } else if (kind == "in") {
    line >> key;
    golden->inputs[key] = ReadInput(line);
  } else if (kind == "tab") {
    line >> key;
    golden->tables[key] = ReadNumbers<float>(line);
  } else if (kind == "b") {
    golden->budgets = ReadNumbers<int32_t>(line);
  } else if (kind == "kept") {
    line >> head;
    golden->kept[head] = ReadNumbers<int32_t>(line);
  } else if (kind == "sc") {
    line >> head;
    golden->scores[head] = ReadNumbers<double>(line);
  }
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
  std::ifstream file(path);
  if (!file) return absl::NotFoundError(absl::StrCat("cannot read ", path));
  std::vector<GoldenCase> cases;
  GoldenCase golden;
  std::string text;
  while (std::getline(file, text)) {
    if (text.starts_with("case ")) {
      golden = GoldenCase();
      golden.name = text.substr(5);
    } else if (text == "end") {
      cases.push_back(std::move(golden));
    } else {
      std::istringstream line(text);
      ReadLine(line, &golden);
    }
  }
  return cases;
}

}  // namespace blockmgr
