// The emulator computes what the PTX manual says, and each breach of a rule is
// found.
#include "tests/kernels/simt/simt_emulator.h"

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/cuda/simt.h"

namespace blockmgr::simt {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Each;
using ::testing::HasSubstr;

const std::vector<Schedule>& Schedules() {
  static const auto& schedules =
      *new std::vector<Schedule>{{Schedule::Order::kForward},
                                 {Schedule::Order::kReverse},
                                 {Schedule::Order::kRandom, 1},
                                 {Schedule::Order::kRandom, 2},
                                 {Schedule::Order::kRandom, 3}};
  return schedules;
}

// The error of the first schedule that shows one.
template <typename... Params, typename... Arguments>
std::string FirstError(const LaunchShape& shape, void (*kernel)(Params...),
                       const Arguments&... arguments) {
  for (const Schedule& schedule : Schedules()) {
    const LaunchReport report = Launch(schedule, shape, kernel, arguments...);
    if (!report.ok()) return report.error;
  }
  return "";
}

constexpr LaunchShape kTwoWarps = {.threads = 64, .shared_bytes = 1024};
constexpr LaunchShape kOneWarp = {.threads = 32, .shared_bytes = 1024};

struct Places {
  uint32_t* visits;  // [z][y][x][thread]
};

SIMT_KERNEL(96, 1) void Visit(Places p) {
  const uint32_t block =
      (BlockZ() * num_blocks_y() + BlockY()) * num_blocks_x() + BlockX();
  AtomicAdd(p.visits + block * num_threads() + Warp() * 32 + Lane(), 1u);
}

TEST(SimtEmulatorTest, RunsEveryThreadOfEveryBlockOnce) {
  for (const Schedule& schedule : Schedules()) {
    std::vector<uint32_t> visits(3 * 2 * 4 * 96);
    const LaunchReport report =
        Launch(schedule, {.grid = {4, 2, 3}, .threads = 96}, Visit,
               Places{visits.data()});
    EXPECT_EQ(report.error, "");
    EXPECT_THAT(visits, Each(1));
  }
}

void Nothing() {}

TEST(SimtEmulatorTest, RefusesShapesThatNoGpuHas) {
  for (const uint32_t threads : {0u, 33u, 1056u}) {
    EXPECT_THAT(Launch({}, {.threads = threads}, Nothing).error,
                HasSubstr("multiple of 32"));
  }
  EXPECT_THAT(Launch({}, {.shared_bytes = 228 << 10}, Nothing).error,
              HasSubstr("shared_bytes"));
  EXPECT_THAT(Launch({}, {.grid = {1, 65536}}, Nothing).error, HasSubstr("y"));
  EXPECT_THAT(Launch({}, {.grid = {1, 1, 65536}}, Nothing).error,
              HasSubstr("z"));
}

struct Lanes {
  uint32_t* out;  // [8][32]
};

SIMT_KERNEL(32, 1) void Collectives(Lanes p) {
  const uint32_t lane = Lane();
  uint32_t* out = p.out + lane;
  out[0] = Shuffle(lane, (lane * 7 + 3) % 32);
  out[32] = ShuffleXor(lane, 5);
  out[64] = ShuffleUp(lane, 3);
  out[96] = ShuffleDown(lane, 3);
  out[128] = Ballot(lane % 3 == 0);
  out[160] = Any(lane == 31) ? 1 : 0;
  out[192] = All(lane < 31) ? 1 : 0;
  const uint64_t wide = Shuffle(uint64_t{lane} << 40, 31);
  out[224] = static_cast<uint32_t>(wide >> 40);
}

TEST(SimtEmulatorTest, ShufflesAndVotes) {
  std::vector<uint32_t> out(8 * 32);
  uint32_t ballot = 0;
  for (uint32_t lane = 0; lane < 32; lane += 3) ballot |= 1u << lane;
  for (const Schedule& schedule : Schedules()) {
    ASSERT_EQ(Launch(schedule, kOneWarp, Collectives, Lanes{out.data()}).error,
              "");
    for (uint32_t lane = 0; lane < 32; ++lane) {
      EXPECT_EQ(out[lane], (lane * 7 + 3) % 32);
      EXPECT_EQ(out[32 + lane], lane ^ 5);
      EXPECT_EQ(out[64 + lane], lane < 3 ? lane : lane - 3);
      EXPECT_EQ(out[96 + lane], lane > 28 ? lane : lane + 3);
      EXPECT_EQ(out[128 + lane], ballot);
      EXPECT_EQ(out[160 + lane], 1u);
      EXPECT_EQ(out[192 + lane], 0u);
      EXPECT_EQ(out[224 + lane], 31u);
    }
  }
}

struct Matrices {
  const uint16_t* a;  // [16][16]
  const uint16_t* b;  // [8 columns][16]
  const float* c;     // [16][8]
  float* d;           // [16][8]
  uint32_t* moved;    // [32]
};

// A comes through LoadMatrix4, B through the transposed load of B's transpose.
template <typename T>
SIMT_KERNEL(32, 1)
void MultiplyTile(Matrices p) {
  char* bytes = SharedBytes();
  const uint32_t lane = Lane();
  CopyAsync16(bytes + lane * 16, p.a + lane * 8, true);
  CopyAsync16(bytes + 512 + lane * 16, p.b + (lane % 16) * 8, lane < 16);
  CommitCopies();
  WaitCopies<0>();
  SyncWarp();
  uint32_t a[4];
  LoadMatrix4(a, bytes + (lane % 16 * 16 + lane / 16 * 8) * 2);
  uint32_t b[4];
  LoadMatrix4(b, bytes + 512 + (lane % 8 * 16 + lane / 8 % 2 * 8) * 2);
  const uint32_t row = lane / 4;
  const uint32_t column = lane % 4 * 2;
  float c[4] = {p.c[row * 8 + column], p.c[row * 8 + column + 1],
                p.c[(row + 8) * 8 + column], p.c[(row + 8) * 8 + column + 1]};
  Mma16816<T>(c, a, b[0], b[1]);
  p.d[row * 8 + column] = c[0];
  p.d[row * 8 + column + 1] = c[1];
  p.d[(row + 8) * 8 + column] = c[2];
  p.d[(row + 8) * 8 + column + 1] = c[3];
  p.moved[lane] = MoveMatrixTransposed(a[0]);
}

template <typename T>
void ExpectMultiplies() {
  std::mt19937 rng(3);
  std::vector<uint16_t> a(256);
  std::vector<uint16_t> b(128);
  std::vector<float> c(128);
  const auto draw = [&] { return static_cast<float>(rng() % 2001) / 500 - 2; };
  for (uint16_t& x : a) x = FromFloat<T>(draw()).bits;
  for (uint16_t& x : b) x = FromFloat<T>(draw()).bits;
  for (float& x : c) x = draw();
  for (const Schedule& schedule : Schedules()) {
    std::vector<float> d(128, NAN);
    std::vector<uint32_t> moved(32);
    ASSERT_EQ(
        Launch(schedule, kOneWarp, MultiplyTile<T>,
               Matrices{a.data(), b.data(), c.data(), d.data(), moved.data()})
            .error,
        "");
    for (int row = 0; row < 16; ++row) {
      for (int column = 0; column < 8; ++column) {
        double sum = c[row * 8 + column];
        for (int k = 0; k < 16; ++k) {
          sum += double{ToFloat(T{a[row * 16 + k]})} *
                 ToFloat(T{b[column * 16 + k]});
        }
        EXPECT_NEAR(d[row * 8 + column], sum, 1e-4) << row << " " << column;
      }
    }
    for (int lane = 0; lane < 32; ++lane) {
      const uint16_t low = a[lane % 4 * 2 * 16 + lane / 4];
      const uint16_t high = a[(lane % 4 * 2 + 1) * 16 + lane / 4];
      EXPECT_EQ(moved[lane], low | uint32_t{high} << 16) << lane;
    }
  }
}

TEST(SimtEmulatorTest, MultipliesMatrices) {
  ExpectMultiplies<BFloat16>();
  ExpectMultiplies<Half>();
}

struct Loaded {
  uint32_t* out;  // [32][4]
  uint32_t stride;
};

SIMT_KERNEL(32, 1) void LoadTransposed(Loaded p) {
  const auto tile = Shared<uint16_t>(0, 512);
  for (uint32_t i = Lane(); i < 512; i += 32) {
    tile.Store(i, static_cast<uint16_t>(i));
  }
  SyncWarp();
  uint32_t r[4];
  LoadMatrix4Transposed(r, SharedBytes() + Lane() * p.stride % 1024);
  for (int i = 0; i < 4; ++i) p.out[Lane() * 4 + i] = r[i];
}

TEST(SimtEmulatorTest, LoadsMatricesTransposedAndCountsConflicts) {
  std::vector<uint32_t> out(128);
  LaunchReport report =
      Launch({}, kOneWarp, LoadTransposed, Loaded{out.data(), 16});
  ASSERT_EQ(report.error, "");
  EXPECT_EQ(report.bank_conflicts, 0);
  for (uint32_t lane = 0; lane < 32; ++lane) {
    for (uint32_t matrix = 0; matrix < 4; ++matrix) {
      const uint32_t low = matrix * 64 + lane % 4 * 2 * 8 + lane / 4;
      EXPECT_EQ(out[lane * 4 + matrix], low | (low + 8) << 16);
    }
  }
  // Rows of 32 bytes: two of eight share banks, in each of four matrices.
  report = Launch({}, kOneWarp, LoadTransposed, Loaded{out.data(), 32});
  EXPECT_EQ(report.bank_conflicts, 4);
}

TEST(SimtEmulatorTest, HalfConversionRoundsToNearestEven) {
  // Every half is what it was after the way through float.
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = ToFloat(Half{static_cast<uint16_t>(bits)});
    if (std::isnan(value)) {
      EXPECT_GT(bits & 0x7FFFu, 0x7C00u);
      EXPECT_EQ(FloatBits(value), 0x7FFFFFFFu);  // as on the device
      continue;
    }
    EXPECT_EQ(FromFloat<Half>(value).bits, bits);
  }
  // Halfway between two neighbours: the even one; a little more: the upper.
  for (uint32_t bits = 0; bits < 0x7BFF; ++bits) {
    const float low = ToFloat(Half{static_cast<uint16_t>(bits)});
    const float high = ToFloat(Half{static_cast<uint16_t>(bits + 1)});
    const float middle = low + (high - low) / 2;
    EXPECT_EQ(FromFloat<Half>(middle).bits, bits + (bits & 1u));
    EXPECT_EQ(FromFloat<Half>(std::nextafter(middle, high)).bits, bits + 1);
  }
  EXPECT_EQ(FromFloat<Half>(65519.9f).bits, 0x7BFF);
  EXPECT_EQ(FromFloat<Half>(65520.0f).bits, 0x7C00);
  EXPECT_EQ(FromFloat<Half>(-std::numeric_limits<float>::infinity()).bits,
            0xFC00);
}

