// Problems for kernels: their shapes, and the file format byte for byte.
#include "bench/kernel_problem.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "blockmgr/base/read_file.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"

namespace blockmgr {
namespace {

// One sequence of two lists and a tail of one block.
KernelProblem TailProblem() {
  return {.num_sequences = 1,
          .num_heads = 2,
          .group_size = 4,
          .head_dim = 64,
          .page_size = 16,
          .num_pages = 8,
          .element_type = ElementType::kHalf,
          .seed = 9,
          .lengths = {17, 3},
          .tail_lengths = {10},
          .page_ids = {5, 0, 2},
          .tail_blocks = {3}};
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
        EXPECT_EQ(problem->max_over_mean(), 1.0);
        break;
      case LengthDistribution::kRagged:
        EXPECT_NEAR(problem->max_over_mean(), 4.0, 0.05);
        break;
      case LengthDistribution::kOneHuge:
        EXPECT_NEAR(problem->max_over_mean(), 128.0, 2.0);
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

// However many lists there are: from a sequence or two to 4 GiB of them.
TEST(KernelProblemTest, RaggedListsAreAsRaggedAtEverySize) {
  for (const int64_t num_lists : {16, 32, 256, 2048, 16384}) {
    for (uint64_t seed = 1; seed < 4; ++seed) {
      SCOPED_TRACE(testing::Message() << num_lists << " seed " << seed);
      const auto problem =
          MakeKernelProblem({.head_dim = 64,
                             .mean_length = 1024,
                             .kv_bytes = num_lists * 1024 * 256,
                             .distribution = LengthDistribution::kRagged,
                             .seed = seed});
      ASSERT_TRUE(problem.ok()) << problem.status();
      ASSERT_EQ(std::ssize(problem->lengths), num_lists);
      EXPECT_NEAR(problem->max_over_mean(), 4.0, 0.05);
      // No list has half, as in one-huge: the others are ragged as well.
      std::vector<int32_t> sorted = problem->lengths;
      std::ranges::sort(sorted);
      EXPECT_LT(sorted[num_lists / 4] * 1.25, sorted[num_lists * 3 / 4]);
    }
  }
}

TEST(KernelProblemTest, AFewRaggedListsAreRaggedToo) {
  for (const int32_t num_heads : {1, 2, 5, 8}) {
    const auto problem =
        MakeKernelProblem({.num_heads = num_heads,
                           .mean_length = 1000,
                           .kv_bytes = int64_t{num_heads} * 1000 * 512,
                           .distribution = LengthDistribution::kRagged});
    ASSERT_TRUE(problem.ok()) << problem.status();
    EXPECT_LE(problem->max_over_mean(), std::min(4.05, 1.0 * num_heads));
    EXPECT_GE(problem->max_over_mean(), num_heads == 1 ? 1.0 : 1.1);
    EXPECT_LE(problem->CountEntries(), int64_t{num_heads} * 1000);
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

TEST(KernelProblemTest, RegionsMayHaveAnyLengths) {
  const KernelProblemShape shape{.num_heads = 2, .tail_tokens = 5};
  ASSERT_OK_AND_ASSIGN(const KernelProblem problem,
                       MakeProblemOfLengths(shape, {100, 1, 17, 16}));
  EXPECT_EQ(problem.num_sequences, 2);
  EXPECT_EQ(problem.lengths, (std::vector<int32_t>{100, 1, 17, 16}));
  EXPECT_EQ(problem.tail_lengths, (std::vector<int32_t>{5, 5}));
  EXPECT_EQ(problem.page_ids.size(), 7u + 1 + 2 + 1);
  EXPECT_TRUE(problem.Validate().ok());
  const auto refusal = [&](std::vector<int32_t> lengths) {
    return std::string(
        MakeProblemOfLengths(shape, std::move(lengths)).status().message());
  };
  EXPECT_EQ(refusal({}), "lists: expected 1 to 67108864, in 2 heads, got 0");
  EXPECT_EQ(refusal({1, 2, 3}),
            "lists: expected 1 to 67108864, in 2 heads, got 3");
  EXPECT_EQ(refusal({1, -2}), "length: expected at least 0, got -2");
  EXPECT_EQ(refusal({2147483647, 1}),
            "lengths: expected fewer than 2^31 tokens in all lists, got "
            "2147483648");
}

TEST(KernelProblemTest, RefusesShapesThatCannotBe) {
  EXPECT_THAT(MakeKernelProblem({.kv_bytes = 100}),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(MakeKernelProblem({.head_dim = 96}),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(MakeKernelProblem({.mean_length = 0}),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_FALSE(ParseDistribution("normal").ok());
  EXPECT_TRUE(ParseDistribution("one-huge").ok());
}

TEST(KernelProblemTest, TheFileIsAsItsHeaderSays) {
  const TempFolder folder;
  const KernelProblem problem = TailProblem();
  const std::string path = folder.File("format");
  ASSERT_TRUE(WriteKernelProblem(path, problem).ok());
  ASSERT_OK_AND_ASSIGN(const std::string bytes, ReadFile(path));
  std::string want = "BMKVPRB1";
  for (const int32_t word :
       {2, 1, 1, 2, 4, 64, 16, 8, 9, 0, 3, 0, 1, 0, 17, 3, 10, 5, 0, 2, 3}) {
    want.append(reinterpret_cast<const char*>(&word), sizeof(word));
  }
  EXPECT_EQ(bytes, want);
  const auto read = ReadKernelProblem(path);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, problem);
  // Both lists have the tail.
  EXPECT_EQ(problem.CountEntries(), 17 + 3 + 2 * 10);
  EXPECT_EQ(problem.tail_tokens(), 10);
  EXPECT_EQ(problem.kv_bytes(), 40 * 64 * 2 * 2);
  // With the tail, 27 and 13.
  EXPECT_EQ(problem.max_over_mean(), 27.0 / 20.0);
}

// On top of the regions, which are what they are without; in blocks of their
// own, anywhere in the pool.
TEST(KernelProblemTest, TailsAreBesideTheRegions) {
  KernelProblemShape shape{.num_heads = 4,
                           .mean_length = 100,
                           .kv_bytes = int64_t{4} << 20,
                           .distribution = LengthDistribution::kRagged};
  const auto without = MakeKernelProblem(shape);
  shape.tail_tokens = 37;
  shape.element_type = ElementType::kHalf;
  const auto with = MakeKernelProblem(shape);
  ASSERT_TRUE(without.ok() && with.ok()) << with.status();
  EXPECT_EQ(without->tail_tokens(), 0);
  EXPECT_TRUE(without->tail_blocks.empty());
  EXPECT_EQ(with->lengths, without->lengths);
  EXPECT_EQ(with->num_sequences, without->num_sequences);
  EXPECT_EQ(with->tail_lengths, std::vector<int32_t>(with->num_sequences, 37));
  EXPECT_EQ(with->tail_blocks.size(), 3u * with->num_sequences);
  EXPECT_EQ(with->num_pages - without->num_pages, 12 * with->num_sequences);
  EXPECT_EQ(with->kv_bytes() - without->kv_bytes(),
            int64_t{37} * 512 * 4 * with->num_sequences);
  EXPECT_FALSE(std::ranges::is_sorted(with->tail_blocks));
  shape.tail_tokens = -1;
  EXPECT_THAT(MakeKernelProblem(shape),
              StatusIs(absl::StatusCode::kInvalidArgument));
  shape.tail_tokens = 1 << 30;
  EXPECT_THAT(MakeKernelProblem(shape),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(KernelProblemTest, ElementTypesHaveNames) {
  for (const ElementType type : {ElementType::kBFloat16, ElementType::kHalf}) {
    const auto parsed = ParseElementType(ElementName(type));
    ASSERT_TRUE(parsed.ok());
    EXPECT_EQ(*parsed, type);
  }
  const auto other = ParseElementType("float32");
  EXPECT_EQ(other.status().message(),
            "dtype: expected bf16 or fp16, got 'float32'");
}

TEST(KernelProblemTest, RefusesFilesThatAreNotProblems) {
  const TempFolder folder;
  EXPECT_THAT(ReadKernelProblem(folder.File("none")),
              StatusIs(absl::StatusCode::kNotFound));
  const auto problem =
      MakeKernelProblem({.kv_bytes = 1 << 20, .tail_tokens = 20});
  ASSERT_TRUE(problem.ok());
  const std::string path = folder.File("broken");
  ASSERT_TRUE(WriteKernelProblem(path, *problem).ok());
  ASSERT_OK_AND_ASSIGN(const std::string good, ReadFile(path));
  const auto refused = [&](const std::string& bytes) {
    return absl::IsInvalidArgument(
        ReadKernelProblem(folder.Write("broken", bytes)).status());
  };
  EXPECT_FALSE(refused(good));
  EXPECT_TRUE(refused(""));
  EXPECT_TRUE(refused(good.substr(0, 40)));
  EXPECT_TRUE(refused(good.substr(0, good.size() - 4)));
  EXPECT_TRUE(refused(good + "1234"));
  // Words of the header that are more than there can be, and a block named
  // twice.
  for (const std::size_t offset : {0, 8, 12, 16, 20, 24, 28, 32, 48, 56}) {
    std::string bytes = good;
    bytes[offset] = '\x7F';
    bytes[offset + 3] = '\x7F';
    EXPECT_TRUE(refused(bytes)) << offset;
  }
  std::string twice = good;
  twice.replace(twice.size() - 4, 4, twice, twice.size() - 8, 4);
  EXPECT_TRUE(refused(twice));
}

TEST(KernelProblemTest, OtherVersionsAndTypesAreNamed) {
  const auto problem = MakeKernelProblem({.kv_bytes = 1 << 20});
  ASSERT_TRUE(problem.ok());
  const TempFolder folder;
  const std::string path = folder.File("versions");
  ASSERT_TRUE(WriteKernelProblem(path, *problem).ok());
  ASSERT_OK_AND_ASSIGN(const std::string good, ReadFile(path));
  const auto refusal = [&](std::size_t offset, char value, std::size_t size) {
    std::string bytes = good;
    bytes[offset] = value;
    folder.Write("versions", bytes.substr(0, size));
    return std::string(ReadKernelProblem(path).status().message());
  };
  EXPECT_EQ(refusal(8, 1, good.size()),
            path + ": expected version 2 of the format, got version 1");
  // However little of it there is.
  EXPECT_EQ(refusal(8, 3, 12),
            path + ": expected version 2 of the format, got version 3");
  EXPECT_EQ(refusal(8, 2, 63),
            path + ": expected a header of 64 bytes, got 63");
  EXPECT_EQ(refusal(12, 2, good.size()),
            path +
                ": expected elements of type 0 (bf16) or 1 (fp16), got "
                "type 2");
}

// A block's pages are the tail's alone, and blocks are whole.
TEST(KernelProblemTest, RefusesTailsThatCannotBe) {
  const KernelProblem good = TailProblem();
  EXPECT_TRUE(good.Validate().ok()) << good.Validate();
  for (const int32_t block : {-1, 0, 1, 2, 4}) {
    KernelProblem bad = good;
    bad.tail_blocks = {block};
    EXPECT_FALSE(bad.Validate().ok()) << block;
  }
  KernelProblem bad = good;
  bad.tail_lengths = {17};
  EXPECT_FALSE(bad.Validate().ok());
  bad.tail_lengths = {-1};
  EXPECT_FALSE(bad.Validate().ok());
  bad.tail_lengths = {};
  EXPECT_FALSE(bad.Validate().ok());
  bad = good;
  bad.num_pages = 9;
  EXPECT_FALSE(bad.Validate().ok());
}

TEST(KernelProblemTest, NamesPagesThatArePagesOfNoneOrOfTwo) {
  KernelProblem good = TailProblem();
  good.tail_lengths = {17};
  const auto refusal = [&](std::vector<int32_t> page_ids,
                           std::vector<int32_t> tail_blocks) {
    KernelProblem bad = good;
    bad.page_ids = std::move(page_ids);
    bad.tail_blocks = std::move(tail_blocks);
    return std::string(bad.Validate().message());
  };
  EXPECT_EQ(refusal({4, 0, 1}, {3, 1}), "");
  EXPECT_EQ(refusal({4, 0, 8}, {3, 1}), "page id: expected below 8, got 8");
  EXPECT_EQ(refusal({4, -1, 1}, {3, 1}), "page id: expected below 8, got -1");
  EXPECT_EQ(refusal({4, 0, 0}, {3, 1}), "page id: expected each once, got 0");
  // Of a tail and of a list; of two tails; of none.
  EXPECT_EQ(refusal({4, 0, 3}, {3, 1}), "page id: expected each once, got 3");
  EXPECT_EQ(refusal({4, 0, 1}, {3, 3}), "page id: expected each once, got 6");
  EXPECT_EQ(refusal({4, 0, 1}, {3, 4}), "tail block: expected below 4, got 4");
  EXPECT_EQ(refusal({4, 0, 1}, {-1, 1}),
            "tail block: expected below 4, got -1");
}

}  // namespace
}  // namespace blockmgr
