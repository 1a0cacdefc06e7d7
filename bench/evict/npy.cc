// The format: "\x93NUMPY", version (2 bytes), length of the header (2 bytes,
// from version 2 on 4), the header, the data. The header is a Python
// dictionary:
// {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }.
#include "bench/evict/npy.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

#include <absl/strings/ascii.h>
#include <absl/strings/match.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>
#include <absl/strings/strip.h>

#include "blockmgr/base/check.h"
#include "blockmgr/base/dtype.h"
#include "blockmgr/base/status_macros.h"

namespace blockmgr {
namespace {

constexpr absl::string_view kMagic("\x93NUMPY", 6);
// NumPy writes some hundred bytes; bounds the work on hostile files.
constexpr int64_t kMaxHeader = 65536;
// What a layer of a large model has by far not.
constexpr int64_t kMaxValues = int64_t{1} << 40;

template <typename... Pieces>
absl::Status BadFile(const std::string& path, const Pieces&... pieces) {
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", pieces...));
}

struct Header {
  char kind = 'f';  // as in NumPy: f or i
  int64_t item_bytes = 4;
  bool big_endian = false;
  std::vector<int64_t> shape;
  int64_t num_values = 1;
};

// The text between `key': ` and the end of its value, or an error.
absl::StatusOr<absl::string_view> Field(const std::string& path,
                                        absl::string_view header,
                                        absl::string_view key) {
  for (const char quote : {'\'', '"'}) {
    const std::string quoted =
        absl::StrCat(std::string(1, quote), key, std::string(1, quote));
    const size_t at = header.find(quoted);
    if (at == absl::string_view::npos) continue;
    absl::string_view rest =
        absl::StripLeadingAsciiWhitespace(header.substr(at + quoted.size()));
    if (!absl::ConsumePrefix(&rest, ":")) break;
    return absl::StripLeadingAsciiWhitespace(rest);
  }
  return BadFile(path, "expected a header with '", key, "', got '",
                 header.substr(0, 100), "'");
}

absl::Status ReadType(const std::string& path, absl::string_view text,
                      Header* header) {
  constexpr std::array<absl::string_view, 5> kTypes = {"f2", "f4", "f8", "i4",
                                                       "i8"};
  absl::string_view type = text.substr(0, 5);  // '<f4'
  const absl::string_view shown = type;
  if (!type.empty()) type.remove_prefix(1);
  header->big_endian = absl::StartsWith(type, ">");
  if (type.empty() || (type[0] != '<' && type[0] != '>') ||
      std::find(kTypes.begin(), kTypes.end(), type.substr(1, 2)) ==
          kTypes.end() ||
      type.size() < 4 || (type[3] != '\'' && type[3] != '"')) {
    return BadFile(path,
                   "descr: expected float16, float32, float64, int32 or "
                   "int64 ('<f4' and so on), got ",
                   shown);
  }
  header->kind = type[1];
  header->item_bytes = type[2] - '0';
  return absl::OkStatus();
}

absl::Status ReadShape(const std::string& path, absl::string_view text,
                       Header* header) {
  const size_t end = text.find(')');
  if (!absl::ConsumePrefix(&text, "(") || end == absl::string_view::npos) {
    return BadFile(path, "shape: expected a tuple, got '", text.substr(0, 20),
                   "'");
  }
  text = text.substr(0, end - 1);
  for (absl::string_view dim :
       absl::StrSplit(text, ',', absl::SkipWhitespace())) {
    int64_t size = 0;
    if (!absl::SimpleAtoi(dim, &size) || size < 0) {
      return BadFile(path, "shape: expected sizes, got '", dim, "'");
    }
    header->shape.push_back(size);
    if (size != 0 && header->num_values > kMaxValues / size) {
      return BadFile(path, "shape: expected at most 2^40 values, got (", text,
                     ")");
    }
    header->num_values *= size;
  }
  return absl::OkStatus();
}

absl::StatusOr<Header> ParseHeader(const std::string& path,
                                   absl::string_view text) {
  Header header;
  BM_ASSIGN_OR_RETURN(const absl::string_view type, Field(path, text, "descr"));
  BM_RETURN_IF_ERROR(ReadType(path, type, &header));
  BM_ASSIGN_OR_RETURN(const absl::string_view order,
                      Field(path, text, "fortran_order"));
  if (!absl::StartsWith(order, "False")) {
    return BadFile(path, "fortran_order: expected False, got '",
                   order.substr(0, 5), "'");
  }
  BM_ASSIGN_OR_RETURN(const absl::string_view shape,
                      Field(path, text, "shape"));
  BM_RETURN_IF_ERROR(ReadShape(path, shape, &header));
  return header;
}

// The header's text; leaves `file` at the data.
absl::StatusOr<std::string> ReadHeaderText(const std::string& path,
                                           std::ifstream& file) {
  std::array<char, 8> start = {};
  file.read(start.data(), start.size());
  if (!file || absl::string_view(start.data(), kMagic.size()) != kMagic) {
    return BadFile(path, "expected a .npy file, got another or a short one");
  }
  const int version = static_cast<unsigned char>(start[6]);
  if (version < 1 || version > 3) {
    return BadFile(path, "expected version 1, 2 or 3, got ", version);
  }
  std::array<unsigned char, 4> size = {};
  file.read(reinterpret_cast<char*>(size.data()), version == 1 ? 2 : 4);
  const int64_t length = int64_t{size[0]} | int64_t{size[1]} << 8 |
                         int64_t{size[2]} << 16 | int64_t{size[3]} << 24;
  if (!file) return BadFile(path, "expected a header, got the end of the file");
  if (length > kMaxHeader) {
    return BadFile(path, "expected a header of at most ", kMaxHeader,
                   " bytes, got ", length);
  }
  std::string text(static_cast<size_t>(length), '\0');
  file.read(text.data(), length);
  if (!file) {
    return BadFile(path, "expected a header of ", length, " bytes, got ",
                   file.gcount());
  }
  return text;
}

float Decode(const Header& header, const char* bytes) {
  uint64_t bits = 0;
  for (int64_t i = 0; i < header.item_bytes; ++i) {
    const int64_t at = header.big_endian ? i : header.item_bytes - 1 - i;
    bits = bits << 8 | static_cast<unsigned char>(bytes[at]);
  }
  if (header.kind == 'i') {
    return header.item_bytes == 4
               ? static_cast<float>(static_cast<int32_t>(bits))
               : static_cast<float>(static_cast<int64_t>(bits));
  }
  if (header.item_bytes == 2) return FromFloat16(static_cast<uint16_t>(bits));
  if (header.item_bytes == 4) {
    return std::bit_cast<float>(static_cast<uint32_t>(bits));
  }
  return static_cast<float>(std::bit_cast<double>(bits));
}

// `data`: num_values words of 4 bytes, little endian.
absl::Status Write(const std::string& path, absl::string_view type,
                   std::span<const int64_t> shape,
                   std::span<const uint32_t> words) {
  // (3,) for one dimension, as Python writes tuples.
  std::string header = absl::StrCat(
      "{'descr': '", type, "', 'fortran_order': False, 'shape': (",
      absl::StrJoin(shape, ", "), shape.size() == 1 ? "," : "", "), }");
  // Data begin at a multiple of 64, the header ends with a line feed.
  constexpr size_t kPreamble = 10;
  header.append(63 - (kPreamble + header.size()) % 64, ' ');
  header.push_back('\n');
  std::string bytes = absl::StrCat(kMagic, absl::string_view("\1\0", 2));
  bytes.push_back(static_cast<char>(header.size() & 0xFF));
  bytes.push_back(static_cast<char>(header.size() >> 8));
  absl::StrAppend(&bytes, header);
  for (const uint32_t word : words) {
    for (int shift = 0; shift < 32; shift += 8) {
      bytes.push_back(static_cast<char>(word >> shift & 0xFF));
    }
  }
  std::ofstream file(path, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.close();
  if (file) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(path, ": cannot be written"));
}

int64_t NumValues(std::span<const int64_t> shape) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return count;
}

}  // namespace