struct Sums {
  uint32_t* partial;  // [blocks]
  uint32_t* counter;
  uint32_t* total;
};

SIMT_KERNEL(64, 1) void SumOfBlocks(Sums p) {
  if (ThreadIndex() == 0) p.partial[BlockX()] = BlockX() + 1;
  if (!LastBlockDone(p.counter, num_blocks_x())) return;
  if (ThreadIndex() != 0) return;
  uint32_t sum = 0;
  for (uint32_t i = 0; i < num_blocks_x(); ++i) sum += p.partial[i];
  AtomicAdd(p.total, sum);
}

TEST(SimtEmulatorTest, LastBlockSeesAllBlocks) {
  for (const Schedule& schedule : Schedules()) {
    std::vector<uint32_t> partial(9);
    uint32_t counter = 0;
    uint32_t total = 0;
    const Sums sums = {partial.data(), &counter, &total};
    const LaunchShape shape = {.grid = {9}, .threads = 64};
    for (const uint32_t sum : {45u, 90u}) {
      ASSERT_EQ(Launch(schedule, shape, SumOfBlocks, sums).error, "");
      EXPECT_EQ(total, sum);
      EXPECT_EQ(counter, 0u);
    }
  }
}

SIMT_KERNEL(64, 1) void Histogram(Lanes p) {
  const auto bins = Shared<uint32_t>(0, 32);
  if (Warp() == 0) bins.Store(Lane(), 0);
  SyncBlock();
  bins.AtomicAdd(ThreadIndex() % 5, 1);
  bins.AtomicMax(31, ThreadIndex());
  bins.AtomicOr(30, 1u << Lane());
  SyncBlock();
  if (Warp() == 1) p.out[Lane()] = bins.Load(Lane());
}

