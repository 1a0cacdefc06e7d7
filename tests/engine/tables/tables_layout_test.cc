#include <algorithm>
#include <cstdint>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/tables/tables.h"
#include "tests/testing/layout_vectors.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

constexpr SequenceSlot kLayoutSlot{0};

BlockId UnusedBlock(const LayoutVector& vector) {
  BlockId block{1};
  while (std::ranges::count(vector.tail_blocks, block) > 0 ||
         std::ranges::count(vector.destinations, block) > 0) {
    block = BlockId{Index(block) + 1};
  }
  return block;
}

// A step that computes one token more than the eviction covers, in the tail
// blocks of this eviction and the first one of the next.
StepPlan PlanOf(const LayoutCase& test, size_t index) {
  const LayoutVector& vector = test.evictions[index];
  const bool is_first = index == 0;
  const bool is_last = index + 1 == test.evictions.size();
  const int32_t length = test.evictions.back().cut + 2;
  StepPlan plan;
  plan.id = StepId{index + 1};
  if (is_first) {
    plan.starts = {
        {.slot = kLayoutSlot, .request = RequestId{7}, .num_tokens = length}};
    plan.start_tokens.assign(static_cast<size_t>(length), 5);
  }
  const int32_t begin = is_first ? 0 : test.evictions[index - 1].cut + 1;
  plan.slots = {kLayoutSlot};
  plan.positions = {begin};
  plan.num_tokens = {vector.cut + 1 - begin};
  plan.samples = {0};
  plan.blocks = {vector.tail_blocks.begin() + (is_first ? 0 : 1),
                 vector.tail_blocks.end()};
  plan.blocks.push_back(is_last ? UnusedBlock(vector)
                                : test.evictions[index + 1].tail_blocks[0]);
  plan.block_offsets = {0, std::ssize(plan.blocks)};
  plan.destinations = vector.destinations;
  EvictionOrder& order = plan.evictions.emplace_back();
  order.slot = kLayoutSlot;
  order.cut = vector.cut;
  order.length = vector.cut + 1;
  order.num_destinations = static_cast<int32_t>(vector.destinations.size());
  order.page_total =
      int64_t{order.num_destinations} * test.layout.shard_pages_per_block();
  order.policy.scorer.kind = ScorerKind::kStreaming;
  return plan;
}

TEST(EngineTablesLayoutTest, DerivesTheListsOfTheVectors) {
  int32_t num_evictions = 0;
  for (LayoutCase& test : ReadLayoutVectors()) {
    SCOPED_TRACE(test.name);
    EngineTables tables(test.layout, 1);
    for (size_t i = 0; i < test.evictions.size(); ++i) {
      const LayoutVector& vector = test.evictions[i];
      const StepPlan plan = PlanOf(test, i);
      ASSERT_OK(tables.Apply(plan));
      const EvictionOrder& order = plan.evictions[0];
      ASSERT_OK(tables.CheckOrder(plan, order));
      ASSERT_OK(tables.CheckCounts(order, vector.kept));
      tables.Commit(plan, order, vector.kept);
      EXPECT_EQ(tables.ChecksumOf(order), vector.layout_checksum);
      EXPECT_THAT(tables.row(kLayoutSlot).groups[0].region.layout->blocks(),
                  testing::ElementsAreArray(vector.blocks));
      ++num_evictions;
    }
  }
  EXPECT_EQ(num_evictions, 108);
}

}  // namespace
}  // namespace blockmgr
