// The interpreter against what the ISA says, on kernels of a few lines.
#include "tests/kernels/ptx/ptx_machine.h"

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "blockmgr/base/check.h"
#include "tests/kernels/ptx/ptx_parser.h"

namespace blockmgr::ptx {
namespace {

using testing::HasSubstr;

// A kernel `k(uint32_t* data)`, up to where its instructions begin.
constexpr char kDeclarations[] = R"(
.visible .entry k(
	.param .u64 k_param_0
)
.maxntid 1024, 1, 1
{
	.reg .pred %p<9>;
	.reg .b16 %rs<9>;
	.reg .b32 %r<40>;
	.reg .f32 %f<40>;
	.reg .b64 %rd<9>;
)";

// %rd1, the address of this thread's word of `data`, and %r1, the thread.
constexpr char kOwnWord[] = R"(
	ld.param.u64 %rd2, [k_param_0];
	cvta.to.global.u64 %rd3, %rd2;
	mov.u32 %r1, %tid.x;
	mul.wide.u32 %rd4, %r1, 4;
	add.s64 %rd1, %rd3, %rd4;
	ld.global.u32 %r2, [%rd1];
	mov.b32 %f2, %r2;
)";

std::string KernelOf(const std::string& body) {
  return kDeclarations + body + "\tret;\n}\n";
}

class PtxMachineTest : public testing::Test {
 protected:
  // Words of so many threads, before and after; the status says what failed.
  absl::StatusOr<std::vector<uint32_t>> Run(const std::string& body,
                                            std::vector<uint32_t> words,
                                            uint64_t seed = 2) {
    const auto module = ReadModule(KernelOf(kOwnWord + body));
    BM_CHECK(module.ok());
    const auto kernel =
        ParseKernel("k", module->kernels.at("k"), module->files);
    if (!kernel.ok()) return kernel.status();
    const std::size_t bytes = words.size() * 4;
    std::byte* data = memory_.Allocate(bytes);
    std::memcpy(data, words.data(), bytes);
    const LaunchShape shape = {.threads = static_cast<uint32_t>(words.size()),
                               .shared_bytes = 4096};
    absl::Status status = CheckShape(*kernel, shape);
    if (status.ok()) {
      status = RunKernel(*kernel, shape, reinterpret_cast<std::byte*>(&data),
                         memory_, seed, counts_);
    }
    std::memcpy(words.data(), data, bytes);
    EXPECT_TRUE(memory_.Free(data));
    if (!status.ok()) return status;
    return words;
  }
  std::string Fault(const std::string& body, std::size_t threads = 32,
                    uint64_t seed = 2) {
    return std::string(
        Run(body, std::vector<uint32_t>(threads, 0), seed).status().message());
  }
  // What a body that computes %r3 of %r2 gives for each of these.
  std::vector<uint32_t> Map(const std::string& body,
                            std::vector<uint32_t> values) {
    const std::size_t count = values.size();
    values.resize(32, values[0]);
    auto result = Run(body + "\tst.global.u32 [%rd1], %r3;\n", values);
    EXPECT_TRUE(result.ok()) << result.status();
    if (result.ok()) values = *result;
    values.resize(count);
    return values;
  }

