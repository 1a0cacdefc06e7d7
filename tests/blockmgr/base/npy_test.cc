#include "blockmgr/base/npy.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/testing/is_invalid.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"

namespace blockmgr {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// Bytes of a .npy file, made as the format's description says.
std::string Npy(const std::string& header, const std::string& data,
                char version = 1) {
  std::string bytes = "\x93NUMPY";
  bytes.push_back(version);
  bytes.push_back('\0');
  bytes.push_back(static_cast<char>(header.size() % 256));
  bytes.push_back(static_cast<char>(header.size() / 256));
  if (version > 1) bytes.append(2, '\0');
  return bytes + header + data;
}

std::string Header(const std::string& type, const std::string& shape,
                   const std::string& fortran_order = "False") {
  return "{'descr': '" + type + "', 'fortran_order': " + fortran_order +
         ", 'shape': " + shape + ", }\n";
}

template <typename T>
std::string Bytes(std::initializer_list<T> values) {
  std::string bytes;
  for (const T value : values) {
    char raw[sizeof(T)];
    std::memcpy(raw, &value, sizeof(T));
    bytes.append(raw, sizeof(T));
  }
  return bytes;
}

class NpyTest : public ::testing::Test {
 protected:
  // From a file and from memory: the same, or neither.
  absl::StatusOr<NpyArray> Read(const std::string& bytes) {
    absl::StatusOr<NpyArray> array = ReadNpy(folder_.Write("a.npy", bytes));
    const absl::StatusOr<NpyArray> decoded = DecodeNpy(bytes);
    EXPECT_EQ(decoded.ok(), array.ok());
    if (!decoded.ok() || !array.ok()) {
      EXPECT_THAT(array.status().ToString(),
                  HasSubstr(std::string(decoded.status().message())));
      return array;
    }
    EXPECT_EQ(decoded->shape, array->shape);
    EXPECT_EQ(decoded->has_integers, array->has_integers);
    // To the bit: a NaN is not equal to itself.
    EXPECT_TRUE(std::ranges::equal(decoded->values, array->values,
                                   [](float left, float right) {
                                     return std::bit_cast<uint32_t>(left) ==
                                            std::bit_cast<uint32_t>(right);
                                   }));
    return array;
  }
  void ExpectRefused(const std::string& bytes, const std::string& why) {
    EXPECT_THAT(Read(bytes), IsInvalid("a.npy", why));
  }
  TempFolder folder_;
};

TEST_F(NpyTest, ReadsEveryType) {
  for (const auto& [type, data] :
       {std::pair<std::string, std::string>("<f4", Bytes<float>({1.5f, -2.0f})),
        {"<f8", Bytes<double>({1.5, -2.0})},
        {"<f2", Bytes<uint16_t>({0x3E00, 0xC000})},
        {">f4", std::string("\x3F\xC0\0\0\xC0\0\0\0", 8)}}) {
    ASSERT_OK_AND_ASSIGN(const NpyArray array,
                         Read(Npy(Header(type, "(2,)"), data)));
    EXPECT_THAT(array.shape, ElementsAre(2)) << type;
    EXPECT_THAT(array.values, ElementsAre(1.5f, -2.0f)) << type;
    EXPECT_FALSE(array.has_integers) << type;
  }
  for (const auto& [type, data] :
       {std::pair<std::string, std::string>("<i4", Bytes<int32_t>({7, -3})),
        {"<i8", Bytes<int64_t>({7, -3})}}) {
    ASSERT_OK_AND_ASSIGN(const NpyArray array,
                         Read(Npy(Header(type, "(1, 2)"), data)));
    EXPECT_THAT(array.shape, ElementsAre(1, 2)) << type;
    EXPECT_THAT(array.values, ElementsAre(7, -3)) << type;
    EXPECT_TRUE(array.has_integers) << type;
  }
}

TEST_F(NpyTest, ReadsOtherVersionsAndSpellings) {
  const std::string data = Bytes<float>({1, 2, 3, 4, 5, 6});
  const std::string header =
      "{\"shape\":(2,3),\"fortran_order\":False,\"descr\":\"<f4\"}";
  for (const char version : {'\1', '\2', '\3'}) {
    ASSERT_OK_AND_ASSIGN(const NpyArray array,
                         Read(Npy(header, data, version)));
    EXPECT_THAT(array.shape, ElementsAre(2, 3));
    EXPECT_THAT(array.values, ElementsAre(1, 2, 3, 4, 5, 6));
  }
  ASSERT_OK_AND_ASSIGN(const NpyArray scalar,
                       Read(Npy(Header("<f4", "()"), Bytes<float>({8}))));
  EXPECT_THAT(scalar.shape, IsEmpty());
  EXPECT_THAT(scalar.values, ElementsAre(8));
  ASSERT_OK_AND_ASSIGN(const NpyArray none,
                       Read(Npy(Header("<f4", "(0, 3)"), "")));
  EXPECT_THAT(none.shape, ElementsAre(0, 3));
  EXPECT_THAT(none.values, IsEmpty());
}

TEST_F(NpyTest, ReadsFortranOrderOfAnyType) {
  for (const auto& [type, data] :
       {std::pair<std::string, std::string>("<f8", Bytes<double>({1, 3, 2, 4})),
        {"<f2", Bytes<uint16_t>({0x3C00, 0x4200, 0x4000, 0x4400})},
        {">i4", std::string("\0\0\0\1\0\0\0\3\0\0\0\2\0\0\0\4", 16)},
        {"<i8", Bytes<int64_t>({1, 3, 2, 4})}}) {
    ASSERT_OK_AND_ASSIGN(const NpyArray array,
                         Read(Npy(Header(type, "(2, 2)", "True"), data)));
    EXPECT_THAT(array.values, ElementsAre(1, 2, 3, 4)) << type;
  }
}

// The value at (i, j, k, l) says so; the first index runs fastest in the file.
// More values than a file is read at a time.
TEST_F(NpyTest, ReadsFortranOrderOfManyDimensions) {
  constexpr int kI = 7, kJ = 1, kK = 110, kL = 91;
  const auto value = [](int i, int j, int k, int l) {
    return ((i * kJ + j) * kK + k) * kL + l;
  };
  std::string data;
  for (int l = 0; l < kL; ++l) {
    for (int k = 0; k < kK; ++k) {
      for (int j = 0; j < kJ; ++j) {
        for (int i = 0; i < kI; ++i) {
          data += Bytes<int32_t>({value(i, j, k, l)});
        }
      }
    }
  }
  ASSERT_OK_AND_ASSIGN(
      const NpyArray array,
      Read(Npy(Header("<i4", "(7, 1, 110, 91)", "True"), data)));
  EXPECT_THAT(array.shape, ElementsAre(kI, kJ, kK, kL));
  ASSERT_EQ(array.values.size(), size_t{kI} * kJ * kK * kL);
  for (size_t at = 0; at < array.values.size(); ++at) {
    ASSERT_EQ(array.values[at], static_cast<float>(at));
  }
}

// One dimension, none, or nothing in it: both orders are the same.
TEST_F(NpyTest, ReadsFortranOrderOfFewDimensions) {
  ASSERT_OK_AND_ASSIGN(
      const NpyArray row,
      Read(Npy(Header("<f4", "(3,)", "True"), Bytes<float>({1, 2, 3}))));
  EXPECT_THAT(row.values, ElementsAre(1, 2, 3));
  ASSERT_OK_AND_ASSIGN(
      const NpyArray scalar,
      Read(Npy(Header("<f4", "()", "True"), Bytes<float>({8}))));
  EXPECT_THAT(scalar.values, ElementsAre(8));
  ASSERT_OK_AND_ASSIGN(const NpyArray none,
                       Read(Npy(Header("<f4", "(3, 0, 2)", "True"), "")));
  EXPECT_THAT(none.shape, ElementsAre(3, 0, 2));
  EXPECT_THAT(none.values, IsEmpty());
}

TEST_F(NpyTest, ReadsWhatItWrote) {
  NpyArray array;
  array.shape = {2, 1, 40000};
  for (int i = 0; i < 80000; ++i) {
    array.values.push_back(static_cast<float>(i) * 0.37f - 9.0f);
  }
  array.values[3] = std::numeric_limits<float>::infinity();
  const std::string path = folder_.File("b.npy");
  ASSERT_THAT(WriteNpy(path, array), IsOk());
  ASSERT_OK_AND_ASSIGN(const NpyArray read, ReadNpy(path));
  EXPECT_EQ(read.shape, array.shape);
  EXPECT_EQ(read.values, array.values);

  const std::vector<int64_t> shape = {3};
  const std::vector<int32_t> ints = {-1, 0, 1 << 20};
  ASSERT_THAT(WriteNpyInts(path, shape, ints), IsOk());
  ASSERT_OK_AND_ASSIGN(const NpyArray read_ints, ReadNpy(path));
  EXPECT_THAT(read_ints.shape, ElementsAre(3));
  EXPECT_THAT(read_ints.values, ElementsAre(-1, 0, 1 << 20));
}

TEST_F(NpyTest, WritesAsNumPyDoes) {
  const std::string path = folder_.File("c.npy");
  ASSERT_THAT(
      WriteNpyInts(path, std::vector<int64_t>{1}, std::vector<int32_t>{258}),
      IsOk());
  std::ifstream file(path, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), {});
  const std::string header = Header("<i4", "(1,)");
  ASSERT_EQ(bytes.size(), 132u);  // data at a multiple of 64
  EXPECT_EQ(bytes.substr(0, 10), std::string("\x93NUMPY\1\0\x76\0", 10));
  EXPECT_EQ(bytes.substr(10, header.size() - 1),
            header.substr(0, header.size() - 1));
  EXPECT_EQ(bytes[127], '\n');
  EXPECT_EQ(bytes.substr(128), std::string("\2\1\0\0", 4));
}

