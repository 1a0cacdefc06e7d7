// What moves rows: append, compaction, moves, block copies, read-back, the
// arena. And selection.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "blockmgr/base/model_layout.h"
#include "blockmgr/base/moves.h"
#include "blockmgr/compaction.h"
#include "blockmgr/eviction/policy.h"
#include "blockmgr/eviction/select.h"
#include "blockmgr/ragged_region.h"
#include "kernels/backend.h"
#include "kernels/cpu/kv_arena.h"
#include "tests/kernels/kernel_cases.h"

namespace blockmgr {
namespace {

using testing::HasSubstr;

ModelLayout SmallLayout(DType dtype) {
  return {.num_layers = 2,
          .num_heads = 3,
          .num_q_heads = 6,
          .head_dim = 24,
          .page_size = 4,
          .dtype = dtype,
          .num_blocks = 9};
}

class CpuBackendTest : public testing::TestWithParam<DType> {};

TEST_P(CpuBackendTest, AppendedRowsReadBack) {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    PoolModel model(RandomLayout(rng, GetParam(), 7));
    model.FillAll(rng);
    EXPECT_TRUE(model.Matches(*model.MakeBackend()));
  }
}

TEST_P(CpuBackendTest, AppendRoundsToTheStorageType) {
  const ModelLayout layout = SmallLayout(GetParam());
  auto backend = CreateCpuBackend(layout);
  ASSERT_TRUE(backend.ok()) << backend.status();
  Rng rng(3);
  const int64_t row_floats = int64_t{layout.num_heads} * layout.head_dim;
  const std::vector<float> keys = RandomFloats(rng, row_floats);
  const std::vector<float> values = RandomFloats(rng, row_floats);
  const std::vector<int64_t> slot_mapping = {5 * layout.page_size + 3};
  (*backend)->Append({.layer = 1,
                      .slot_mapping = slot_mapping,
                      .keys = keys.data(),
                      .values = values.data()});
  std::vector<float> row(int64_t{2} * layout.head_dim);
  for (int32_t head = 0; head < layout.num_heads; ++head) {
    (*backend)->ReadSlot(layout.slot(layout.page_id(1, BlockId{5}, head), 3),
                         row);
    for (int32_t i = 0; i < layout.head_dim; ++i) {
      EXPECT_EQ(row[i], Stored(keys[head * layout.head_dim + i], GetParam()));
      EXPECT_EQ(row[layout.head_dim + i],
                Stored(values[head * layout.head_dim + i], GetParam()));
    }
  }
}

TEST_P(CpuBackendTest, AppendSkipsPaddingAndTouchesNothingElse) {
  const ModelLayout layout = SmallLayout(GetParam());
  Rng rng(4);
  PoolModel model(layout);
  model.FillAll(rng);
  const auto backend = model.MakeBackend();
  const std::vector<int64_t> slot_mapping = {-1, int64_t{2} * layout.page_size,
                                             -1, 35};
  const int64_t row_floats = int64_t{layout.num_heads} * layout.head_dim;
  const std::vector<float> keys = RandomFloats(rng, 4 * row_floats);
  const std::vector<float> values = RandomFloats(rng, 4 * row_floats);
  backend->Append({.layer = 0,
                   .slot_mapping = slot_mapping,
                   .keys = keys.data(),
                   .values = values.data()});
  for (const int32_t token : {1, 3}) {
    const int64_t block_slot = slot_mapping[token];
    for (int32_t head = 0; head < layout.num_heads; ++head) {
      const SlotIndex slot = layout.slot(
          layout.page_id(
              0, BlockId{static_cast<int32_t>(block_slot / layout.page_size)},
              head),
          static_cast<int32_t>(block_slot % layout.page_size));
      for (int32_t i = 0; i < layout.head_dim; ++i) {
        const int64_t from =
            token * row_floats + int64_t{head} * layout.head_dim + i;
        model.key(slot)[i] = Stored(keys[from], GetParam());
        model.value(slot)[i] = Stored(values[from], GetParam());
      }
    }
  }
  EXPECT_TRUE(model.Matches(*backend));
}

// Plays moves on the model as one assignment per slot, all reads first.
void MoveModel(std::span<const SlotMove> moves, PoolModel* model) {
  const PoolModel before = *model;
  for (const SlotMove& move : moves) {
    model->CopyRow(before, move.source, move.destination);
  }
}

TEST_P(CpuBackendTest, MovesMatchTheModel) {
  for (uint64_t seed = 20; seed < 40; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    const ModelLayout layout = RandomLayout(rng, GetParam(), 6);
    PoolModel model(layout);
    model.FillAll(rng);
    const auto backend = model.MakeBackend();
    const std::vector<SlotIndex> slots = ShuffledSlots(layout, rng);
    // In place, each group has slots of its own, and its moves are a chain or a
    // cycle of them. Else no slot is both a source and a destination.
    CompactionMoves moves;
    moves.in_place = seed % 2 == 0;
    for (std::size_t begin = 0; begin + 2 <= slots.size();) {
      const auto drawn = static_cast<std::size_t>(RandomInt(rng, 1, 40));
      const std::size_t size = std::min(slots.size() - begin, 2 * drawn);
      const std::size_t step = moves.in_place ? 1 : 2;
      for (std::size_t i = begin; i + 1 < begin + size; i += step) {
        moves.moves.push_back({slots[i], slots[i + 1]});
      }
      if (moves.in_place && RandomChance(rng, 0.5)) {
        moves.moves.push_back({slots[begin + size - 1], slots[begin]});
      }
      begin += size;
      moves.group_ends.push_back(std::ssize(moves.moves));
    }
    int64_t begin = 0;
    for (const int64_t end : moves.group_ends) {
      MoveModel(std::span(moves.moves).subspan(begin, end - begin), &model);
      begin = end;
    }
    backend->Move(moves);
    EXPECT_TRUE(model.Matches(*backend));
  }
}

// Half of the tail's blocks stay, so that heads are compacted in place.
TEST_P(CpuBackendTest, CompactedRowsAreWhereTheirPositionsSay) {
  const ModelLayout layout = SmallLayout(GetParam());
  const std::vector<BlockId> tail = {BlockId{1}, BlockId{2}, BlockId{3},
                                     BlockId{4}};
  const std::vector<BlockId> destinations = {BlockId{2}, BlockId{4}, BlockId{6},
                                             BlockId{7}, BlockId{8}};
  const CacheView view{.tail_blocks = tail};
  const int32_t cut = 4 * layout.page_size;
  const EntryIndex entries = IndexEntries(layout, view, {}, cut);
  for (uint64_t seed = 50; seed < 70; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    PoolModel model(layout);
    model.FillAll(rng);
    const auto backend = model.MakeBackend();
    KeepSets keep = {.offsets = {0}, .ranks = {}};
    std::vector<int32_t> kept;
    for (int32_t i = 0; i < layout.pages_per_block(); ++i) {
      const double ratio = RandomFraction(rng);
      for (int32_t rank = 0; rank < cut; ++rank) {
        if (RandomChance(rng, ratio)) keep.ranks.push_back(rank);
      }
      kept.push_back(
          static_cast<int32_t>(std::ssize(keep.ranks) - keep.offsets.back()));
      keep.offsets.push_back(std::ssize(keep.ranks));
    }
    const RaggedRegion next =
        RaggedRegion::LayOut(layout, view, destinations, kept, cut);
    const std::vector<int32_t> positions =
        backend->Compact(CompactionInto(next, entries, keep));
    ASSERT_EQ(positions.size(), keep.ranks.size());
    const PoolModel before = model;
    for (int32_t i = 0; i < layout.pages_per_block(); ++i) {
      const std::span<const int32_t> of_head =
          std::span(positions).subspan(keep.offsets[i], kept[i]);
      for (int32_t j = 0; j < kept[i]; ++j) {
        const SlotIndex from = entries.slots[entries.offsets[i] + of_head[j]];
        const SlotIndex to = layout.slot(next.pages(i)[j / layout.page_size],
                                         j % layout.page_size);
        model.CopyRow(before, from, to);
      }
    }
    EXPECT_EQ(positions, keep.ranks);
    EXPECT_TRUE(model.Matches(*backend));
  }
}

TEST_P(CpuBackendTest, BlockCopiesTakeEveryLayerAndHead) {
  const ModelLayout layout = SmallLayout(GetParam());
  Rng rng(5);
  PoolModel model(layout);
  model.FillAll(rng);
  const auto backend = model.MakeBackend();
  const std::vector<BlockCopy> copies = {{BlockId{3}, BlockId{8}},
                                         {BlockId{3}, BlockId{1}},
                                         {BlockId{5}, BlockId{2}}};
  for (const BlockCopy& copy : copies) {
    std::vector<SlotMove> moves;
    for (int32_t layer = 0; layer < layout.num_layers; ++layer) {
      for (int32_t head = 0; head < layout.num_heads; ++head) {
        for (int32_t i = 0; i < layout.page_size; ++i) {
          moves.push_back(
              {layout.slot(layout.page_id(layer, copy.source, head), i),
               layout.slot(layout.page_id(layer, copy.destination, head), i)});
        }
      }
    }
    MoveModel(moves, &model);
  }
  backend->CopyBlocks(copies);
  EXPECT_TRUE(model.Matches(*backend));
}

TEST_P(CpuBackendTest, CopiesBlocksToHostMemoryAndBack) {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Rng rng(seed);
    PoolModel model(SmallLayout(GetParam()));
    model.FillAll(rng);
    const auto backend = model.MakeBackend();
    EXPECT_EQ(CheckHostCopies(backend.get(), &model, rng), "");
    EXPECT_TRUE(model.Matches(*backend));
  }
}