  DeviceMemory memory_;
  LaunchCounts counts_;
};

using Words = std::vector<uint32_t>;

TEST_F(PtxMachineTest, IntegersWrapAndShiftAsTheIsaSays) {
  const uint32_t minus_one = ~0u;
  EXPECT_EQ(Map("add.s32 %r3, %r2, 1;\n", {1, minus_one}), (Words{2, 0}));
  EXPECT_EQ(Map("shl.b32 %r3, 1, %r2;\n", {0, 31, 32, 200}),
            (Words{1, 1u << 31, 0, 0}));
  EXPECT_EQ(Map("shr.s32 %r3, -8, %r2;\n", {1, 31, 40}),
            (Words{minus_one - 3, minus_one, minus_one}));
  EXPECT_EQ(Map("shr.u32 %r3, -8, %r2;\n", {28, 40}), (Words{15, 0}));
  EXPECT_EQ(Map("div.s32 %r3, -7, %r2;\n", {2, minus_one}),
            (Words{minus_one - 2, 7}));
  EXPECT_EQ(Map("rem.s32 %r3, -7, %r2;\n", {2, 4}),
            (Words{minus_one, minus_one - 2}));
  EXPECT_EQ(Map("bfi.b32 %r3, %r2, -1, 4, 8;\n", {0x12}), (Words{0xFFFFF12F}));
  EXPECT_EQ(Map("prmt.b32 %r3, %r2, 0x44332211, 0x7610;\n", {0xDDCCBBAA}),
            (Words{0x4433BBAA}));
  EXPECT_EQ(Map("bfind.shiftamt.u32 %r3, %r2;\n", {0, 1, 1u << 31}),
            (Words{minus_one, 31, 0}));
  EXPECT_EQ(Map("brev.b32 %r3, %r2;\n", {1, 6}), (Words{1u << 31, 3u << 29}));
  EXPECT_EQ(Map("mul.wide.s32 %rd5, %r2, -3;\n\tshr.s64 %rd5, %rd5, 32;\n"
                "\tcvt.u32.u64 %r3, %rd5;\n",
                {1, 0}),
            (Words{minus_one, 0}));
}

TEST_F(PtxMachineTest, CarriesGoFromOneHalfToTheOther) {
  // 2^64 - 1 + 1, of which the upper half is looked at.
  EXPECT_EQ(Map("cvt.s64.s32 %rd5, %r2;\n\tadd.cc.s64 %rd6, %rd5, 1;\n"
                "\taddc.cc.s64 %rd7, 0, 0;\n\tcvt.u32.u64 %r3, %rd7;\n",
                {~0u, 5}),
            (Words{1, 0}));
  EXPECT_EQ(Map("cvt.s64.s32 %rd5, %r2;\n\tsub.cc.s64 %rd6, %rd5, 1;\n"
                "\tsubc.cc.s64 %rd7, 0, 0;\n\tcvt.u32.u64 %r3, %rd7;\n",
                {0, 5}),
            (Words{~0u, 0}));
}

TEST_F(PtxMachineTest, ComparisonsOfNanAreFalse) {
  const uint32_t nan = 0x7FC00000;
  const uint32_t one = 0x3F800000;
  const std::string end =
      " %p1, %f2, 0f3F800000;\n\tselp.u32 %r3, 1, 0, %p1;\n";
  EXPECT_EQ(Map("setp.lt.f32" + end, {nan, one, 0}), (Words{0, 0, 1}));
  EXPECT_EQ(Map("setp.neu.f32" + end, {nan, one, 0}), (Words{1, 0, 1}));
  EXPECT_EQ(Map("setp.nan.f32" + end, {nan, one, 0}), (Words{1, 0, 0}));
  EXPECT_EQ(Map("max.f32 %f3, %f2, 0f3F800000;\n\tmov.b32 %r3, %f3;\n",
                {nan, 0x40000000}),
            (Words{one, 0x40000000}));
}

// (1 + 2^-23)^2 - 1 - 2^-22 is 2^-46, if it is rounded once.
TEST_F(PtxMachineTest, MultiplyAddsAreRoundedOnce) {
  EXPECT_EQ(Map("fma.rn.f32 %f3, %f2, %f2, 0fBF800002;\n\tmov.b32 %r3, %f3;\n",
                {0x3F800001}),
            (Words{(127 - 46) << 23}));
}

TEST_F(PtxMachineTest, LanesThatPartMeetAgain) {
  // Odd lanes loop as often as their number says; then all are counted.
  const std::string body = R"(
	mov.u32 %r3, 0;
	and.b32 %r4, %r1, 1;
	setp.eq.s32 %p1, %r4, 0;
	@%p1 bra $DONE;
	mov.u32 %r5, %r1;
$LOOP:
	add.s32 %r3, %r3, 2;
	add.s32 %r5, %r5, -1;
	setp.gt.s32 %p2, %r5, 0;
	@%p2 bra $LOOP;
$DONE:
	mov.pred %p3, %p1;
	vote.sync.ballot.b32 %r6, %p3, -1;
	popc.b32 %r6, %r6;
	add.s32 %r3, %r3, %r6;
)";
  for (uint64_t seed = 0; seed < 8; ++seed) {
    const auto words =
        Run(body + "\tst.global.u32 [%rd1], %r3;\n", Words(64, 0), seed);
    ASSERT_TRUE(words.ok()) << words.status();
    for (uint32_t i = 0; i < 64; ++i) {
      ASSERT_EQ((*words)[i], 16 + (i % 2 == 0 ? 0 : 2 * i)) << i;
    }
  }
}