TEST_F(NpyTest, RefusesOtherFiles) {
  ExpectRefused("", "expected a .npy file");
  ExpectRefused("{\"json\": 1, \"long\": 2}", "expected a .npy file");
  ExpectRefused(Npy(Header("<f4", "(1,)"), Bytes<float>({1}), 4),
                "expected version 1, 2 or 3, got 4");
  ExpectRefused(Npy(Header("<c8", "(1,)"), ""), "descr: expected float16");
  ExpectRefused(Npy(Header("|b1", "(1,)"), ""), "descr: expected float16");
  ExpectRefused(Npy("{'descr': '<f4', 'shape': (1,)}", ""), "fortran_order");
  ExpectRefused(Npy(Header("<f4", "(1,)", "Maybe"), Bytes<float>({1})),
                "fortran_order: expected True or False, got 'Maybe'");
  EXPECT_THAT(ReadNpy(folder_.File("none.npy")),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("none.npy")));
  EXPECT_THAT(ReadNpy(folder_.File("")), Not(IsOk()));  // a folder
}

TEST_F(NpyTest, RefusesShapesThatLie) {
  ExpectRefused(Npy(Header("<f4", "(3,)"), Bytes<float>({1, 2})),
                "expected 12 bytes of data for shape [3], got 8");
  ExpectRefused(Npy(Header("<f4", "(1,)"), Bytes<float>({1, 2})), "got 8");
  ExpectRefused(Npy(Header("<f4", "(-1,)"), ""), "shape: expected sizes");
  ExpectRefused(Npy(Header("<f4", "(a,)"), ""), "shape: expected sizes");
  ExpectRefused(Npy(Header("<f4", "[1]"), ""), "shape: expected a tuple");
  // Nothing is allocated for what is not there.
  ExpectRefused(Npy(Header("<f4", "(1000000000, 1000)"), ""), "got 0");
  ExpectRefused(Npy(Header("<f4", "(4000000000, 4000000000, 4000000000)"), ""),
                "at most 2^40 values");
}

TEST_F(NpyTest, RefusesEveryTruncation) {
  const std::string whole =
      Npy(Header("<f4", "(2, 2)"), Bytes<float>({1, 2, 3, 4}));
  ASSERT_THAT(Read(whole), IsOk());
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_THAT(Read(whole.substr(0, size)), Not(IsOk())) << size;
  }
}

TEST_F(NpyTest, SurvivesFlippedBytes) {
  const std::string whole =
      Npy(Header("<f4", "(2, 2)"), Bytes<float>({1, 2, 3, 4}));
  for (size_t at = 0; at < whole.size() - 16; ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string bytes = whole;
      bytes[at] = static_cast<char>(bytes[at] ^ (1 << bit));
      const absl::StatusOr<NpyArray> array = Read(bytes);
      // What is read has the size of the data.
      if (!array.ok()) continue;
      EXPECT_LE(array->values.size(), 8u) << at;
    }
  }
}

}  // namespace
}  // namespace blockmgr
