// What copies of rows do with ids that no pool has, from either side, and with
// offsets that 32 bits do not hold.

#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/backend.h"
#include "kernels/cuda/rows/row_mover.h"
#include "kernels/cuda/simt.h"
#include "tests/kernels/cuda/test_device.h"
#include "tests/kernels/cuda/test_pool.h"
#include "tests/kernels/kernel_cases.h"

namespace blockmgr {
namespace {

template <typename T>
SharedVector<T> One(T value) {
  return {value};
}

template <typename Kernel, typename... Arguments>
void ExpectRuns(Kernel kernel, const Arguments&... arguments) {
  EXPECT_EQ(RunKernel({}, kernel, arguments...).error, "");
}

// A pool next to what must stay in it.
class RowMoverIdsTest : public DeviceTest {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    if (IsSkipped()) return;
    Rng rng(3);
    PoolModel model(kLayout);
    model.FillAll(rng);
    backend_ = model.MakeBackend();
    pool_ = std::make_unique<TestPool>(kLayout, KvTensorOrder::kHndApart);
    pool_->CopyFrom(*backend_);
    error_ = {0};
  }

  // That the last launch said this, and wrote to no row of the pool.
  void ExpectReport(uint32_t bits) {
    EXPECT_EQ(error_[0], bits);
    EXPECT_EQ(pool_->Difference(*backend_), "");
    error_[0] = 0;
  }

  static constexpr ModelLayout kLayout = {.num_layers = 2,
                                          .num_heads = 2,
                                          .num_q_heads = 2,
                                          .head_dim = 8,
                                          .page_size = 4,
                                          .dtype = DType::kFloat32,
                                          .num_blocks = 3};
  static constexpr int64_t kRow = kLayout.head_dim * 4;