TEST(SimtEmulatorTest, AtomicsOnSharedMemory) {
  for (const Schedule& schedule : Schedules()) {
    std::vector<uint32_t> out(32);
    ASSERT_EQ(Launch(schedule, kTwoWarps, Histogram, Lanes{out.data()}).error,
              "");
    for (uint32_t i = 0; i < 5; ++i) EXPECT_EQ(out[i], i < 4 ? 13u : 12u);
    EXPECT_EQ(out[31], 63u);
    EXPECT_EQ(out[30], 0xFFFFFFFFu);
  }
}

// What a kernel may do wrong, one thing each.
enum class Breach {
  kMissingBlockBarrier,
  kMissingWarpBarrier,
  kMissingBarrierBeforeReuse,
  kReadUnwritten,
  kOutOfArray,
  kArrayOutOfShared,
  kRawOutOfShared,
  kMisalignedVector,
  kMisalignedArray,
  kMissingWait,
  kTooFewWaits,
  kMissingBarrierAfterWait,
  kDivergentCollective,
  kDivergentSite,
  kDivergentBarrier,
  kDeadlock,
  kLaneMissing,
  kLaneEnds,
  kShuffleArgument,
};

struct Faulty {
  const uint16_t* in;  // [512]
  uint32_t* out;       // [64]
};

