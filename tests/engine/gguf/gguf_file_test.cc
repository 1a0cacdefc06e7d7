#include "engine/gguf/gguf_file.h"

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <sys/stat.h>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/testing/gguf_writer.h"
#include "tests/testing/is_invalid.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"

namespace blockmgr {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kNotFound = absl::StatusCode::kNotFound;

std::span<const std::byte> AsBytes(absl::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// A file and the bytes that it borrows.
struct Parsed {
  std::string bytes;
  std::shared_ptr<const GgufFile> file;

  const GgufFile* operator->() const { return file.get(); }
};

Parsed Parse(const GgufWriter& writer) {
  Parsed parsed{.bytes = writer.Finish(), .file = nullptr};
  auto file = GgufFile::Parse(AsBytes(parsed.bytes));
  EXPECT_OK(file);
  if (file.ok()) parsed.file = *std::move(file);
  return parsed;
}

std::vector<std::byte> Floats(const std::vector<float>& values) {
  return QuantizeRow(TensorType::kF32, values);
}

// The value, which must be there.
template <typename T>
T Ok(absl::StatusOr<T> value) {
  EXPECT_OK(value);
  return value.ok() ? *std::move(value) : T{};
}

class GgufVersionTest : public testing::TestWithParam<uint32_t> {};
INSTANTIATE_TEST_SUITE_P(All, GgufVersionTest, testing::Values(2u, 3u));

TEST_P(GgufVersionTest, KeysAndTensorsAreThoseOfTheFile) {
  GgufWriter writer(GetParam());
  writer.Add("general.architecture", "llama");
  writer.Add("llama.block_count", uint32_t{30});
  writer.Add("llama.rope.freq_base", 1e5f);
  writer.Add("tokenizer.ggml.add_bos_token", true);
  writer.Add("tokenizer.ggml.tokens", std::vector<std::string>{"a", "", "b c"});
  writer.AddTensor("norm", TensorType::kF32, {3}, Floats({1, -2, 0.5f}));
  writer.AddTensor("matrix", TensorType::kF32, {2, 3},
                   Floats({0, 1, 10, 11, 20, 21}));
  const Parsed file = Parse(writer);
  EXPECT_EQ(Ok(file->String("general.architecture")), "llama");
  EXPECT_EQ(Ok(file->Integer("llama.block_count")), 30);
  EXPECT_EQ(Ok(file->Number("llama.rope.freq_base")), 1e5);
  EXPECT_TRUE(Ok(file->Boolean("tokenizer.ggml.add_bos_token")));
  EXPECT_THAT(Ok(file->Strings("tokenizer.ggml.tokens")),
              ElementsAre("a", "", "b c"));
  ASSERT_EQ(file->tensors().size(), 2u);
  EXPECT_EQ(file->tensors()[0].name, "norm");
  EXPECT_THAT(file->tensors()[0].data, ElementsAreArray(Floats({1, -2, 0.5f})));
  const GgufTensor* matrix = file->Find("matrix");
  ASSERT_EQ(matrix, &file->tensors()[1]);
  EXPECT_EQ(matrix->name, "matrix");
  EXPECT_EQ(matrix->type, TensorType::kF32);
  EXPECT_THAT(matrix->shape, ElementsAre(2, 3));
  EXPECT_THAT(matrix->data, ElementsAreArray(Floats({0, 1, 10, 11, 20, 21})));
}

TEST(GgufFileTest, NothingIsAFileToo) {
  const Parsed file = Parse(GgufWriter());
  EXPECT_THAT(file->tensors(), IsEmpty());
  EXPECT_EQ(file->Find(""), nullptr);
  EXPECT_FALSE(file->Has(""));
}

TEST(GgufFileTest, IntegersOfEveryTypeAreIntegersAndNumbers) {
  GgufWriter writer;
  writer.Add("u8", std::numeric_limits<uint8_t>::max());
  writer.Add("i8", std::numeric_limits<int8_t>::min());
  writer.Add("u16", std::numeric_limits<uint16_t>::max());
  writer.Add("i16", std::numeric_limits<int16_t>::min());
  writer.Add("u32", std::numeric_limits<uint32_t>::max());
  writer.Add("i32", std::numeric_limits<int32_t>::min());
  writer.Add("u64", uint64_t{std::numeric_limits<int64_t>::max()});
  writer.Add("i64", std::numeric_limits<int64_t>::min());
  const std::vector<std::pair<std::string, int64_t>> expected = {
      {"u8", 255},
      {"i8", -128},
      {"u16", 65535},
      {"i16", -32768},
      {"u32", 4294967295},
      {"i32", -2147483648},
      {"u64", 9223372036854775807},
      {"i64", std::numeric_limits<int64_t>::min()}};
  const Parsed file = Parse(writer);
  for (const auto& [key, value] : expected) {
    EXPECT_TRUE(file->Has(key));
    EXPECT_EQ(Ok(file->Integer(key)), value) << key;
    EXPECT_EQ(Ok(file->Number(key)), static_cast<double>(value)) << key;
  }
}

TEST(GgufFileTest, FloatsOfBothTypesAreNumbers) {
  GgufWriter writer;
  writer.Add("f32", 0.1f);
  writer.Add("f64", 0.1);
  writer.Add("infinity", std::numeric_limits<float>::infinity());
  writer.Add("beyond int64", std::numeric_limits<uint64_t>::max());
  const Parsed file = Parse(writer);
  EXPECT_EQ(Ok(file->Number("f32")), double{0.1f});
  EXPECT_EQ(Ok(file->Number("f64")), 0.1);
  EXPECT_EQ(Ok(file->Number("infinity")),
            std::numeric_limits<double>::infinity());
  EXPECT_EQ(Ok(file->Number("beyond int64")), 0x1p64);
}

TEST(GgufFileTest, ArraysOfEveryTypeAreRead) {
  GgufWriter writer;
  writer.Add("u8", std::vector<uint8_t>{0, 255});
  writer.Add("i8", std::vector<int8_t>{-128, 127});
  writer.Add("u16", std::vector<uint16_t>{65535});
  writer.Add("i16", std::vector<int16_t>{-1});
  writer.Add("u32", std::vector<uint32_t>{4294967295});
  writer.Add("i32", std::vector<int32_t>{-5, 6, -7});
  writer.Add("u64", std::vector<uint64_t>{1});
  writer.Add("i64", std::vector<int64_t>{-1});
  writer.Add("bool", std::vector<bool>{true, false});
  writer.Add("f32", std::vector<float>{0.5f, -2});
  writer.Add("f64", std::vector<double>{0.1, 1e38});
  writer.Add("none", std::vector<float>{});
  const Parsed file = Parse(writer);
  EXPECT_EQ(file->ArrayLength("u8"), 2);
  EXPECT_THAT(Ok(file->Integers("u8")), ElementsAre(0, 255));
  EXPECT_THAT(Ok(file->Integers("i8")), ElementsAre(-128, 127));
  EXPECT_THAT(Ok(file->Integers("u16")), ElementsAre(65535));
  EXPECT_THAT(Ok(file->Integers("i16")), ElementsAre(-1));
  EXPECT_THAT(Ok(file->Integers("u32")), ElementsAre(4294967295));
  EXPECT_THAT(Ok(file->Integers("i32")), ElementsAre(-5, 6, -7));
  EXPECT_THAT(Ok(file->Integers("u64")), ElementsAre(1));
  EXPECT_THAT(Ok(file->Integers("i64")), ElementsAre(-1));
  EXPECT_THAT(Ok(file->Integers("bool")), ElementsAre(1, 0));
  EXPECT_THAT(Ok(file->Numbers("f32")), ElementsAre(0.5f, -2));
  EXPECT_THAT(Ok(file->Numbers("f64")), ElementsAre(0.1f, 1e38f));
  EXPECT_THAT(Ok(file->Numbers("i32")), ElementsAre(-5, 6, -7));
  EXPECT_THAT(Ok(file->Numbers("none")), IsEmpty());
}

TEST(GgufFileTest, ManyStringsComeBack) {
  std::vector<std::string> tokens;
  tokens.reserve(50000);
  for (int i = 0; i < 50000; ++i) tokens.push_back(absl::StrCat("token ", i));
  GgufWriter writer;
  writer.Add("tokens", tokens);
  writer.Add("after", int32_t{1});
  const Parsed file = Parse(writer);
  EXPECT_THAT(Ok(file->Strings("tokens")), ElementsAreArray(tokens));
  EXPECT_EQ(Ok(file->Integer("after")), 1);
}

TEST(GgufFileTest, EachErrorNamesTheKeyAndBothTypes) {
  GgufWriter writer;
  writer.Add("text", "x");
  writer.Add("number", 0.5f);
  writer.Add("integer", int8_t{1});
  writer.Add("truth", true);
  writer.Add("integers", std::vector<int32_t>{1});
  writer.Add("texts", std::vector<std::string>{"x"});
  const Parsed file = Parse(writer);
  const auto expect = [](const auto& result, const std::string& message) {
    EXPECT_THAT(result, StatusIs(kInvalid, message));
  };
  expect(file->Integer("text"),
         "key 'text': expected an integer, got a value of type string");
  expect(file->Integer("number"),
         "key 'number': expected an integer, got a value of type float32");
  expect(file->Integer("truth"),
         "key 'truth': expected an integer, got a value of type bool");
  expect(file->Integer("integers"),
         "key 'integers': expected an integer, got an array of int32");
  expect(file->Number("text"),
         "key 'text': expected a number, got a value of type string");
  expect(file->Boolean("integer"),
         "key 'integer': expected a bool, got a value of type int8");
  expect(file->String("number"),
         "key 'number': expected a string, got a value of type float32");
  expect(file->Integers("integer"),
         "key 'integer': expected an array of integers or bools, got a value "
         "of type int8");
  expect(file->Numbers("texts"),
         "key 'texts': expected an array of numbers, got an array of string");
  expect(file->Strings("integers"),
         "key 'integers': expected an array of strings, got an array of int32");
  EXPECT_EQ(file->ArrayLength("integer"), std::nullopt);
  EXPECT_EQ(file->ArrayLength("nowhere"), std::nullopt);
  EXPECT_FALSE(file->Has("nowhere"));
  EXPECT_THAT(file->Strings("nowhere"),
              StatusIs(kNotFound,
                       "key 'nowhere': expected an array of strings, got no "
                       "such key"));
}

TEST(GgufFileTest, ValuesOutOfRangeAreNamed) {
  GgufWriter writer;
  writer.Add("large", uint64_t{1} << 63);
  writer.Add("larges", std::vector<uint64_t>{1, ~uint64_t{0}});
  writer.AddValue("truth", GgufValueType<bool>(), "\2");
  writer.AddArray("truths", GgufValueType<bool>(), 2, "\1\3");
  writer.Add("numbers", std::vector<double>{-1e39});
  const Parsed file = Parse(writer);
  EXPECT_THAT(file->Integer("large"),
              StatusIs(kInvalid,
                       "key 'large': expected an integer below 2^63, got "
                       "9223372036854775808"));
  EXPECT_THAT(file->Integers("larges"), IsInvalid("got 18446744073709551615"));
  EXPECT_THAT(
      file->Boolean("truth"),
      StatusIs(kInvalid, "key 'truth': expected a bool of 0 or 1, got 2"));
  EXPECT_THAT(
      file->Integers("truths"),
      StatusIs(kInvalid, "key 'truths': expected a bool of 0 or 1, got 3"));
  EXPECT_THAT(file->Numbers("numbers"),
              StatusIs(kInvalid,
                       "key 'numbers': expected numbers in the range of fp32, "
                       "got -1e+39"));
}

TEST(GgufFileTest, TensorsOfEveryTypeHaveTheirBytes) {
  GgufWriter writer;
  writer.SetAlignment(64);
  std::vector<std::vector<std::byte>> rows;
  for (const TensorType type : kTensorTypes) {
    std::vector<float> values(512);
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<float>(i % 19) - 9;
    }
    rows.push_back(QuantizeRow(type, values));
    writer.AddTensor(TensorTypeName(type), type, {256, 1, 2}, rows.back());
  }
  const Parsed file = Parse(writer);
  ASSERT_EQ(file->tensors().size(), rows.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    const GgufTensor& tensor = file->tensors()[i];
    EXPECT_EQ(tensor.name, TensorTypeName(tensor.type));
    EXPECT_THAT(tensor.shape, ElementsAre(256, 1, 2));
    EXPECT_THAT(tensor.data, ElementsAreArray(rows[i]));
    const std::byte* begin = AsBytes(file.bytes).data();
    EXPECT_EQ((tensor.data.data() - begin) % 64, 0);
  }
}

// Gaps, any order of the data and bytes behind them are no mistakes.
TEST(GgufFileTest, TensorsMayLieAnywhereInTheData) {
  GgufWriter writer;
  writer.AddTensorInfo("second", {1}, 0, 128);
  writer.AddTensorInfo("first", {1}, 0, 32);
  writer.AddData(std::string(200, '\1'));
  const Parsed file = Parse(writer);
  EXPECT_EQ(
      file->Find("second")->data.data() - file->Find("first")->data.data(), 96);
}

TEST(GgufFileTest, DescriptionsNameTypesAndBytes) {
  GgufWriter writer;
  EXPECT_EQ(Parse(writer)->Describe(),
            "architecture unknown, name unknown, no tensors");
  writer.Add("general.architecture", "llama");
  writer.Add("general.name", "Small\n");
  writer.AddTensor("a", TensorType::kF32, {3}, Floats({1, 2, 3}));
  writer.AddTensor("b", TensorType::kQ8_0, {32},
                   QuantizeRow(TensorType::kQ8_0, std::vector<float>(32)));
  writer.AddTensor("c", TensorType::kF32, {2}, Floats({1, 2}));
  EXPECT_EQ(Parse(writer)->Describe(),
            "architecture 'llama', name 'Small\\n', tensors: 2 F32, 1 Q8_0, of "
            "54 bytes");
}

TEST(GgufFileTest, OpenReadsAFile) {
  GgufWriter writer;
  writer.Add("name", "x");
  writer.AddTensor("norm", TensorType::kF32, {2}, Floats({1, 2}));
  const TempFolder folder;
  ASSERT_OK_AND_ASSIGN(
      const std::shared_ptr<const GgufFile> file,
      GgufFile::Open(folder.Write("model.gguf", writer.Finish())));
  EXPECT_EQ(Ok(file->String("name")), "x");
  EXPECT_THAT(file->Find("norm")->data, ElementsAreArray(Floats({1, 2})));
}

TEST(GgufFileTest, OpenNamesThePathInErrors) {
  const TempFolder folder;
  const std::string nowhere = folder.File("nowhere");
  EXPECT_THAT(
      GgufFile::Open(nowhere),
      StatusIs(kNotFound,
               absl::StrCat(nowhere, ": expected a readable file, got: ",
                            "No such file or directory")));
  EXPECT_THAT(GgufFile::Open(folder.path()),
              StatusIs(kNotFound, HasSubstr("a folder, a pipe or a device")));
  const std::string pipe = folder.File("pipe");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THAT(GgufFile::Open(pipe),
              StatusIs(kNotFound, HasSubstr("a folder, a pipe or a device")));
  const std::string empty = folder.Write("empty", "");
  EXPECT_THAT(
      GgufFile::Open(empty),
      StatusIs(kInvalid, AllOf(StartsWith(absl::StrCat(empty, ": header: ")),
                               HasSubstr("got 0 to the end"))));
  const std::string text = folder.Write("text", "Once upon a time");
  EXPECT_THAT(GgufFile::Open(text),
              StatusIs(kInvalid,
                       absl::StrCat(text, ": header: expected the word GGUF, ",
                                    "got 'Once'")));
}

}  // namespace
}  // namespace blockmgr
