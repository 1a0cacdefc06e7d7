// Whole evictions of the benchmark on small problems.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "bench/kernel_cases.h"
#include "tests/bench/kernel_test_device.h"
#include "tests/kernels/cuda/test_device.h"

namespace blockmgr {
namespace {

constexpr int32_t kNumHeads = 4;
constexpr int32_t kPageSize = 16;

class KernelEvictionCasesTest : public DeviceTest {};

// Runs one of the evictions twice, the second time over what it has moved; the
// entries that each list keeps.
std::vector<int32_t> Evict(DeviceProblem& problem, const std::string& name) {
  std::vector<int32_t> first;
  const auto evict = [&](const KernelCase& c) {
    EXPECT_TRUE(c.waits);
    c.launch(0);
    const auto kept = problem.ReadKept();
    if (!kept.ok()) return kept.status();
    first = *kept;
    c.launch(0);
    const auto error = problem.ReadErrorWord();
    EXPECT_EQ(error.value_or(1), 0u);
    return error.status();
  };
  const absl::Status status = problem.ForEachCase({&name, 1}, evict);
  EXPECT_TRUE(status.ok()) << status;
  return first;
}

// Each sequence keeps a fifth of its entries, in whole pages, and its heads
// share that by their scores.
void ExpectAFifth(const KernelProblem& problem,
                  const std::vector<int32_t>& kept) {
  for (int32_t s = 0; s < problem.num_sequences; ++s) {
    const auto first = kept.begin() + std::ptrdiff_t{s} * kNumHeads;
    int64_t held = 0;
    for (int32_t head = 0; head < kNumHeads; ++head) {
      const int32_t length = problem.lengths[s * kNumHeads + head];
      held += length;
      EXPECT_TRUE(first[head] % kPageSize == 0 || first[head] == length);
      EXPECT_GT(first[head], 0);
    }
    const int64_t sum = std::accumulate(first, first + kNumHeads, int64_t{0});
    EXPECT_LE(sum, held / 5);
    // No head is so short that pages would be left over.
    EXPECT_GT(sum, held / 5 - kPageSize);
  }
  const auto [least, most] = std::ranges::minmax_element(kept);
  EXPECT_LT(*least, *most);
}

TEST_F(KernelEvictionCasesTest, HeadsShareWhatASequenceKeepsByScore) {
  constexpr int32_t kLength = 400;
  const auto problem =
      MakeKernelProblem({.num_heads = kNumHeads,
                         .group_size = 2,
                         .head_dim = 64,
                         .page_size = kPageSize,
                         .mean_length = kLength,
                         .kv_bytes = int64_t{3} * kNumHeads * kLength * 256});
  ASSERT_TRUE(problem.ok()) << problem.status();
  const auto device = MakeKernelTestDevice();
  const auto on_device =
      DeviceProblem::Create(*problem, {.model_dim = 64}, device.get());
  ASSERT_TRUE(on_device.ok()) << on_device.status();
  const std::vector<int32_t> snapkv = Evict(**on_device, "evict_snapkv");
  ExpectAFifth(*problem, snapkv);
  const std::vector<int32_t> keydiff = Evict(**on_device, "evict_keydiff");
  ExpectAFifth(*problem, keydiff);
  EXPECT_NE(snapkv, keydiff);
}

}  // namespace
}  // namespace blockmgr