  std::unique_ptr<TestPool> pool_;
  std::unique_ptr<Backend> backend_;
  SharedVector<uint32_t> error_;
};

TEST_F(RowMoverIdsTest, AppendToALayerOutsideThePool) {
  const SharedVector<simt::Vector16> rows(4 * kRow / 16);
  const auto slot = One<int64_t>(1);
  for (const int32_t layer : {-1, kLayout.num_layers}) {
    const auto* bytes = reinterpret_cast<const char*>(rows.data());
    ExpectRuns(&DeviceRuntime::Append,
               AppendRows{.pool = pool_->pool(),
                          .layer = layer,
                          .num_tokens = 1,
                          .slot_mapping = slot.data(),
                          .keys = bytes,
                          .values = bytes + 2 * kRow,
                          .token_stride = 2 * kRow,
                          .head_stride = kRow,
                          .error = error_.data()},
               RowConversion::kNone);
    ExpectReport(kSlotOutOfPool);
  }
}

// Lanes look rows up side by side: one that is not there, anywhere in a turn
// and among any number of others, costs those nothing.
TEST_F(RowMoverIdsTest, RowsNextToOneOutsideThePoolAreGathered) {
  constexpr int64_t kMax = 2 * kRowsPerWarp + 1;
  SharedVector<int32_t>& kept = pool_->positions();
  std::iota(kept.begin(), kept.end(), 100);
  for (int64_t count = 1; count <= kMax; ++count) {
    for (int64_t bad = 0; bad < count; ++bad) {
      SharedVector<int64_t> slots(kMax);
      for (int64_t i = 0; i < kMax; ++i) {
        slots[i] = (i * 5 + count) % pool_->num_slots();
      }
      slots[bad] = bad % 2 == 0 ? -1 - bad : pool_->num_slots();
      SharedVector<simt::Vector16> out(kMax * 2 * kRow / 16);
      std::memset(out.data(), 0x5A, kMax * 2 * kRow);
      const std::vector<char> untouched(2 * kRow, 0x5A);
      SharedVector<int32_t> positions(kMax, -9);
      const auto device_count = One(count);
      ExpectRuns(&DeviceRuntime::Gather,
                 GatherRows{.pool = pool_->pool(),
                            .rows = {.count = kMax,
                                     .device_count = device_count.data()},
                            .slots = slots.data(),
                            .out = reinterpret_cast<char*>(out.data()),
                            .positions = positions.data(),
                            .error = error_.data()},
                 RowConversion::kNone);
      ExpectReport(kSlotOutOfPool);
      for (int64_t i = 0; i < kMax; ++i) {
        const bool written = i < count && i != bad;
        const char* row = reinterpret_cast<char*>(out.data()) + i * 2 * kRow;
        EXPECT_EQ(std::vector<char>(row, row + 2 * kRow),
                  written ? pool_->SlotBytes(slots[i]) : untouched)
            << "row " << i << " of " << count << " without " << bad;
        EXPECT_EQ(positions[i], written ? kept[slots[i]] : -9);
      }
    }
  }
}

TEST_F(RowMoverIdsTest, MoveWithOneSideOutsideThePool) {
  const int64_t end = pool_->num_slots();
  for (const RowMove ids :
       {RowMove{-1, 0}, RowMove{end, 0}, RowMove{0, -1}, RowMove{0, end}}) {
    const auto move = One(ids);
    ExpectRuns(&DeviceRuntime::Move, MoveRows{.pool = pool_->pool(),
                                              .rows = {.count = 1},
                                              .moves = move.data(),
                                              .error = error_.data()});
    ExpectReport(kSlotOutOfPool);
  }
}

TEST_F(RowMoverIdsTest, CopyWithOneSideOutsideThePool) {
  const int32_t end = kLayout.num_blocks;
  for (const BlockPair ids : {BlockPair{-1, 0}, BlockPair{end, 0},
                              BlockPair{0, -1}, BlockPair{0, end}}) {
    const auto pair = One(ids);
    ExpectRuns(&DeviceRuntime::CopyBlocks,
               CopyBlockRows{.pool = pool_->pool(),
                             .num_pairs = 1,
                             .pairs = pair.data(),
                             .error = error_.data()});
    ExpectReport(kBlockOutOfPool);
  }
}

TEST_F(RowMoverIdsTest, PagesOutsideThePool) {
  const int64_t bytes = kLayout.page_bytes();
  SharedVector<simt::Vector16> staged(bytes / 16);
  std::memset(staged.data(), 0x5A, bytes);
  const SharedVector<simt::Vector16> before = staged;
  for (const int32_t id : {-1, static_cast<int32_t>(kLayout.num_pages()),
                           std::numeric_limits<int32_t>::max()}) {
    const auto page = One(id);
    const StagePages stage = {.pool = pool_->pool(),
                              .num_pages = 1,
                              .pages = page.data(),
                              .staged = reinterpret_cast<char*>(staged.data()),
                              .error = error_.data()};
    ExpectRuns(&DeviceRuntime::PackPages, stage);
    ExpectReport(kPageOutOfPool);
    EXPECT_EQ(std::memcmp(staged.data(), before.data(), bytes), 0);
    ExpectRuns(&DeviceRuntime::UnpackPages, stage);
    ExpectReport(kPageOutOfPool);
  }
}

// 24 GB of address space, of which a few pages are ever touched: two layers in
// one allocation, or with an address each.
class LargePoolTest : public DeviceTest,
                      public testing::WithParamInterface<bool> {
 protected:
  static constexpr int64_t kRowBytes = 256;
  static constexpr int32_t kHeads = 8;
  static constexpr int32_t kBlocks = 196'608;
  static constexpr int64_t kPageBytes = kRowBytes * 2 * 16;
  static constexpr int64_t kLayerBytes = kBlocks * int64_t{kHeads} * kPageBytes;

  void SetUp() override {
    DeviceTest::SetUp();
    if (IsSkipped()) return;
    if (FreeSharedBytes() < 2 * kLayerBytes) {
      GTEST_SKIP() << "no GPU: none with so much memory free";
    }
    memory_ = static_cast<char*>(AllocateShared(2 * kLayerBytes));
    error_ = {0};
    layer_bases_ = {memory_, memory_ + kLayerBytes};
    pool_.base = GetParam() ? nullptr : memory_;
    pool_.layer_bases = GetParam() ? layer_bases_.data() : nullptr;
    pool_.layer_stride = GetParam() ? 0 : kLayerBytes;
    pool_.block_stride = kHeads * kPageBytes;
    pool_.head_stride = kPageBytes;
    pool_.kv_stride = 16 * kRowBytes;
    pool_.token_stride = kRowBytes;
    pool_.num_layers = 2;
    pool_.num_blocks = kBlocks;
    pool_.num_heads = kHeads;
    pool_.page_size = 16;
    pool_.row_bytes = kRowBytes;
    pool_ = Prepared(pool_);
    last_ = pool_.num_slots() - 1;
  }
  void TearDown() override {
    if (memory_ == nullptr) return;
    EXPECT_EQ(error_[0], 0u);
    FreeShared(memory_, 2 * kLayerBytes);
  }

  char* Key(int64_t slot) const {
    return memory_ + slot / 16 * kPageBytes + slot % 16 * kRowBytes;
  }
  void Fill(int64_t slot, int byte) const {
    std::memset(Key(slot), byte, kRowBytes);
    std::memset(Key(slot) + pool_.kv_stride, byte + 1, kRowBytes);
  }
  static bool HasRow(const char* row, int byte) {
    for (int64_t i = 0; i < kRowBytes; ++i) {
      if (row[i] != byte) return false;
    }
    return true;
  }
  void ExpectHas(int64_t slot, int byte) const {
    EXPECT_TRUE(HasRow(Key(slot), byte)) << slot;
    EXPECT_TRUE(HasRow(Key(slot) + pool_.kv_stride, byte + 1)) << slot;
  }

  char* memory_ = nullptr;
  SharedVector<char*> layer_bases_;
  PagedPool pool_;
  int64_t last_ = 0;  // slot
  SharedVector<uint32_t> error_;
};

INSTANTIATE_TEST_SUITE_P(LayerBases, LargePoolTest, testing::Bool());

TEST_P(LargePoolTest, Move) {
  Fill(last_ - 1000, 0x11);
  const auto move = One(RowMove{last_ - 1000, last_});
  ExpectRuns(&DeviceRuntime::Move, MoveRows{.pool = pool_,
                                            .rows = {.count = 1},
                                            .moves = move.data(),
                                            .error = error_.data()});
  ExpectHas(last_, 0x11);
}

// Tokens far apart, as those of a fused tensor of a large model may be.
TEST_P(LargePoolTest, Append) {
  constexpr int64_t kTokenStride = int64_t{3} << 30;
  constexpr int64_t kHeadStride = int64_t{300} << 20;
  SharedVector<int64_t> slots;
  for (int64_t token = 0; token < 3; ++token) {
    slots.push_back(int64_t{kBlocks} * 16 - 1 - token * 16);
    for (int64_t head = 0; head < kHeads; ++head) {
      char* row = memory_ + token * kTokenStride + head * kHeadStride;
      std::memset(row, static_cast<int>(0x20 + token), kRowBytes);
      std::memset(row + kLayerBytes, static_cast<int>(0x21 + token), kRowBytes);
    }
  }
  ExpectRuns(&DeviceRuntime::Append,
             AppendRows{.pool = pool_,
                        .layer = 1,
                        .num_tokens = 3,
                        .slot_mapping = slots.data(),
                        .keys = memory_,
                        .values = memory_ + kLayerBytes,
                        .token_stride = kTokenStride,
                        .head_stride = kHeadStride,
                        .error = error_.data()},
             RowConversion::kNone);
  for (int64_t token = 0; token < 3; ++token) {
    for (int64_t head = 0; head < kHeads; ++head) {
      const int64_t page =
          (int64_t{kBlocks} + kBlocks - 1 - token) * kHeads + head;
      ExpectHas(page * 16 + 15, static_cast<int>(0x20 + token));
    }
  }
}

TEST_P(LargePoolTest, CopyBlocks) {
  const auto slot_of = [](int64_t layer, int64_t block) {
    return ((layer * kBlocks + block) * kHeads + kHeads - 1) * 16 + 15;
  };
  Fill(slot_of(0, kBlocks - 9), 0x31);
  Fill(slot_of(1, kBlocks - 9), 0x33);
  const auto pair = One(BlockPair{kBlocks - 9, kBlocks - 1});
  ExpectRuns(&DeviceRuntime::CopyBlocks, CopyBlockRows{.pool = pool_,
                                                       .num_pairs = 1,
                                                       .pairs = pair.data(),
                                                       .error = error_.data()});
  ExpectHas(slot_of(0, kBlocks - 1), 0x31);
  ExpectHas(slot_of(1, kBlocks - 1), 0x33);
}

TEST_P(LargePoolTest, GatherAndStage) {
  Fill(last_, 0x41);
  const auto slot = One(last_);
  SharedVector<simt::Vector16> rows(2 * kRowBytes / 16);
  auto* out = reinterpret_cast<char*>(rows.data());
  ExpectRuns(&DeviceRuntime::Gather,
             GatherRows{.pool = pool_,
                        .rows = {.count = 1},
                        .slots = slot.data(),
                        .out = out,
                        .error = error_.data()},
             RowConversion::kNone);
  EXPECT_TRUE(HasRow(out, 0x41));
  EXPECT_TRUE(HasRow(out + kRowBytes, 0x42));
  auto page = One(static_cast<int32_t>(last_ / 16));
  SharedVector<simt::Vector16> staged(kPageBytes / 16);
  StagePages stage = {.pool = pool_,
                      .num_pages = 1,
                      .pages = page.data(),
                      .staged = reinterpret_cast<char*>(staged.data()),
                      .error = error_.data()};
  ExpectRuns(&DeviceRuntime::PackPages, stage);
  EXPECT_TRUE(HasRow(stage.staged + 15 * kRowBytes, 0x41));
  EXPECT_TRUE(HasRow(stage.staged + 31 * kRowBytes, 0x42));
  page[0] -= 77;
  ExpectRuns(&DeviceRuntime::UnpackPages, stage);
  ExpectHas(last_ - 77 * 16, 0x41);
}

}  // namespace
}  // namespace blockmgr