TEST_P(CpuBackendTest, PoisonMakesEverySlotNaN) {
  const ModelLayout layout = SmallLayout(GetParam());
  auto backend = CreateCpuBackend(layout);
  ASSERT_TRUE(backend.ok()) << backend.status();
  (*backend)->Poison();
  std::vector<float> row(int64_t{2} * layout.head_dim);
  for (SlotIndex slot = 0; slot < layout.num_pages() * layout.page_size;
       ++slot) {
    (*backend)->ReadSlot(slot, row);
    EXPECT_TRUE(std::ranges::all_of(row, [](float x) { return std::isnan(x); }))
        << slot;
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, CpuBackendTest, testing::ValuesIn(kEveryDType),
                         DTypeParamName);

TEST(CpuBackendCreateTest, ReportsTheLayoutItWasMadeFor) {
  const ModelLayout layout = SmallLayout(DType::kBFloat16);
  auto backend = CreateCpuBackend(layout);
  ASSERT_TRUE(backend.ok()) << backend.status();
  EXPECT_EQ((*backend)->layout(), layout);
}

TEST(CpuBackendCreateTest, RejectsInvalidLayout) {
  ModelLayout layout = SmallLayout(DType::kBFloat16);
  layout.head_dim = 7;
  const auto backend = CreateCpuBackend(layout);
  EXPECT_EQ(backend.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(backend.status().ToString(), HasSubstr("head_dim"));
}

TEST(CpuBackendCreateTest, RejectsLayoutsWhoseBytesWouldOverflow) {
  ModelLayout layout = SmallLayout(DType::kFloat32);
  ASSERT_TRUE(layout.Validate().ok());
  layout.head_dim = 1 << 30;
  layout.page_size = 1 << 30;
  const auto backend = CreateCpuBackend(layout);
  EXPECT_EQ(backend.status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(KvArenaTest, PagesAreDenseAlignedAndInIdOrder) {
  const ModelLayout layout = SmallLayout(DType::kBFloat16);
  auto arena = KvArena::Create(layout);
  ASSERT_TRUE(arena.ok()) << arena.status();
  std::byte* base = arena->bytes().data();
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(base) % 4096, 0u);
  EXPECT_EQ(std::ssize(arena->bytes()), layout.pool_bytes());
  for (int32_t page = 0; page < layout.num_pages(); ++page) {
    EXPECT_EQ(arena->page(PageId{page}) - base, page * layout.page_bytes());
    for (int32_t i = 0; i < layout.page_size; ++i) {
      EXPECT_EQ(arena->key_row(layout.slot(PageId{page}, i)) - base,
                page * layout.page_bytes() + i * layout.row_bytes());
    }
  }
  const auto block = arena->layer_block(1, BlockId{4});
  EXPECT_EQ(block.data(), arena->page(layout.page_id(1, BlockId{4}, 0)));
  EXPECT_EQ(std::ssize(block), layout.num_heads * layout.page_bytes());
}

TEST(KvArenaTest, MemoryOfTheCallerIsReadAndWrittenInPlace) {
  const ModelLayout layout = SmallLayout(DType::kFloat32);
  std::vector<float> pool(
      static_cast<size_t>(layout.pool_bytes()) / sizeof(float), -1.0f);
  auto backend =
      CreateCpuBackendOn(layout, std::as_writable_bytes(std::span(pool)));
  ASSERT_TRUE(backend.ok()) << backend.status();
  const std::vector<float> keys(size_t{3} * 24, 5.0f);
  const std::vector<float> values(size_t{3} * 24, 7.0f);
  const std::vector<int64_t> slots = {8 * 4 + 2};
  (*backend)->Append({.layer = 1,
                      .slot_mapping = slots,
                      .keys = keys.data(),
                      .values = values.data()});
  // [layer][block][head][K, V][token][dim], written out once more.
  std::vector<float> expected(pool.size(), -1.0f);
  for (size_t head = 0; head < 3; ++head) {
    const size_t page = (size_t{9} + 8) * 3 + head;
    for (size_t i = 0; i < 24; ++i) {
      expected[((page * 2 + 0) * 4 + 2) * 24 + i] = 5.0f;
      expected[((page * 2 + 1) * 4 + 2) * 24 + i] = 7.0f;
    }
  }
  EXPECT_EQ(pool, expected);
  pool[(((size_t{9} + 8) * 3 + 2) * 2 * 4 + 2) * 24] = 9.0f;
  std::vector<float> row(size_t{2} * 24);
  (*backend)->ReadSlot(layout.slot(layout.page_id(1, BlockId{8}, 2), 2), row);
  EXPECT_EQ(row[0], 9.0f);
}

TEST(KvArenaTest, MemoryOfAnotherSizeIsRefused) {
  const ModelLayout layout = SmallLayout(DType::kFloat32);
  std::vector<std::byte> pool(static_cast<size_t>(layout.pool_bytes()) + 1);
  EXPECT_THAT(CreateCpuBackendOn(layout, pool).status().message(),
              HasSubstr("pool: expected"));
  ModelLayout shards = layout;
  shards.num_shards = 3;
  pool.pop_back();
  EXPECT_THAT(CreateCpuBackendOn(shards, pool).status().message(),
              HasSubstr("num_shards: expected the layout of one shard"));
}

}  // namespace
}  // namespace blockmgr