std::string ShapeText(std::span<const int64_t> shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

absl::StatusOr<NpyArray> ReadNpy(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::error_code error;
  const uintmax_t file_bytes = std::filesystem::file_size(path, error);
  if (!file || error) {
    return absl::NotFoundError(absl::StrCat(path, ": cannot be read"));
  }
  BM_ASSIGN_OR_RETURN(const std::string text, ReadHeaderText(path, file));
  BM_ASSIGN_OR_RETURN(Header header, ParseHeader(path, text));
  const int64_t expected = header.num_values * header.item_bytes;
  const int64_t held =
      static_cast<int64_t>(file_bytes) - static_cast<int64_t>(file.tellg());
  if (held != expected) {
    return BadFile(path, "expected ", expected, " bytes of data for shape ",
                   ShapeText(header.shape), ", got ", held);
  }
  NpyArray array;
  array.shape = std::move(header.shape);
  array.values.resize(static_cast<size_t>(header.num_values));
  // In pieces, so that a file is never held twice.
  constexpr int64_t kPiece = 1 << 16;
  std::vector<char> bytes(static_cast<size_t>(kPiece * header.item_bytes));
  for (int64_t begin = 0; begin < header.num_values; begin += kPiece) {
    const int64_t count = std::min(kPiece, header.num_values - begin);
    file.read(bytes.data(), count * header.item_bytes);
    if (!file) return BadFile(path, "the data cannot be read");
    for (int64_t i = 0; i < count; ++i) {
      array.values[static_cast<size_t>(begin + i)] =
          Decode(header, bytes.data() + i * header.item_bytes);
    }
  }
  return array;
}

absl::Status WriteNpy(const std::string& path, const NpyArray& array) {
  BM_CHECK(NumValues(array.shape) == static_cast<int64_t>(array.values.size()));
  std::vector<uint32_t> words;
  words.reserve(array.values.size());
  for (const float value : array.values) {
    words.push_back(std::bit_cast<uint32_t>(value));
  }
  return Write(path, "<f4", array.shape, words);
}

absl::Status WriteNpyInts(const std::string& path,
                          std::span<const int64_t> shape,
                          std::span<const int32_t> values) {
  BM_CHECK(NumValues(shape) == static_cast<int64_t>(values.size()));
  const std::vector<uint32_t> words(values.begin(), values.end());
  return Write(path, "<i4", shape, words);
}

}  // namespace blockmgr
