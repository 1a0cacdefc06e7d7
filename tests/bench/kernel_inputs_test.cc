// The inputs that all cases of the benchmark share, for a problem that is small
// enough to be checked by hand.
#include "bench/kernel_inputs.h"

#include <cstdint>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/bench/kernel_test_device.h"
#include "tests/kernels/cuda/test_device.h"

namespace blockmgr {
namespace {

class KernelInputsTest : public DeviceTest {
 protected:
  // Has two sequences of two heads, and blocks of two pages with 16 tokens. The
  // first sequence has a tail of 17 tokens on blocks 3 and 0.
  static KernelProblem SmallProblem() {
    KernelProblem problem;
    problem.num_sequences = 2;
    problem.num_heads = 2;
    problem.group_size = 1;
    problem.head_dim = 64;
    problem.page_size = 16;
    problem.num_pages = 10;
    problem.lengths = {1, 18, 2, 3};
    problem.tail_lengths = {17, 0};
    problem.page_ids = {9, 3, 8, 5, 2};
    problem.tail_blocks = {3, 0};
    return problem;
  }
};

TEST_F(KernelInputsTest, ListsHaveTheirPagesAndEntries) {
  const auto device = MakeKernelTestDevice();
  DeviceMemory memory(device.get());
  const auto in = MakeKernelInputs(SmallProblem(), {}, memory);
  ASSERT_TRUE(in.ok()) << in.status();
  // Page 6 is that of head 0 in block 3.
  EXPECT_EQ(in->pages, (std::vector<int32_t>{9, 6, 0, 3, 8, 7, 1, 5, 2}));
  EXPECT_EQ(in->page_offsets, (std::vector<int64_t>{0, 3, 7, 8, 9}));
  EXPECT_EQ(in->tail_block_offsets, (std::vector<int64_t>{0, 2, 2}));
  EXPECT_EQ(in->longest_tail, 17);
  EXPECT_EQ(in->lists.tail_stride, 2);
  EXPECT_EQ(ReadValues(memory, in->lists.region_offsets, 4),
            (std::vector<int64_t>{0, 1, 3, 4}));
  EXPECT_EQ(ReadValues(memory, in->lists.tail_blocks, 4),
            (std::vector<int32_t>{3, 0, 0, 0}));

  EXPECT_EQ(in->offsets, (std::vector<int64_t>{0, 18, 53, 55, 58}));
  // The second sequence is shorter than a window.
  EXPECT_EQ(in->sequence_lengths, (std::vector<int32_t>{35, 32}));
  EXPECT_EQ(in->max_length, 35);
  EXPECT_EQ(ReadValues(memory, in->lengths, 2), in->sequence_lengths);
  EXPECT_EQ(ReadValues(memory, in->entries.slots, 58), in->slots);
  const std::vector<int32_t> positions =
      ReadValues(memory, in->entries.positions, 58);
  // The first list has one entry of its region, and then its tail, which ends
  // where the sequence does.
  EXPECT_EQ(in->slots[0], 9 * 16);
  EXPECT_EQ(positions[0], 0);
  EXPECT_EQ(in->slots[1], 6 * 16);
  EXPECT_EQ(positions[1], 35 - 17);
  EXPECT_EQ(in->slots[17], 0);
  EXPECT_EQ(positions[17], 34);
  // Without a tail, positions begin at 0.
  EXPECT_EQ(in->slots[54], 5 * 16 + 1);
  EXPECT_EQ(positions[54], 1);
}

TEST_F(KernelInputsTest, CopiesOfThePoolAreEqualAndTakeTheBytesAskedFor) {
  const KernelProblem problem = SmallProblem();
  constexpr int64_t kPoolElements = int64_t{10} * 2 * 16 * 64;
  const auto device = MakeKernelTestDevice();
  for (const auto& [rotated_bytes, num_copies] :
       std::vector<std::pair<int64_t, int32_t>>{
           {0, 1},
           {2 * problem.kv_bytes(), 2},
           {2 * problem.kv_bytes() + 1, 3},
           {100 * problem.kv_bytes(), 16}}) {
    DeviceMemory memory(device.get());
    const auto in =
        MakeKernelInputs(problem, {.rotated_bytes = rotated_bytes}, memory);
    ASSERT_TRUE(in.ok()) << in.status();
    EXPECT_EQ(in->num_copies(), num_copies);
    const auto elements = [&](int32_t copy) {
      return ReadValues(memory, reinterpret_cast<uint16_t*>(in->pools[copy]),
                        kPoolElements);
    };
    EXPECT_EQ(elements(num_copies - 1), elements(0));
  }
}

TEST_F(KernelInputsTest, BadProblemsAreRefused) {
  const auto device = MakeKernelTestDevice();
  DeviceMemory memory(device.get());
  KernelProblem problem = SmallProblem();
  problem.page_size = 0;
  EXPECT_EQ(MakeKernelInputs(problem, {}, memory).status().code(),
            absl::StatusCode::kInvalidArgument);
  const auto many = MakeKernelProblem({.num_heads = 256,
                                       .head_dim = 64,
                                       .mean_length = 1,
                                       .kv_bytes = int64_t{256} * 257 * 256});
  ASSERT_TRUE(many.ok()) << many.status();
  EXPECT_EQ(MakeKernelInputs(*many, {}, memory).status().message(),
            "lists: expected at most 65535 (sequences times heads), got 65792");
  EXPECT_EQ(memory.num_allocations(), 0u);
}

}  // namespace
}  // namespace blockmgr
