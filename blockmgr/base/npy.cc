// The format: "\x93NUMPY", version (2 bytes), length of the header (2 bytes,
// from version 2 on 4), the header, the data. The header is a Python
// dictionary:
// {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }.
#include "blockmgr/base/npy.h"

#include <algorithm>
#include <array>
#include <bit>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

#include <absl/strings/ascii.h>
#include <absl/strings/escaping.h>
#include <absl/strings/match.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>
#include <absl/strings/strip.h>

#include "blockmgr/base/check.h"
#include "blockmgr/base/dtype.h"
#include "blockmgr/base/invalid.h"
#include "blockmgr/base/status_macros.h"

namespace blockmgr {
namespace {

constexpr absl::string_view kMagic("\x93NUMPY", 6);
// NumPy writes some hundred bytes; bounds the work on hostile files.
constexpr size_t kMaxHeader = 65536;
// Magic, version, length and header.
constexpr size_t kMaxStart = 12 + kMaxHeader;
// A layer of a large model has far fewer.
constexpr int64_t kMaxValues = int64_t{1} << 40;

struct Header {
  char kind = 'f';  // as in NumPy: f or i
  int64_t item_bytes = 4;
  bool big_endian = false;
  bool fortran_order = false;  // the first dimension runs fastest
  std::vector<int64_t> shape;
  int64_t num_values = 1;
  int64_t data_begin = 0;  // in the file
};

// The text between `key': ` and the end of its value, or an error.
absl::StatusOr<absl::string_view> Field(absl::string_view header,
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
  return Invalid("expected a header with '", key, "', got '",
                 absl::CHexEscape(header.substr(0, 100)), "'");
}

absl::Status ReadType(absl::string_view text, Header* header) {
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
    return Invalid(
        "descr: expected float16, float32, float64, int32 or int64 ('<f4' and "
        "so on), got ",
        absl::CHexEscape(shown));
  }
  header->kind = type[1];
  header->item_bytes = type[2] - '0';
  return absl::OkStatus();
}

absl::Status ReadOrder(absl::string_view text, Header* header) {
  header->fortran_order = absl::StartsWith(text, "True");
  if (header->fortran_order || absl::StartsWith(text, "False")) {
    return absl::OkStatus();
  }
  return Invalid("fortran_order: expected True or False, got '",
                 absl::CHexEscape(text.substr(0, 5)), "'");
}

absl::Status ReadShape(absl::string_view text, Header* header) {
  const size_t end = text.find(')');
  if (!absl::ConsumePrefix(&text, "(") || end == absl::string_view::npos) {
    return Invalid("shape: expected a tuple, got '",
                   absl::CHexEscape(text.substr(0, 20)), "'");
  }
  text = text.substr(0, end - 1);
  for (absl::string_view dim :
       absl::StrSplit(text, ',', absl::SkipWhitespace())) {
    int64_t size = 0;
    if (!absl::SimpleAtoi(dim, &size) || size < 0) {
      return Invalid("shape: expected sizes, got '",
                     absl::CHexEscape(dim.substr(0, 40)), "'");
    }
    header->shape.push_back(size);
    if (size != 0 && header->num_values > kMaxValues / size) {
      return Invalid("shape: expected at most 2^40 values, got (",
                     absl::CHexEscape(text.substr(0, 100)), ")");
    }
    header->num_values *= size;
  }
  return absl::OkStatus();
}

// The dictionary, and where in the file it is.
absl::StatusOr<absl::string_view> HeaderText(absl::string_view start) {
  constexpr size_t kVersionAt = 6;
  constexpr size_t kLengthAt = 8;
  if (!IsNpy(start) || start.size() < kLengthAt) {
    return Invalid("expected a .npy file, got another or a short one");
  }
  const int version = static_cast<unsigned char>(start[kVersionAt]);
  if (version < 1 || version > 3) {
    return Invalid("expected version 1, 2 or 3, got ", version);
  }
  const size_t length_bytes = version == 1 ? 2 : 4;
  absl::string_view rest = start.substr(kLengthAt);
  if (rest.size() < length_bytes) {
    return Invalid("expected a header, got the end of the file");
  }
  size_t length = 0;
  for (size_t i = length_bytes; i-- > 0;) {
    length = length << 8 | static_cast<unsigned char>(rest[i]);
  }
  rest.remove_prefix(length_bytes);
  if (length > kMaxHeader) {
    return Invalid("expected a header of at most ", kMaxHeader, " bytes, got ",
                   length);
  }
  if (rest.size() < length) {
    return Invalid("expected a header of ", length, " bytes, got ",
                   rest.size());
  }
  return rest.substr(0, length);
}

// Parses the header of a file of `file_bytes`. `start` is the beginning of the
// file: kMaxStart bytes, or the whole file if it is shorter. Checks that the
// file has as many bytes of data as the header says.
absl::StatusOr<Header> ParseHeader(absl::string_view start,
                                   int64_t file_bytes) {
  BM_ASSIGN_OR_RETURN(const absl::string_view text, HeaderText(start));
  Header header;
  header.data_begin = text.data() + text.size() - start.data();
  BM_ASSIGN_OR_RETURN(const absl::string_view type, Field(text, "descr"));
  BM_RETURN_IF_ERROR(ReadType(type, &header));
  BM_ASSIGN_OR_RETURN(const absl::string_view order,
                      Field(text, "fortran_order"));
  BM_RETURN_IF_ERROR(ReadOrder(order, &header));
  BM_ASSIGN_OR_RETURN(const absl::string_view shape, Field(text, "shape"));
  BM_RETURN_IF_ERROR(ReadShape(shape, &header));
  const int64_t expected = header.num_values * header.item_bytes;
  const int64_t held = file_bytes - header.data_begin;
  if (held == expected) return header;
  return Invalid("expected ", expected, " bytes of data for shape ",
                 ShapeText(header.shape), ", got ", held);
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

// An array in the making: takes its values in the order of the file and puts
// each where it belongs.
class ArrayBuilder {
 public:
  explicit ArrayBuilder(const Header& header)
      : header_(header), at_(header.shape.size()) {
    array_.shape = header.shape;
    array_.values.resize(static_cast<size_t>(header.num_values));
    array_.has_integers = header.kind == 'i';
    int64_t stride = header.num_values;
    for (const int64_t size : header.shape) {
      stride /= std::max(size, int64_t{1});
      strides_.push_back(stride);
    }
  }

  // Whole values.
  void Take(absl::string_view bytes) {
    const auto item_bytes = static_cast<size_t>(header_.item_bytes);
    for (size_t i = 0; i < bytes.size(); i += item_bytes) {
      array_.values[static_cast<size_t>(place_)] =
          Decode(header_, bytes.data() + i);
      Advance();
    }
  }
  NpyArray Finish() && { return std::move(array_); }

 private:
  void Advance() {
    if (!header_.fortran_order) {
      ++place_;
      return;
    }
    for (size_t dim = 0; dim < at_.size(); ++dim) {
      place_ += strides_[dim];
      if (++at_[dim] < header_.shape[dim]) return;
      place_ -= at_[dim] * strides_[dim];
      at_[dim] = 0;
    }
  }

  const Header& header_;
  std::vector<int64_t> strides_;  // of rows, by dimension
  std::vector<int64_t> at_;       // index of the next value, by dimension
  int64_t place_ = 0;             // of the next value
  NpyArray array_;
};

// `words`: values of 4 bytes.
std::string Encode(absl::string_view type, std::span<const int64_t> shape,
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
  return bytes;
}

absl::Status Write(const std::string& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.close();
  if (file) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(path, ": cannot be written"));
}

int64_t CountValues(std::span<const int64_t> shape) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return count;
}

}  // namespace