TEST_F(PtxMachineTest, CollectivesThatLanesDoNotReachAreFaults) {
  EXPECT_THAT(Fault("setp.lt.u32 %p1, %r1, 7;\n\t@%p1 bra $PAST;\n"
                    "\tbar.warp.sync -1;\n$PAST:\n\tbar.warp.sync -1;\n"),
              HasSubstr("lanes wait for each other"));
  EXPECT_THAT(Fault("setp.lt.u32 %p1, %r1, 7;\n\t@%p1 ret;\n"
                    "\tbar.warp.sync -1;\n"),
              HasSubstr("names lanes that have left"));
  EXPECT_THAT(Fault("bar.warp.sync 1;\n"),
              HasSubstr("does not name who takes part"));
}

TEST_F(PtxMachineTest, AccessesOutsideOfMemoryAreFaults) {
  EXPECT_THAT(Fault("ld.global.u32 %r3, [%rd1+4];\n"), HasSubstr("nobody's"));
  EXPECT_THAT(Fault("ld.global.u32 %r3, [%rd1+-4];\n"), HasSubstr("nobody's"));
  EXPECT_THAT(Fault("ld.global.u64 %rd5, [%rd1];\n"),
              HasSubstr("is not a multiple of 8"));
  EXPECT_THAT(Fault("mov.u32 %r3, simt_shared_bytes;\n"
                    "\tst.shared.u32 [%r3+4096], %r1;\n"),
              HasSubstr("nobody's"));
  EXPECT_THAT(Fault("div.u32 %r3, %r1, %r2;\n"), HasSubstr("division by zero"));
}

// Neighbours in shared memory, with and without what must be between.
std::string Neighbour(const std::string& barrier) {
  return absl::StrCat(R"(
	mov.u32 %r3, simt_shared_bytes;
	shl.b32 %r4, %r1, 2;
	add.s32 %r5, %r3, %r4;
	st.shared.u32 [%r5], %r1;
	)",
                      barrier, R"(
	xor.b32 %r6, %r4, 4;
	add.s32 %r6, %r3, %r6;
	ld.shared.u32 %r7, [%r6];
	st.global.u32 [%rd1], %r7;
)");
}

TEST_F(PtxMachineTest, SharedMemoryWithoutABarrierIsAFault) {
  for (uint64_t seed = 0; seed < 8; ++seed) {
    EXPECT_THAT(Fault(Neighbour(""), 64, seed), HasSubstr("without a barrier"));
    const auto words = Run(Neighbour("bar.warp.sync -1;"), Words(64, 0), seed);
    ASSERT_TRUE(words.ok()) << words.status();
    EXPECT_EQ((*words)[6], 7u);
    // Other warps' need one of the block.
    std::string far = Neighbour("bar.warp.sync -1;");
    far.replace(far.find("%r4, 4;"), 7, "%r4, 128;");
    EXPECT_THAT(Fault(far, 64, seed), HasSubstr("without a barrier"));
    far.replace(far.find("bar.warp.sync -1"), 16, "bar.sync 0");
    EXPECT_EQ(Fault(far, 64, seed), "");
  }
}