template <Breach kBreach>
SIMT_KERNEL(64, 1)
void BreakMemoryRule(Faulty p) {
  const uint32_t thread = ThreadIndex();
  const auto values = Shared<uint32_t>(0, 64);
  if (kBreach != Breach::kReadUnwritten || thread != 9) {
    values.Store(thread, thread);
  }
  SyncWarp();
  if (kBreach != Breach::kMissingBlockBarrier) SyncBlock();
  p.out[thread] = values.Load(63 - thread);
  if (kBreach != Breach::kMissingBarrierBeforeReuse) SyncBlock();
  values.Store(thread, 1);
  if (kBreach != Breach::kMissingWarpBarrier) SyncWarp();
  p.out[thread] += values.Load(thread ^ 1);
  if (kBreach == Breach::kOutOfArray) values.Load(thread % 63 + 64);
  if (kBreach == Breach::kArrayOutOfShared) Shared<uint32_t>(1020, 2);
  if (kBreach == Breach::kRawOutOfShared) {
    CopyAsync16(SharedBytes() + 1024, p.in, true);
  }
  if (kBreach == Breach::kMisalignedVector) LoadGlobal16(p.in + 4);
  if (kBreach == Breach::kMisalignedArray) Shared<uint32_t>(2, 1);
}

template <Breach kBreach>
SIMT_KERNEL(32, 1)
void BreakCopyRule(Faulty p) {
  const uint32_t lane = Lane();
  char* bytes = SharedBytes();
  CopyAsync16(bytes + lane * 16, p.in + lane * 8, true);
  CommitCopies();
  CopyAsync16(bytes + 512 + lane * 16, p.in + lane * 8, true);
  CommitCopies();
  if (kBreach == Breach::kTooFewWaits) WaitCopies<1>();
  if (kBreach != Breach::kTooFewWaits && kBreach != Breach::kMissingWait) {
    WaitCopies<0>();
  }
  if (kBreach != Breach::kMissingBarrierAfterWait) SyncWarp();
  uint32_t r[4];
  LoadMatrix4(r, bytes + 512 + lane * 16);
  p.out[lane] = r[0];
}

template <Breach kBreach>
SIMT_KERNEL(64, 1)
void BreakConvergence(Faulty p) {
  const uint32_t lane = Lane();
  uint32_t value = lane;
  if (kBreach == Breach::kDivergentCollective) {
    if (lane < 7) {
      value = ShuffleXor(value, 1);
    } else {
      value = Ballot(true);
    }
  } else if (kBreach == Breach::kDivergentSite) {
    if (lane < 7) {
      value = ShuffleXor(value, 1);
    } else {
      value = ShuffleXor(value, 1);
    }
  } else if (kBreach == Breach::kDivergentBarrier) {
    if (Warp() == 0) {
      SyncBlock();
    } else {
      SyncBlock();
    }
  } else if (kBreach == Breach::kDeadlock) {
    if (lane == 3) {
      SyncBlock();
    } else {
      SyncWarp();
    }
  } else if (kBreach == Breach::kLaneMissing) {
    if (lane == 3) SyncWarp();
    SyncBlock();
  } else if (kBreach == Breach::kLaneEnds) {
    if (lane == 3) return;
    SyncWarp();
  } else if (kBreach == Breach::kShuffleArgument) {
    value = ShuffleXor(value, lane < 7 ? 1 : 2);
  }
  p.out[ThreadIndex()] = value;
}

