// Problems for kernels: their shapes, and the file format byte for byte.
#include "bench/kernel_problem.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <unistd.h>

namespace blockmgr {
namespace {

std::string PathFor(const std::string& name) {
  return testing::TempDir() + "/kernel_problem_" + std::to_string(getpid()) +
         "_" + name;
}

std::string ReadAll(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void WriteAll(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

double MaxOverMean(const KernelProblem& problem) {
  const double mean = static_cast<double>(problem.num_entries()) /
                      static_cast<double>(problem.lengths.size());
  return *std::ranges::max_element(problem.lengths) / mean;
}

TEST(KernelProblemTest, HoldsTheBytesAskedForInEveryDistribution) {
  for (const LengthDistribution distribution :
       {LengthDistribution::kUniform, LengthDistribution::kRagged,
        LengthDistribution::kOneHuge}) {
    const int64_t bytes = int64_t{64} << 20;
    const auto problem = MakeKernelProblem(
        {.mean_length = 512, .kv_bytes = bytes, .distribution = distribution});
    ASSERT_TRUE(problem.ok()) << problem.status();
    EXPECT_TRUE(problem->Validate().ok());
    EXPECT_LE(problem->kv_bytes(), bytes);
    EXPECT_GE(problem->kv_bytes(), bytes / 100 * 99);
    EXPECT_EQ(problem->lengths.size(), 256u);
    switch (distribution) {
      case LengthDistribution::kUniform:
        EXPECT_EQ(MaxOverMean(*problem), 1.0);
        break;
      case LengthDistribution::kRagged:
        EXPECT_GT(MaxOverMean(*problem), 3.0);
        EXPECT_LT(MaxOverMean(*problem), 5.5);
        break;
      case LengthDistribution::kOneHuge:
        EXPECT_NEAR(MaxOverMean(*problem), 128.0, 2.0);
        break;
    }
    // Shuffled: hardly any page follows its predecessor in the pool.
    int64_t num_neighbours = 0;
    for (std::size_t i = 1; i < problem->page_ids.size(); ++i) {
      num_neighbours += problem->page_ids[i] == problem->page_ids[i - 1] + 1;
    }
    EXPECT_LT(num_neighbours, 20);
  }
}

TEST(KernelProblemTest, TheSameShapeGivesTheSameProblem) {
  const KernelProblemShape shape{.kv_bytes = 1 << 22,
                                 .distribution = LengthDistribution::kRagged};
  const auto first = MakeKernelProblem(shape);
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(*first, *MakeKernelProblem(shape));
  KernelProblemShape other = shape;
  other.seed = 2;
  EXPECT_FALSE(*first == *MakeKernelProblem(other));
}

TEST(KernelProblemTest, RefusesShapesThatCannotBe) {
  EXPECT_EQ(MakeKernelProblem({.kv_bytes = 100}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(MakeKernelProblem({.head_dim = 96}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(MakeKernelProblem({.mean_length = 0}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(ParseDistribution("normal").ok());
  EXPECT_TRUE(ParseDistribution("one-huge").ok());
}

TEST(KernelProblemTest, TheFileIsAsItsHeaderSays) {
  const KernelProblem problem{.num_sequences = 1,
                              .num_heads = 2,
                              .group_size = 4,
                              .head_dim = 64,
                              .page_size = 16,
                              .num_pages = 6,
                              .seed = 9,
                              .lengths = {17, 3},
                              .page_ids = {5, 0, 2}};
  const std::string path = PathFor("format");
  ASSERT_TRUE(WriteKernelProblem(path, problem).ok());
  const std::string bytes = ReadAll(path);
  std::string want = "BMKVPRB1";
  for (const int32_t word :
       {1, 0, 1, 2, 4, 64, 16, 6, 9, 0, 3, 0, 17, 3, 5, 0, 2}) {
    want.append(reinterpret_cast<const char*>(&word), sizeof(word));
  }
  EXPECT_EQ(bytes, want);
  const auto read = ReadKernelProblem(path);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, problem);
}

TEST(KernelProblemTest, RefusesFilesThatAreNotProblems) {
  EXPECT_EQ(ReadKernelProblem(PathFor("none")).status().code(),
            absl::StatusCode::kNotFound);
  const auto problem = MakeKernelProblem({.kv_bytes = 1 << 20});
  ASSERT_TRUE(problem.ok());
  const std::string path = PathFor("broken");
  ASSERT_TRUE(WriteKernelProblem(path, *problem).ok());
  const std::string good = ReadAll(path);
  const auto refused = [&](std::string bytes) {
    WriteAll(path, bytes);
    return ReadKernelProblem(path).status().code() ==
           absl::StatusCode::kInvalidArgument;
  };
  EXPECT_FALSE(refused(good));
  EXPECT_TRUE(refused(""));
  EXPECT_TRUE(refused(good.substr(0, 40)));
  EXPECT_TRUE(refused(good.substr(0, good.size() - 4)));
  EXPECT_TRUE(refused(good + "1234"));
  // Words of the header that are more than there can be, and a page named
  // twice.
  for (const std::size_t offset : {0, 8, 12, 16, 20, 24, 28, 32, 48}) {
    std::string bytes = good;
    bytes[offset] = '\x7F';
    bytes[offset + 3] = '\x7F';
    EXPECT_TRUE(refused(bytes)) << offset;
  }
  std::string twice = good;
  twice.replace(twice.size() - 4, 4, twice, twice.size() - 8, 4);
  EXPECT_TRUE(refused(twice));
}

}  // namespace
}  // namespace blockmgr
