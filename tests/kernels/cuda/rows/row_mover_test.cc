// Every copy of rows against the CPU backend, bit for bit.
#include <bit>
#include <cstdint>
#include <functional>
#include <string>

#include <gtest/gtest.h>

#include "blockmgr/base/dtype.h"
#include "kernels/cuda/rows/row_mover.h"
#include "tests/kernels/cuda/rows/row_checks.h"
#include "tests/kernels/cuda/test_device.h"
#include "tests/kernels/cuda/test_pool.h"
#include "tests/kernels/kernel_cases.h"

namespace blockmgr {
namespace {

void ExpectAllCasesPass(const std::function<std::string(uint64_t)>& check) {
  for (uint64_t seed = 0; seed < uint64_t{16} * TestCaseFactor(); ++seed) {
    EXPECT_EQ(check(seed), "") << "seed " << seed;
  }
}

class RowMoverTest : public DeviceTest {};

TEST_F(RowMoverTest, AppendEqualsTheCpu) { ExpectAllCasesPass(CheckAppend); }
TEST_F(RowMoverTest, GatherEqualsTheCpu) { ExpectAllCasesPass(CheckGather); }
TEST_F(RowMoverTest, MovesEqualTheCpu) { ExpectAllCasesPass(CheckMoves); }
TEST_F(RowMoverTest, BlockCopiesEqualTheCpu) {
  ExpectAllCasesPass(CheckCopyBlocks);
}
TEST_F(RowMoverTest, PagesSurviveASwap) { ExpectAllCasesPass(CheckSwap); }

TEST_F(RowMoverTest, HalvesAreRoundedAndWidened) {
  ModelLayout layout = {.num_layers = 1,
                        .num_heads = 2,
                        .num_q_heads = 2,
                        .head_dim = 64,
                        .page_size = 16,
                        .dtype = DType::kBFloat16,  // any 2-byte type
                        .num_blocks = 2};
  TestPool pool(layout, KvTensorOrder::kPages);
  Rng rng(5);
  auto rows = Shared(RandomFloats(rng, 384));
  rows[1 * 128 + 64] = std::bit_cast<float>(0xFF823456u);  // NaN, signalling
  rows[1 * 128 + 65] = 1e-6f;                              // subnormal
  rows[1 * 128 + 66] = -65520.0f;
  const SharedVector<int64_t> mapping = {17, 3, 30};
  SharedVector<uint32_t> error = {0};
  const auto* bytes = reinterpret_cast<const char*>(rows.data());
  const AppendRows append = {.pool = pool.pool(),
                             .num_tokens = 3,
                             .slot_mapping = mapping.data(),
                             .keys = bytes,
                             .values = bytes,
                             .token_stride = 512,
                             .head_stride = 256,
                             .error = error.data()};
  // Head 1 of token 1: block 0, offset 3.
  const SharedVector<int64_t> slots = {int64_t{1} * 16 + 3};
  SharedVector<float> out(128);
  const GatherRows gather = {.pool = pool.pool(),
                             .rows = {.count = 1},
                             .slots = slots.data(),
                             .out = reinterpret_cast<char*>(out.data()),
                             .error = error.data()};
  const KernelReport report = RunKernels({}, [&](DeviceRuntime& device) {
    device.Append(append, RowConversion::kFloatToHalf);
    device.Gather(gather, RowConversion::kHalfToFloat);
  });
  EXPECT_EQ(report.error, "");
  EXPECT_EQ(error[0], 0u);
  for (int i = 0; i < 128; ++i) {
    const float value = rows[1 * 128 + 64 + i % 64];
    EXPECT_EQ(std::bit_cast<uint32_t>(out[i]),
              std::bit_cast<uint32_t>(FromFloat16(ToFloat16(value))))
        << i;
  }
}

}  // namespace
}  // namespace blockmgr