TEST_F(PtxMachineTest, AsyncCopiesArriveWhenTheyAreWaitedFor) {
  const auto body = [](const std::string& wait) {
    return absl::StrCat(R"(
	mov.u32 %r3, simt_shared_bytes;
	shl.b32 %r4, %r1, 4;
	add.s32 %r3, %r3, %r4;
	cp.async.cg.shared.global.L2::128B [%r3], [%rd3], 16, 16;
	cp.async.commit_group;
	)",
                        wait, R"(
	ld.shared.u32 %r5, [%r3+4];
	st.global.u32 [%rd1+0], %r5;
)");
  };
  Words words(32, 0);
  words[1] = 77;
  EXPECT_EQ((*Run(body("cp.async.wait_group 0;"), words))[20], 77u);
  EXPECT_EQ((*Run(body("cp.async.wait_group 1;"), words))[20], ~0u);
}

TEST_F(PtxMachineTest, ShufflesReadOtherLanes) {
  Words words(32);
  for (uint32_t i = 0; i < 32; ++i) words[i] = 100 + i;
  EXPECT_EQ(Map("shfl.sync.bfly.b32 %r3|%p1, %r2, 5, 31, -1;\n", words)[1],
            104u);
  EXPECT_EQ(Map("shfl.sync.up.b32 %r3|%p1, %r2, 3, 0, -1;\n", words)[2], 102u);
  EXPECT_EQ(Map("shfl.sync.up.b32 %r3|%p1, %r2, 3, 0, -1;\n", words)[9], 106u);
  EXPECT_EQ(Map("shfl.sync.down.b32 %r3|%p1, %r2, 3, 31, -1;\n", words)[30],
            130u);
  EXPECT_EQ(Map("shfl.sync.idx.b32 %r3|%p1, %r2, 7, 31, -1;\n", words)[30],
            107u);
}

// C = A B with A[m][k] = m + 1 where k = 3, and B[k][n] = n + k.
TEST_F(PtxMachineTest, MatricesAreMultipliedInTheIsasFragments) {
  const std::string body = R"(
	shr.u32 %r3, %r1, 2;
	and.b32 %r4, %r1, 3;
	add.s32 %r5, %r3, 1;
	cvt.rn.f32.s32 %f4, %r5;
	add.s32 %r5, %r3, 9;
	cvt.rn.f32.s32 %f5, %r5;
	setp.eq.s32 %p1, %r4, 1;
	selp.f32 %f4, %f4, 0f00000000, %p1;
	selp.f32 %f5, %f5, 0f00000000, %p1;
	cvt.rn.bf16x2.f32 %r10, %f4, 0f00000000;
	cvt.rn.bf16x2.f32 %r11, %f5, 0f00000000;
	shl.b32 %r6, %r4, 1;
	add.s32 %r6, %r6, %r3;
	cvt.rn.f32.s32 %f6, %r6;
	add.s32 %r7, %r6, 1;
	cvt.rn.f32.s32 %f7, %r7;
	cvt.rn.bf16x2.f32 %r14, %f7, %f6;
	mov.f32 %f10, 0f00000000;
	mov.f32 %f11, 0f00000000;
	mov.f32 %f12, 0f00000000;
	mov.f32 %f13, 0f3F800000;
	mov.u32 %r12, 0;
	)"
                           "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"
                           " {%f10,%f11,%f12,%f13}, {%r10,%r11,%r12,%r12},"
                           " {%r14,%r12}, {%f10,%f11,%f12,%f13};\n"
                           "\tmov.b32 %r3, %f13;\n";
  const Words bits = Map(body, Words(32, 0));
  for (uint32_t lane = 0; lane < 32; ++lane) {
    // Row group + 8, column 2 pair + 1, and what was there: 1.
    const float expected =
        1.0f + static_cast<float>((lane / 4 + 9) * (lane % 4 * 2 + 1 + 3));
    EXPECT_EQ(std::bit_cast<float>(bits[lane]), expected) << lane;
  }
}

TEST_F(PtxMachineTest, WhatIsUnknownIsNamed) {
  const auto result = Run("frobnicate.s32 %r3, %r2;\n", Words(32, 0));
  EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(result.status().message()),
              HasSubstr("frobnicate.s32"));
  EXPECT_THAT(
      std::string(
          Run("add.s32 %r3, %rd2, 1;\n", Words(32, 0)).status().message()),
      HasSubstr("width of %rd2"));
}

