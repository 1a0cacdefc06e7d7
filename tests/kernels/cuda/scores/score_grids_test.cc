// How many blocks kernels of scores and of selections are launched with.

#include <algorithm>
#include <cstdint>

#include <gtest/gtest.h>

#include "kernels/cuda/launch_shapes.cuh"
#include "kernels/cuda/scores/entry_lists.h"
#include "kernels/cuda/selection/select.h"
#include "tests/kernels/cuda/emulated_runtime.h"
#include "tests/kernels/cuda/scores/entry_cases.h"
#include "tests/kernels/cuda/test_device.h"

namespace blockmgr {
namespace {

// One huge head among lists of which every other one has one entry.
struct ManyLists {
  ManyLists(int32_t num_lists, int32_t huge) {
    for (int32_t list = 0; list < num_lists; ++list) {
      offsets.push_back(offsets.back() + (list == 1001 ? huge : list % 2));
    }
    row_splits = SharedSplits(offsets, kRowSplitEntries);
    window_splits = SharedSplits(offsets, kSplitEntries);
  }
  EntryLists Lists() const {
    return {.num_sequences = static_cast<int32_t>(offsets.size() - 1) / 8,
            .num_heads = 8,
            .offsets = offsets.data(),
            .row_splits = {row_splits.data(), row_splits.back()},
            .window_splits = {window_splits.data(), window_splits.back()}};
  }

  SharedVector<int64_t> offsets = {0};
  SharedVector<int32_t> row_splits;
  SharedVector<int32_t> window_splits;
};

class ScoreGridsTest : public testing::Test {
 protected:
  void ExpectAtMost(int64_t num_blocks) {
    EXPECT_GT(most_blocks_, 0);
    EXPECT_LE(most_blocks_, num_blocks);
    EXPECT_LE(most_yz_, 65535);
    most_blocks_ = 0;
  }

  // More lists than a grid has room for in y or z.
  static constexpr int32_t kLists = 65'600;
  static constexpr int32_t kHuge = 1 << 20;
  const ManyLists lists_{kLists, kHuge};
  int64_t most_blocks_ = 0;  // of a kernel
  int64_t most_yz_ = 0;
  EmulatedRuntime device_{[this](const void*, const LaunchSize& size) {
    most_blocks_ = std::max(most_blocks_, int64_t{size.x} * size.y * size.z);
    most_yz_ = std::max<int64_t>({most_yz_, size.y, size.z});
  }};
};

TEST_F(ScoreGridsTest, AreAsLargeAsTheListsTogether) {
  constexpr int32_t kRowBlocks = kHuge / kRowSplitEntries + kLists / 2;
  const RowShape shape = {};
  device_.PoolWindow({.entries = lists_.Lists()});
  ExpectAtMost(kRowBlocks);
  device_.FinishH2o({.entries = lists_.Lists()});
  ExpectAtMost(kRowBlocks);
  ValueNormParams norms;
  norms.entries = lists_.Lists();
  device_.ValueNorms(norms, shape);
  ExpectAtMost(kRowBlocks);
  // Or as there are lists, query heads, and pieces of a row.
  KeyScoreParams keys;
  keys.entries = lists_.Lists();
  device_.KeyScores(keys, shape);
  ExpectAtMost(kLists);
  keys.anchor = KeyAnchor::kMedian;
  device_.KeyScores(keys, shape);
  ExpectAtMost(16 * kLists);
  ExpectedParams expected;
  expected.entries = lists_.Lists();
  expected.group_size = 4;
  device_.ExpectedScores(expected, shape);
  ExpectAtMost(4 * kLists);
  WindowParams window;
  window.entries = lists_.Lists();
  window.window = 32;
  window.group_size = 4;
  device_.WindowStats(window, shape);
  ExpectAtMost(kLists);
  device_.WindowColumns(window, shape);
  ExpectAtMost(kHuge / kSplitEntries + kLists / 2);
  TovaParams tova;
  tova.entries = lists_.Lists();
  tova.tiles.count = 5000;
  device_.Tova(tova);
  ExpectAtMost(5000);
}

TEST_F(ScoreGridsTest, SelectionsAreAsLargeAsTheHeadsTogether) {
  SelectProblem select;
  const SharedVector<int32_t> chunks =
      SharedSplits(lists_.offsets, select.chunk_entries, 1);
  // The huge one has its chunks, every other head one.
  ASSERT_EQ(chunks.back(), kHuge / select.chunk_entries + kLists - 1);
  select.num_heads = kLists;
  select.num_scopes = kLists / 8;
  select.chunks = {chunks.data(), chunks.back()};
  select.critical = true;
  select.divide_from = kHuge;
  for (const auto budget : {SelectBudget::kEqual, SelectBudget::kBlend,
                            SelectBudget::kFloor, SelectBudget::kGiven}) {
    select.budget = budget;
    device_.Select(select);
    ExpectAtMost(chunks.back());
  }
}

// What an eviction reads is made of as many lists.
TEST_F(ScoreGridsTest, EntriesOfAsManyListsAreIndexed) {
  const int32_t region_length = 1;  // only looked at for being there
  EntryIndexParams index;
  index.lists.num_sequences = kLists / 8;
  index.lists.num_heads = 8;
  index.lists.region_lengths = &region_length;
  device_.IndexEntries(index, 2 * kIndexTailEntries);
  ExpectAtMost(2 * kLists);
  const SharedVector<int32_t> chunks =
      SharedSplits(lists_.offsets, kIndexChunkEntries, 0);
  index.chunks = {chunks.data(), chunks.back()};
  device_.IndexEntries(index, 0);
  ExpectAtMost(std::max(kLists, chunks.back()));
}

TEST_F(ScoreGridsTest, BlocksFindTheirLists) {
  const ManyLists lists(1600, 20 * kRowSplitEntries + 1);
  const int64_t num_entries = lists.offsets.back();
  SharedVector<int32_t> positions;
  for (int32_t i = 0; i < num_entries; ++i) positions.push_back(i % 7);
  EntryLists entries = lists.Lists();
  entries.positions = positions.data();
  // By count: a sequence's number is its queries'.
  SharedVector<int32_t> num_queries;
  for (int32_t i = 0; i < entries.num_sequences; ++i) {
    num_queries.push_back(i + 1);
  }
  const SharedVector<int32_t> lengths(num_queries.size(), 1000);
  SharedVector<float> scores(num_entries, 6.0f);
  const H2oScoreParams params = {.entries = entries,
                                 .lengths = lengths.data(),
                                 .num_queries = num_queries.data(),
                                 .group_size = 3,
                                 .scores = scores.data()};
  ASSERT_EQ(RunKernel({}, &DeviceRuntime::FinishH2o, params).error, "");
  for (int32_t list = 0; list < 1600; ++list) {
    const int32_t count = list / 8 + 1;
    for (int64_t i = lists.offsets[list]; i < lists.offsets[list + 1]; ++i) {
      ASSERT_EQ(scores[i], 2.0f / static_cast<float>(count)) << list;
    }
  }
}

}  // namespace
}  // namespace blockmgr
