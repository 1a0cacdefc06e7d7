// The bytes and operations that the benchmark counts for its cases.
#include "bench/kernel_cases.h"

#include <cstdint>
#include <map>
#include <string>

#include <gtest/gtest.h>

#include "tests/bench/kernel_test_device.h"
#include "tests/kernels/cuda/test_device.h"

namespace blockmgr {
namespace {

class KernelCasesTest : public DeviceTest {};

// Of the kernels that read lists: what a tail adds to bytes and operations.
TEST_F(KernelCasesTest, UsefulBytesAndOperationsCountTheTail) {
  constexpr int32_t kTail = 37;
  KernelProblemShape shape{.num_heads = 2,
                           .group_size = 3,
                           .head_dim = 64,
                           .mean_length = 100,
                           .kv_bytes = int64_t{6} * 100 * 256};
  std::map<std::string, double> added;
  double num_added = 0;  // entries
  for (const int32_t tail_tokens : {0, kTail}) {
    shape.tail_tokens = tail_tokens;
    const auto problem = MakeKernelProblem(shape);
    ASSERT_TRUE(problem.ok());
    const auto device = MakeKernelTestDevice();
    const auto on_device = DeviceProblem::Create(
        *problem, {.rotated_bytes = 1, .model_dim = 64}, device.get());
    ASSERT_TRUE(on_device.ok()) << on_device.status();
    const double sign = tail_tokens == 0 ? -1 : 1;
    const absl::Status status =
        (*on_device)->ForEachCase({}, [&](const KernelCase& c) {
          added[c.kernel] += sign * (c.useful_bytes + c.flops);
          return c.status;
        });
    ASSERT_TRUE(status.ok()) << status;
    num_added += sign * static_cast<double>(problem->CountEntries());
  }
  EXPECT_EQ(num_added, 3 * 2 * kTail);
  const double pair_bytes = 256;
  for (const char* name :
       {"read_ceiling", "copy_ceiling", "decode", "decode_invariant",
        "decode_sinks", "snapkv", "keydiff"}) {
    EXPECT_EQ(added.at(name), num_added * pair_bytes) << name;
  }
  EXPECT_EQ(added.at("decode_logits"), num_added * (pair_bytes + 4 * 3));
  EXPECT_EQ(added.at("knorm"), num_added * pair_bytes / 2);
  EXPECT_EQ(added.at("gather"), num_added * pair_bytes);
  EXPECT_EQ(added.at("h2o_add"), num_added * 4 * (3 + 2));
  EXPECT_EQ(added.at("h2o_finish"), num_added * 8);
  EXPECT_EQ(added.at("select_uniform"), num_added * 4);
  EXPECT_EQ(added.at("value_norms"), num_added * 2 * 3 * 64 * 64);
}

}  // namespace
}  // namespace blockmgr
