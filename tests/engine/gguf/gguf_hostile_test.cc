// Files that are wrong: each is refused with a message that says what is wrong,
// or is read as far as it can be, and none makes the reader allocate much.
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/gguf/gguf_file.h"
#include "tests/testing/case_count.h"
#include "tests/testing/counted_new.h"
#include "tests/testing/gguf_writer.h"
#include "tests/testing/random.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

constexpr auto kRefused = absl::StatusCode::kInvalidArgument;
constexpr uint64_t kHuge = ~uint64_t{0};
constexpr uint32_t kF32 = 0;
constexpr uint32_t kQ41 = 3;
constexpr uint32_t kInt32 = 5;

std::span<const std::byte> SpanOf(absl::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

std::string Number(uint64_t value, size_t num_bytes = 8) {
  std::string bytes;
  AppendNumber(value, &bytes);
  return bytes.substr(0, num_bytes);
}

std::string Text(absl::string_view text) {
  std::string bytes;
  AppendGgufString(text, &bytes);
  return bytes;
}

std::string Header(uint64_t version, uint64_t num_tensors, uint64_t num_keys) {
  return absl::StrCat("GGUF", Number(version, 4), Number(num_tensors),
                      Number(num_keys));
}

std::string File(const std::function<void(GgufWriter*)>& fill) {
  GgufWriter writer;
  fill(&writer);
  return writer.Finish();
}

// A file with one tensor and `num_bytes` of data.
std::string TensorFile(std::vector<uint64_t> shape, uint32_t type,
                       uint64_t offset, size_t num_bytes) {
  return File([&](GgufWriter* file) {
    file->AddTensorInfo("t", shape, type, offset);
    file->AddData(std::string(num_bytes, '\0'));
  });
}

struct HostileCase {
  std::string name;
  std::string file;
  std::string message;  // the whole of it
};

class HostileTest : public testing::TestWithParam<HostileCase> {};

TEST_P(HostileTest, IsRefusedByName) {
  ForgetPeak();
  const int64_t before = AllocatedBytes();
  EXPECT_THAT(GgufFile::Parse(SpanOf(GetParam().file)),
              StatusIs(kRefused, GetParam().message));
  EXPECT_LT(PeakAllocatedBytes() - before, 20000);
}

std::string CaseName(const testing::TestParamInfo<HostileCase>& instance) {
  return instance.param.name;
}

std::vector<HostileCase> HeaderCases() {
  return {
      {"Empty", "",
       "header: expected the word GGUF: 4 bytes at offset 0, got 0 to the end "
       "of the file"},
      {"OtherFormat", "ustar  ", "header: expected the word GGUF, got 'usta'"},
      {"NoVersion", "GGUF\3",
       "header: expected a version: 4 bytes at offset 4, got 1 to the end of "
       "the file"},
      {"Version1", Header(1, 0, 0), "header: expected version 2 or 3, got 1"},
      {"Version4", Header(4, 0, 0), "header: expected version 2 or 3, got 4"},
      {"BigEndian", Header(3 << 24, 0, 0),
       "header: expected version 2 or 3, got 50331648, as in files in big "
       "endian"},
      {"NoCounts", Header(3, 0, 0).substr(0, 8),
       "header: expected the number of tensors: 8 bytes at offset 8, got 0 to "
       "the end of the file"},
      {"HalfTheCounts", Header(3, 0, 0).substr(0, 20),
       "header: expected the number of keys: 8 bytes at offset 16, got 4 to "
       "the end of the file"},
      {"TooManyKeys", Header(3, 0, kHuge),
       "header: expected at most 65536 keys, got 18446744073709551615"},
      {"TooManyTensors", Header(3, 65537, 0),
       "header: expected at most 65536 tensors, got 65537"},
      {"MoreKeysThanThereAre", Header(3, 0, 65536),
       "key number 1 of 65536: expected a name: 8 bytes at offset 24, got 0 to "
       "the end of the file"},
      {"MoreTensorsThanThereAre", Header(3, 65536, 0),
       "tensor number 1 of 65536: expected a name: 8 bytes at offset 24, got 0 "
       "to the end of the file"}};
}
INSTANTIATE_TEST_SUITE_P(Header, HostileTest, testing::ValuesIn(HeaderCases()),
                         CaseName);

std::vector<HostileCase> KeyCases() {
  // Returns a file whose one key 'a' has a value of this type and these bytes.
  const auto value = [](uint64_t type, const std::string& bytes) {
    return absl::StrCat(Header(3, 0, 1), Text("a"), Number(type, 4), bytes);
  };
  const auto array = [&](uint64_t type, uint64_t count,
                         const std::string& bytes) {
    return value(kGgufArray,
                 absl::StrCat(Number(type, 4), Number(count), bytes));
  };
  return {
      {"NameBehindTheEnd", absl::StrCat(Header(3, 0, 1), Number(kHuge), "abc"),
       "key number 1 of 1: expected a name: 18446744073709551615 bytes at "
       "offset 32, got 3 to the end of the file"},
      {"LongName", absl::StrCat(Header(3, 0, 1), Text(std::string(65536, 'n'))),
       absl::StrCat("key '", std::string(100, 'n'),
                    "..': expected a name of at most 65535 bytes, got 65536")},
      {"NameOfOddBytes",
       absl::StrCat(Header(3, 0, 1), Text("\n'\xFF"), Number(99, 4)),
       R"(key '\n\'\xff': expected a type of value from 0 to 12, got 99)"},
      {"NoType", absl::StrCat(Header(3, 0, 1), Text("a")),
       "key 'a': expected the type of a value: 4 bytes at offset 33, got 0 to "
       "the end of the file"},
      {"UnknownType", value(13, "00000000"),
       "key 'a': expected a type of value from 0 to 12, got 13"},
      {"ShortNumber", value(kInt32, "123"),
       "key 'a': expected int32: 4 bytes at offset 37, got 3 to the end of the "
       "file"},
      {"ShortString", value(kGgufString, Number(10) + "0123"),
       "key 'a': expected string: 10 bytes at offset 45, got 4 to the end of "
       "the file"},
      {"EndlessString", value(kGgufString, Number(kHuge - 7) + "0123"),
       "key 'a': expected string: 18446744073709551608 bytes at offset 45, got "
       "4 to the end of the file"},
      {"NoArray", value(kGgufArray, "123"),
       "key 'a': expected the type and the length of an array: 4 bytes at "
       "offset 37, got 3 to the end of the file"},
      {"ArrayOfArrays", array(kGgufArray, 1, Number(0, 4) + Number(0)),
       "key 'a': expected an array of scalars or strings, got one of arrays"},
      {"ArrayOfUnknown", array(100, 0, ""),
       "key 'a': expected an array of scalars or strings, got one of type 100"},
      {"ShortArray", array(kInt32, 3, "01234567"),
       "key 'a': expected an array of 3 int32: 12 bytes at offset 49, got 8 to "
       "the end of the file"},
      // In 64 bits, four times the length is 4.
      {"ArrayWhoseSizeOverflows", array(kInt32, (1ull << 62) + 1, "01234567"),
       "key 'a': expected an array of 4611686018427387905 int32: "
       "18446744073709551615 bytes at offset 49, got 8 to the end of the file"},
      {"EndlessStrings", array(kGgufString, kHuge, Text("x") + Text("")),
       "key 'a': expected an array of 18446744073709551615 string, number 3: 8 "
       "bytes at offset 66, got 0 to the end of the file"},
      {"StringOfAnArrayBehindTheEnd",
       array(kGgufString, 2, Text("x") + Number(1u << 31)),
       "key 'a': expected an array of 2 string, number 2: 2147483648 bytes at "
       "offset 66, got 0 to the end of the file"},
      {"TwoValues", File([](GgufWriter* file) {
         file->Add("a", true);
         file->Add("a", true);
       }),
       "key 'a': expected one value, got a second one"}};
}
INSTANTIATE_TEST_SUITE_P(Keys, HostileTest, testing::ValuesIn(KeyCases()),
                         CaseName);

std::vector<HostileCase> AlignmentCases() {
  const auto with = [](const auto& alignment) {
    return File(
        [&](GgufWriter* file) { file->Add("general.alignment", alignment); });
  };
  const std::string expected =
      "key 'general.alignment': expected a power of two of at least 8, got ";
  return {{"AlignmentOf0", with(uint32_t{0}), expected + "0"},
          {"AlignmentOf4", with(uint32_t{4}), expected + "4"},
          {"AlignmentOf24", with(uint32_t{24}), expected + "24"},
          {"NegativeAlignment", with(int32_t{-8}), expected + "-8"},
          {"LeastAlignment", with(std::numeric_limits<int64_t>::min()),
           expected + "-9223372036854775808"},
          {"AlignmentInText", with(absl::string_view("32")),
           "key 'general.alignment': expected an integer, got a value of type "
           "string"}};
}
INSTANTIATE_TEST_SUITE_P(Alignment, HostileTest,
                         testing::ValuesIn(AlignmentCases()), CaseName);

std::vector<HostileCase> TensorCases() {
  const std::string header = Header(3, 1, 0);
  // A tensor of the name 't' up to its dimensions.
  const auto shaped = [&](uint64_t num_dimensions, const std::string& rest) {
    return absl::StrCat(header, Text("t"), Number(num_dimensions, 4), rest);
  };
  return {
      {"NameBehindTheEnd", absl::StrCat(header, Number(40), "abc"),
       "tensor number 1 of 1: expected a name: 40 bytes at offset 32, got 3 to "
       "the end of the file"},
      {"LongName", absl::StrCat(header, Text(std::string(65, 'n'))),
       absl::StrCat("tensor '", std::string(65, 'n'),
                    "': expected a name of at most 64 bytes, got 65")},
      {"NoDimensions", shaped(0, ""),
       "tensor 't': expected 1 to 4 dimensions, got 0"},
      {"ManyDimensions", shaped(0xFFFFFFFF, ""),
       "tensor 't': expected 1 to 4 dimensions, got 4294967295"},
      {"DimensionsBehindTheEnd", shaped(2, Number(1)),
       "tensor 't': expected a dimension: 8 bytes at offset 45, got 0 to the "
       "end of the file"},
      {"NoType", shaped(1, Number(1)),
       "tensor 't': expected a type and an offset: 4 bytes at offset 45, got 0 "
       "to the end of the file"},
      {"NoOffset", shaped(1, Number(1) + Number(kF32, 4)),
       "tensor 't': expected a type and an offset: 8 bytes at offset 49, got 0 "
       "to the end of the file"},
      {"UnknownType", TensorFile({32}, 2, 0, 32),
       "tensor 't': expected one of the types F32, F16, BF16, Q8_0, Q4_1, "
       "Q5_0, Q4_K, Q6_K; got Q4_0"},
      {"PopularType", TensorFile({256}, 13, 0, 256),
       "tensor 't': expected one of the types F32, F16, BF16, Q8_0, Q4_1, "
       "Q5_0, Q4_K, Q6_K; got Q5_K"},
      {"TypeWithoutAName", TensorFile({32}, 1000, 0, 32),
       "tensor 't': expected one of the types F32, F16, BF16, Q8_0, Q4_1, "
       "Q5_0, Q4_K, Q6_K; got number 1000"},
      {"DimensionOf0", TensorFile({1, 0}, kF32, 0, 32),
       "tensor 't': expected dimension 1 to be at least 1 and below 2^63, got "
       "0"},
      {"NegativeDimension", TensorFile({kHuge}, kF32, 0, 32),
       "tensor 't': expected dimension 0 to be at least 1 and below 2^63, got "
       "18446744073709551615"},
      {"PartOfABlock", TensorFile({33}, kQ41, 0, 40),
       "tensor 't': expected rows of a multiple of 32 elements for Q4_1, got "
       "33"},
      {"TwoOfAName", File([](GgufWriter* file) {
         file->AddTensorInfo("t", {1}, kF32, 0);
         file->AddTensorInfo("t", {1}, kF32, 32);
         file->AddData(std::string(64, '\0'));
       }),
       "tensor 't': expected one tensor of this name, got a second one"}};
}
INSTANTIATE_TEST_SUITE_P(Tensors, HostileTest, testing::ValuesIn(TensorCases()),
                         CaseName);

// A file with tensors 'a' of 4 and 'b' of 12 floats.
std::string TwoTensors(uint64_t a, uint64_t b) {
  return File([&](GgufWriter* file) {
    file->SetAlignment(8);
    file->AddTensorInfo("a", {4}, kF32, a);
    file->AddTensorInfo("b", {12}, kF32, b);
    file->AddData(std::string(128, '\0'));
  });
}

std::vector<HostileCase> DataCases() {
  return {
      {"NoData", TensorFile({4}, kF32, 0, 0),
       "tensor 't': expected a shape that fits the 0 bytes of data in the "
       "file, got [4] of F32"},
      {"ShapeTooLarge", TensorFile({3, 3}, kF32, 0, 35),
       "tensor 't': expected a shape that fits the 35 bytes of data in the "
       "file, got [3, 3] of F32"},
      // The products are 0 and 4 in 64 bits.
      {"BytesOverflow", TensorFile({1ull << 62}, kF32, 0, 32),
       "tensor 't': expected a shape that fits the 32 bytes of data in the "
       "file, got [4611686018427387904] of F32"},
      {"ElementsOverflow",
       TensorFile({1ull << 32, 1ull << 32, 1, 1}, kF32, 0, 32),
       "tensor 't': expected a shape that fits the 32 bytes of data in the "
       "file, got [4294967296, 4294967296, 1, 1] of F32"},
      {"BlocksOverflow", TensorFile({1ull << 62, 2, 2, 2}, kQ41, 0, 32),
       "tensor 't': expected a shape that fits the 32 bytes of data in the "
       "file, got [4611686018427387904, 2, 2, 2] of Q4_1"},
      {"OddOffset", TensorFile({4}, kF32, 16, 64),
       "tensor 't': expected an offset of a multiple of 32 bytes, got 16"},
      {"OffsetBehindTheEnd", TensorFile({9}, kF32, 32, 64),
       "tensor 't': expected data inside the 64 bytes of the file, got 36 "
       "bytes at offset 32 for [9] of F32"},
      {"HugeOffset", TensorFile({4}, kF32, kHuge - 31, 64),
       "tensor 't': expected data inside the 64 bytes of the file, got 16 "
       "bytes at offset 18446744073709551584 for [4] of F32"},
      {"SameData", TwoTensors(8, 8),
       "tensor 'b': expected data of its own, got 16 bytes shared with tensor "
       "'a'"},
      {"EndInAnother", TwoTensors(32, 40),
       "tensor 'b': expected data of its own, got 8 bytes shared with tensor "
       "'a'"},
      {"BeginInAnother", TwoTensors(48, 8),
       "tensor 'a': expected data of its own, got 8 bytes shared with tensor "
       "'b'"},
      {"InsideAnother", TwoTensors(24, 8),
       "tensor 'a': expected data of its own, got 16 bytes shared with tensor "
       "'b'"}};
}
INSTANTIATE_TEST_SUITE_P(Data, HostileTest, testing::ValuesIn(DataCases()),
                         CaseName);

// A file with everything in it.
std::string RichFile() {
  return File([](GgufWriter* file) {
    file->SetAlignment(16);
    file->Add("general.architecture", "llama");
    file->Add("count", uint32_t{3});
    file->Add("large", uint64_t{1} << 40);
    file->Add("ratio", 0.5);
    file->Add("flag", true);
    file->Add("tokens", std::vector<std::string>{"a", "", "bcd"});
    file->Add("types", std::vector<int32_t>{1, 2, 3});
    file->Add("scales", std::vector<float>{1, 2});
    for (const TensorType type : kTensorTypes) {
      const std::vector<float> values(256, 0.5f);
      file->AddTensor(TensorTypeName(type), type, {256},
                      QuantizeRow(type, values));
    }
  });
}

// Asks for everything, and says how much was there.
int Use(const GgufFile& file) {
  int num_ok = 0;
  for (const char* key :
       {"general.alignment", "general.architecture", "count", "large", "ratio",
        "flag", "tokens", "types", "scales", ""}) {
    num_ok += file.Integer(key).ok() + file.Number(key).ok() +
              file.Boolean(key).ok() + file.String(key).ok() +
              file.Integers(key).ok() + file.Numbers(key).ok() +
              file.Strings(key).ok();
  }
  for (const GgufTensor& tensor : file.tensors()) {
    std::vector<float> row(static_cast<size_t>(tensor.shape[0]));
    const int64_t bytes = RowBytes(tensor.type, tensor.shape[0]);
    DequantizeRow(tensor.type, tensor.data.first(static_cast<size_t>(bytes)),
                  row);
    num_ok += file.Find(tensor.name) == &tensor ? 1 : 0;
  }
  return num_ok;
}

TEST(HostileFilesTest, NoBeginningOfAFileIsAFile) {
  const std::string file = RichFile();
  ASSERT_OK_AND_ASSIGN(const auto whole, GgufFile::Parse(SpanOf(file)));
  // Four integers are numbers too, and three values and three arrays are what
  // they are. (An array of integers is one of numbers too.)
  EXPECT_EQ(Use(*whole), 2 * 3 + 3 + 1 + 2 + 1 + 8);
  for (size_t size = 0; size < file.size(); ++size) {
    // The copy ends where its memory does.
    const std::vector<char> beginning(file.begin(),
                                      file.begin() + static_cast<long>(size));
    const auto parsed =
        GgufFile::Parse(std::as_bytes(std::span<const char>(beginning)));
    ASSERT_THAT(parsed, StatusIs(kRefused)) << size;
  }
}

TEST(HostileFilesTest, EveryByteMayBeAnything) {
  const std::string file = RichFile();
  const size_t header_bytes = 1100;
  ASSERT_GT(file.size(), header_bytes);
  int num_read = 0;
  for (size_t at = 0; at < header_bytes; ++at) {
    for (const uint8_t flip : {0x01, 0x04, 0x20, 0x80, 0xFF}) {
      std::string changed = file;
      changed[at] = static_cast<char>(static_cast<uint8_t>(changed[at]) ^ flip);
      const auto parsed = GgufFile::Parse(SpanOf(changed));
      if (!parsed.ok()) continue;
      ++num_read;
      EXPECT_GT(Use(**parsed), 0);
    }
  }
  // Bytes of names and of values mean something else, but are no mistakes.
  EXPECT_GT(num_read, 500);
}

TEST(HostileFilesTest, ManyBytesMayBeAnything) {
  const std::string file = RichFile();
  for (uint64_t seed = 0; seed < SlowCases(4000); ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Rng rng(seed);
    std::string changed = file;
    const int num_changes = RandomInt(rng, 1, 6);
    for (int i = 0; i < num_changes; ++i) {
      const auto at = static_cast<size_t>(RandomInt(rng, 24, 1100));
      changed[at] = static_cast<char>(rng() & 0xFF);
    }
    ForgetPeak();
    const int64_t before = AllocatedBytes();
    const auto parsed = GgufFile::Parse(SpanOf(changed));
    EXPECT_LT(PeakAllocatedBytes() - before, 50000);
    if (parsed.ok()) {
      EXPECT_GT(Use(**parsed), 0);
    }
  }
}

}  // namespace
}  // namespace blockmgr