TEST_F(PtxMachineTest, CountsAreInSectorsAndPasses) {
  ASSERT_TRUE(Run("", Words(32, 0)).ok());
  EXPECT_EQ(counts_.global_requests, 1u);
  EXPECT_EQ(counts_.global_bytes, 128u);
  EXPECT_EQ(counts_.global_sectors, 4u);
  counts_ = LaunchCounts();
  // Every lane in the same bank.
  ASSERT_TRUE(Run("mov.u32 %r3, simt_shared_bytes;\n\tshl.b32 %r4, %r1, 7;\n"
                  "\tadd.s32 %r3, %r3, %r4;\n\tst.shared.u32 [%r3], %r1;\n",
                  Words(32, 0))
                  .ok());
  EXPECT_EQ(counts_.shared_passes, 32u);
  EXPECT_EQ(counts_.shared_least_passes, 1u);
}

TEST_F(PtxMachineTest, ShapesThatNoGridHasAreRefused) {
  Kernel kernel;
  kernel.max_threads = 128;
  EXPECT_TRUE(CheckShape(kernel, {.threads = 128}).ok());
  EXPECT_FALSE(CheckShape(kernel, {.threads = 160}).ok());
  EXPECT_FALSE(CheckShape(kernel, {.threads = 100}).ok());
  EXPECT_FALSE(CheckShape(kernel, {.grid = {1, 65536, 1}, .threads = 32}).ok());
  EXPECT_FALSE(CheckShape(kernel, {.grid = {0, 1, 1}, .threads = 32}).ok());
}

// What is wrong with a launch that may overlap the one before it, which wrote
// the first word of `data`; the body has its address in %rd1.
TEST_F(PtxMachineTest, WhatOverlapsReliesOnNothingOfTheLaunchBefore) {
  std::byte* data = memory_.Allocate(8);
  const auto run = [&](const std::string& body, bool overlaps) {
    const auto kernel = ParseKernel(
        "k", KernelOf("ld.param.u64 %rd1, [k_param_0];\n" + body), {});
    BM_CHECK(kernel.ok());
    return std::string(RunKernel(*kernel, {.threads = 32, .overlaps = overlaps},
                                 reinterpret_cast<std::byte*>(&data), memory_,
                                 /*seed=*/2, counts_)
                           .message());
  };
  const std::string write = "st.global.u32 [%rd1], 1;\n";
  const auto overlapping = [&](const std::string& body) {
    BM_CHECK(run(write, false).empty());
    return run(body, true);
  };
  const std::string read = "ld.global.u32 %r1, [%rd1];\n";
  const std::string read_other = "ld.global.u32 %r1, [%rd1+4];\n";
  const std::string wait = "griddepcontrol.wait;\n";
  const std::string next = "griddepcontrol.launch_dependents;\n";
  EXPECT_EQ(overlapping(wait + next + read + write), "");
  EXPECT_EQ(overlapping(read_other + wait + read), "");
  EXPECT_THAT(overlapping(read + wait), HasSubstr("which the launch before"));
  EXPECT_THAT(overlapping("st.global.u32 [%rd1+4], 1;\n" + wait),
              HasSubstr("written before griddepcontrol.wait"));
  EXPECT_THAT(overlapping(next + wait), HasSubstr("next launch may begin"));
  EXPECT_THAT(overlapping(read_other), HasSubstr("leave without"));
  EXPECT_THAT(overlapping("setp.eq.u64 %p1, %rd1, 0;\n@%p1 " + wait),
              HasSubstr("leave without"));
  // Of the launch before the last one, all is known.
  BM_CHECK(run(write, false).empty());
  BM_CHECK(run(wait, true).empty());
  EXPECT_EQ(run(read + wait, true), "");
  EXPECT_EQ(run(read, false), "");
  EXPECT_TRUE(memory_.Free(data));
}

}  // namespace
}  // namespace blockmgr::ptx
