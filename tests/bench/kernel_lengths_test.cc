// Files of what heads keep, and the lists that are made of them.
#include "bench/kernel_lengths.h"

#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "blockmgr/base/npy.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"

namespace blockmgr {
namespace {

using Ints = std::vector<int32_t>;

// The message with which a file of these integers is refused, without the path.
std::string Refusal(const std::vector<int64_t>& shape, const Ints& counts) {
  const TempFolder folder;
  const std::string path =
      folder.Write("kept.npy", EncodeNpyInts(shape, counts));
  const absl::Status status = ReadKernelLengths(path).status();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_EQ(status.message().substr(0, path.size() + 2), path + ": ");
  return std::string(status.message().substr(path.size() + 2));
}

// Two prompts and three layers. The second layer is the most ragged one, the
// last one has equal heads.
KernelLengths SmallLengths() {
  return {.name = "small",
          .num_prompts = 2,
          .num_layers = 3,
          .num_heads = 2,
          .counts = {30, 10, 1, 99, 5, 5,  //
                     20, 10, 90, 1, 6, 6}};
}

TEST(KernelLengthsTest, ReadsPromptsLayersAndHeads) {
  const TempFolder folder;
  const KernelLengths want = SmallLengths();
  ASSERT_OK_AND_ASSIGN(
      const KernelLengths got,
      ReadKernelLengths(folder.Write(
          "small.npy",
          EncodeNpyInts(std::vector<int64_t>{2, 3, 2}, want.counts))));
  EXPECT_EQ(got.name, "small");
  EXPECT_EQ(got.num_prompts, 2);
  EXPECT_EQ(got.num_layers, 3);
  EXPECT_EQ(got.num_heads, 2);
  EXPECT_EQ(got.counts, want.counts);
  EXPECT_EQ(got.Heads(1, 1)[0], 90);
}

TEST(KernelLengthsTest, NamesWhatIsWrongInAFile) {
  EXPECT_EQ(Refusal({2, 3}, {1, 2, 3, 4, 5, 6}),
            "shape: expected [prompts, layers, KV heads], 1 to 65536 of each, "
            "got [2, 3]");
  EXPECT_EQ(Refusal({2, 3, 0}, {}),
            "shape: expected [prompts, layers, KV heads], 1 to 65536 of each, "
            "got [2, 3, 0]");
  EXPECT_EQ(Refusal({1, 1, 65537}, Ints(65537, 1)),
            "shape: expected [prompts, layers, KV heads], 1 to 65536 of each, "
            "got [1, 1, 65537]");
  EXPECT_EQ(Refusal({1, 2, 2}, {1, 2, 3, -4}),
            "count: expected 1 to 16777216, got -4 in prompt 0, layer 1, "
            "head 1");
  EXPECT_EQ(Refusal({2, 1, 2}, {1, 2, 0, 4}),
            "count: expected 1 to 16777216, got 0 in prompt 1, layer 0, "
            "head 0");
  EXPECT_EQ(Refusal({1, 1, 1}, {1 << 25}),
            "count: expected 1 to 16777216, got 33554432 in prompt 0, layer "
            "0, head 0");

  const TempFolder folder;
  const std::string path = folder.File("floats.npy");
  ASSERT_OK(WriteNpy(path, {.shape = {1, 1, 2}, .values = {1, 2}}));
  EXPECT_EQ(ReadKernelLengths(path).status().message(),
            path + ": type: expected int32 or int64, got floats");
  const std::string none = folder.File("none.npy");
  EXPECT_NE(ReadKernelLengths(none).status().message().find(none),
            std::string::npos);
}

TEST(KernelLengthsTest, LayersAreSortedByTheirRaggedness) {
  KernelLengths lengths = SmallLengths();
  EXPECT_EQ(lengths.LayersByRaggedness(), (Ints{2, 0, 1}));
  // Large counts are not ragged ones.
  lengths = {.name = "four",
             .num_prompts = 1,
             .num_layers = 4,
             .num_heads = 2,
             .counts = {9, 1, 5000, 5000, 7, 3, 600, 400}};
  EXPECT_EQ(lengths.LayersByRaggedness(), (Ints{1, 3, 2, 0}));
  // Every prompt counts as much as every other one: layer 1 is as ragged as
  // layer 0 in long prompts, and more in short ones.
  lengths = {.name = "prompts",
             .num_prompts = 2,
             .num_layers = 2,
             .num_heads = 2,
             .counts = {600, 400, 600, 400, 5, 5, 9, 1}};
  EXPECT_EQ(lengths.LayersByRaggedness(), (Ints{0, 1}));
}

TEST(KernelLengthsTest, PromptsTakeTurnsUntilThereAreEnoughEntries) {
  const KernelLengths lengths = SmallLengths();
  EXPECT_EQ(*lengths.Batch(0, 1), (Ints{30, 10}));
  EXPECT_EQ(*lengths.Batch(0, 40), (Ints{30, 10}));
  EXPECT_EQ(*lengths.Batch(0, 41), (Ints{30, 10, 20, 10}));
  EXPECT_EQ(*lengths.Batch(1, 300), (Ints{1, 99, 90, 1, 1, 99, 90, 1}));
  EXPECT_EQ(lengths.Batch(2, int64_t{1} << 40).status().message(),
            "small layer 2: lists: expected at most 65535 (sequences times "
            "heads), got more for 1099511627776 entries");
}

TEST(KernelLengthsTest, EvenLengthsHaveTheSameTotal) {
  EXPECT_EQ(EvenLengths(Ints{1, 9}), (Ints{5, 5}));
  EXPECT_EQ(EvenLengths(Ints{1, 9, 1}), (Ints{4, 4, 3}));
  const Ints large(3, 2147483647);
  EXPECT_EQ(EvenLengths(large), large);
}

}  // namespace
}  // namespace blockmgr