class BreachTest : public testing::Test {
 protected:
  std::string Memory(void (*kernel)(Faulty)) { return Run(kTwoWarps, kernel); }
  std::string Copy(void (*kernel)(Faulty)) { return Run(kOneWarp, kernel); }

 private:
  std::string Run(const LaunchShape& shape, void (*kernel)(Faulty)) {
    return FirstError(shape, kernel, Faulty{in_.data(), out_.data()});
  }

  alignas(16) std::array<uint16_t, 512> in_ = {};
  std::array<uint32_t, 64> out_ = {};
};

TEST_F(BreachTest, KernelsWithoutOneRun) {
  // A breach that this kernel does not know.
  EXPECT_EQ(Memory(BreakMemoryRule<Breach::kDeadlock>), "");
  EXPECT_EQ(Copy(BreakCopyRule<Breach::kDeadlock>), "");
  EXPECT_EQ(Memory(BreakConvergence<Breach::kOutOfArray>), "");
}

TEST_F(BreachTest, MissingBarriersAreFound) {
  // Which of two unordered accesses comes second depends on the schedule.
  const auto unordered = AllOf(HasSubstr("without a barrier after the"),
                               HasSubstr("simt_emulator_test.cc:"));
  EXPECT_THAT(Memory(BreakMemoryRule<Breach::kMissingBlockBarrier>),
              AnyOf(unordered, HasSubstr("nobody wrote")));
  EXPECT_THAT(Memory(BreakMemoryRule<Breach::kMissingWarpBarrier>), unordered);
  EXPECT_THAT(Memory(BreakMemoryRule<Breach::kMissingBarrierBeforeReuse>),
              unordered);
  EXPECT_THAT(Copy(BreakCopyRule<Breach::kMissingBarrierAfterWait>),
              HasSubstr("without a barrier after the write"));
}

TEST_F(BreachTest, WrongAddressesAreFound) {
  EXPECT_THAT(Memory(BreakMemoryRule<Breach::kReadUnwritten>),
              HasSubstr("nobody wrote"));
  EXPECT_THAT(Memory(BreakMemoryRule<Breach::kOutOfArray>),
              HasSubstr("out of a shared array of 64"));
  EXPECT_THAT(Memory(BreakMemoryRule<Breach::kArrayOutOfShared>),
              HasSubstr("out of the 1024 bytes"));
  EXPECT_THAT(Memory(BreakMemoryRule<Breach::kRawOutOfShared>),
              HasSubstr("out of the 1024 bytes"));
  EXPECT_THAT(Memory(BreakMemoryRule<Breach::kMisalignedVector>),
              HasSubstr("not 16-byte aligned"));
  EXPECT_THAT(Memory(BreakMemoryRule<Breach::kMisalignedArray>),
              HasSubstr("expected a multiple of 4"));
}

TEST_F(BreachTest, MissingWaitsAreFound) {
  EXPECT_THAT(Copy(BreakCopyRule<Breach::kMissingWait>),
              HasSubstr("copy not waited for"));
  EXPECT_THAT(Copy(BreakCopyRule<Breach::kTooFewWaits>),
              HasSubstr("copy not waited for"));
}

TEST_F(BreachTest, DivergenceNamesBothPlaces) {
  EXPECT_THAT(Memory(BreakConvergence<Breach::kDivergentCollective>),
              AllOf(HasSubstr("divergent collective"),
                    HasSubstr("ShuffleXor at"), HasSubstr("Ballot at")));
  EXPECT_THAT(Memory(BreakConvergence<Breach::kDivergentSite>),
              HasSubstr("divergent collective"));
  EXPECT_THAT(Memory(BreakConvergence<Breach::kDivergentBarrier>),
              HasSubstr("divergent barrier"));
  EXPECT_THAT(Memory(BreakConvergence<Breach::kShuffleArgument>),
              HasSubstr("disagree"));
}

TEST_F(BreachTest, DeadlockNamesBothPlaces) {
  EXPECT_THAT(Memory(BreakConvergence<Breach::kDeadlock>),
              AllOf(HasSubstr("deadlock"), HasSubstr("SyncBlock at"),
                    HasSubstr("SyncWarp at")));
  EXPECT_THAT(Memory(BreakConvergence<Breach::kLaneMissing>),
              HasSubstr("deadlock"));
  EXPECT_THAT(Memory(BreakConvergence<Breach::kLaneEnds>),
              HasSubstr("SyncWarp"));
}

}  // namespace
}  // namespace blockmgr::simt
