// What copies of rows do with ids that no pool has, from either side.

#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/backend.h"
#include "kernels/cuda/row_mover.cuh"
#include "kernels/cuda/row_mover.h"
#include "tests/kernels/cuda/emulated_pool.h"
#include "tests/kernels/kernel_cases.h"

namespace blockmgr {
namespace {

template <typename Source, typename Destination>
void ExpectRuns(const RowMoverParams<Source, Destination>& params) {
  const simt::LaunchShape shape = {
      .grid = {RowMoverBlocks(params.rows.count, 2)},
      .threads = kRowMoverThreads};
  EXPECT_EQ(
      simt::Launch({}, shape,
                   RowMover<RowConversion::kNone, Source, Destination, kNoBug>,
                   params)
          .error,
      "");
}

// A pool next to what must stay in it.
class RowMoverIdsTest : public testing::Test {
 protected:
  RowMoverIdsTest() : pool_(kLayout, PoolStrides::kHnd) {
    Rng rng(3);
    PoolModel model(kLayout);
    model.FillAll(rng);
    backend_ = model.MakeBackend();
    pool_.CopyFrom(*backend_);
  }

  // That the last launch said this, and wrote to no row of the pool.
  void ExpectReport(uint32_t bits) {
    EXPECT_EQ(error_, bits);
    EXPECT_EQ(pool_.Difference(*backend_), "");
    error_ = 0;
  }

  static constexpr ModelLayout kLayout = {.num_layers = 2,
                                          .num_heads = 2,
                                          .num_q_heads = 2,
                                          .head_dim = 8,
                                          .page_size = 4,
                                          .dtype = DType::kFloat32,
                                          .num_blocks = 3};
  static constexpr int64_t kRow = kLayout.head_dim * 4;

  EmulatedPool pool_;
  std::unique_ptr<Backend> backend_;
  uint32_t error_ = 0;
};

TEST_F(RowMoverIdsTest, AppendToALayerOutsideThePool) {
  const std::vector<simt::Vector16> rows(4 * kRow / 16);
  const int64_t slot = 1;
  for (const int32_t layer : {-1, kLayout.num_layers}) {
    const auto* bytes = reinterpret_cast<const char*>(rows.data());
    ExpectRuns(MakeParams(AppendRows{.pool = pool_.view(),
                                     .layer = layer,
                                     .num_tokens = 1,
                                     .slot_mapping = &slot,
                                     .keys = bytes,
                                     .values = bytes + 2 * kRow,
                                     .token_stride = 2 * kRow,
                                     .head_stride = kRow,
                                     .error = &error_}));
    ExpectReport(kSlotOutOfPool);
  }
}

TEST_F(RowMoverIdsTest, GatherOfASlotOutsideThePool) {
  std::vector<simt::Vector16> out(2 * kRow / 16);
  std::memset(out.data(), 0x5A, 2 * kRow);
  const std::vector<simt::Vector16> before = out;
  for (const int64_t slot : {int64_t{-1}, pool_.num_slots()}) {
    int32_t position = -9;
    ExpectRuns(MakeParams(GatherRows{.pool = pool_.view(),
                                     .rows = {.count = 1},
                                     .slots = &slot,
                                     .out = reinterpret_cast<char*>(out.data()),
                                     .positions = &position,
                                     .error = &error_},
                          1));
    ExpectReport(kSlotOutOfPool);
    EXPECT_EQ(std::memcmp(out.data(), before.data(), 2 * kRow), 0);
    EXPECT_EQ(position, -9);
  }
}

TEST_F(RowMoverIdsTest, MoveWithOneSideOutsideThePool) {
  const int64_t end = pool_.num_slots();
  for (const RowMove move :
       {RowMove{-1, 0}, RowMove{end, 0}, RowMove{0, -1}, RowMove{0, end}}) {
    ExpectRuns(MakeParams(MoveRows{.pool = pool_.view(),
                                   .rows = {.count = 1},
                                   .moves = &move,
                                   .error = &error_}));
    ExpectReport(kSlotOutOfPool);
  }
}

TEST_F(RowMoverIdsTest, CopyWithOneSideOutsideThePool) {
  const int32_t end = kLayout.num_blocks;
  for (const BlockPair pair : {BlockPair{-1, 0}, BlockPair{end, 0},
                               BlockPair{0, -1}, BlockPair{0, end}}) {
    ExpectRuns(MakeParams(CopyBlockRows{.pool = pool_.view(),
                                        .num_pairs = 1,
                                        .pairs = &pair,
                                        .error = &error_}));
    ExpectReport(kBlockOutOfPool);
  }
}

TEST_F(RowMoverIdsTest, PagesOutsideThePool) {
  const int64_t bytes = kLayout.page_bytes();
  std::vector<simt::Vector16> staged(bytes / 16);
  std::memset(staged.data(), 0x5A, bytes);
  const std::vector<simt::Vector16> before = staged;
  for (const int32_t page : {-1, static_cast<int32_t>(kLayout.num_pages()),
                             std::numeric_limits<int32_t>::max()}) {
    const StagePages stage = {.pool = pool_.view(),
                              .num_pages = 1,
                              .pages = &page,
                              .staged = reinterpret_cast<char*>(staged.data()),
                              .error = &error_};
    ExpectRuns(MakePackParams(stage));
    ExpectReport(kPageOutOfPool);
    EXPECT_EQ(std::memcmp(staged.data(), before.data(), bytes), 0);
    ExpectRuns(MakeUnpackParams(stage));
    ExpectReport(kPageOutOfPool);
  }
}

}  // namespace
}  // namespace blockmgr