std::string ShapeText(std::span<const int64_t> shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

bool IsNpy(absl::string_view bytes) { return absl::StartsWith(bytes, kMagic); }

absl::StatusOr<NpyArray> DecodeNpy(absl::string_view bytes) {
  BM_ASSIGN_OR_RETURN(const Header header,
                      ParseHeader(bytes, static_cast<int64_t>(bytes.size())));
  ArrayBuilder builder(header);
  builder.Take(bytes.substr(static_cast<size_t>(header.data_begin)));
  return std::move(builder).Finish();
}

absl::StatusOr<NpyArray> ReadNpy(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::error_code error;
  const uintmax_t file_bytes = std::filesystem::file_size(path, error);
  if (!file || error) {
    return absl::NotFoundError(absl::StrCat(path, ": cannot be read"));
  }
  std::string bytes(std::min<uintmax_t>(file_bytes, kMaxStart), '\0');
  file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (!file) return Invalid(path, ": cannot be read to its end");
  const absl::StatusOr<Header> header =
      ParseHeader(bytes, static_cast<int64_t>(file_bytes));
  if (!header.ok()) return Invalid(path, ": ", header.status().message());
  ArrayBuilder builder(*header);
  file.seekg(header->data_begin);
  constexpr int64_t kPiece = 1 << 16;
  for (int64_t begin = 0; begin < header->num_values; begin += kPiece) {
    const int64_t count = std::min(kPiece, header->num_values - begin);
    bytes.resize(static_cast<size_t>(count * header->item_bytes));
    file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    if (!file) return Invalid(path, ": cannot be read to its end");
    builder.Take(bytes);
  }
  return std::move(builder).Finish();
}

absl::Status WriteNpy(const std::string& path, const NpyArray& array) {
  BM_CHECK(CountValues(array.shape) ==
           static_cast<int64_t>(array.values.size()));
  std::vector<uint32_t> words;
  words.reserve(array.values.size());
  for (const float value : array.values) {
    words.push_back(std::bit_cast<uint32_t>(value));
  }
  return Write(path, Encode("<f4", array.shape, words));
}

std::string EncodeNpyInts(std::span<const int64_t> shape,
                          std::span<const int32_t> values) {
  BM_CHECK(CountValues(shape) == static_cast<int64_t>(values.size()));
  const std::vector<uint32_t> words(values.begin(), values.end());
  return Encode("<i4", shape, words);
}

absl::Status WriteNpyInts(const std::string& path,
                          std::span<const int64_t> shape,
                          std::span<const int32_t> values) {
  return Write(path, EncodeNpyInts(shape, values));
}

}  // namespace blockmgr
