// A TablesState made by hand, for the checks that read one.
#ifndef TESTS_ENGINE_TABLES_TABLES_STATE_FIXTURE_H_
#define TESTS_ENGINE_TABLES_TABLES_STATE_FIXTURE_H_

#include <cstdint>

#include <gtest/gtest.h>

#include "engine/tables/tables_state.h"
#include "tests/engine/tables/tables_fixture.h"
#include "tests/engine/tables/tables_windows_fixture.h"

namespace blockmgr {

// kTestSlot has computed 40 of its 41 tokens: on pages 1 to 3 in group 0, and
// 11 to 13 in the group with a window of 20. There are five host
// blocks.
class TablesStateTest : public ::testing::Test {
 protected:
  TablesStateTest() : state_(Windowed(0, {20}), 8, 5) {
    state_.rows.resize(4);
    SequenceTable& row = state_.row(kTestSlot);
    row.in_use = true;
    row.num_computed = 40;
    row.tokens.assign(41, 5);
    row.groups.resize(2);
    row.groups[0].blocks = Blocks(1, 3);
    row.groups[1].blocks = Blocks(11, 3);
  }

  static TableRegion Region(int32_t cut, int32_t length, int32_t block) {
    return {.cut = cut,
            .blocks = Blocks(block, 1),
            .kept = {3, 0, 1, 2},
            .shard_entries = {6},
            .length = length};
  }
  // Replaces the first 32 tokens of a group of kTestSlot by a region on one
  // block.
  void Evict(int32_t group, int32_t block) {
    GroupTable& table =
        state_.row(kTestSlot).groups[static_cast<size_t>(group)];
    table.blocks.erase(table.blocks.begin(), table.blocks.begin() + 2);
    table.region = Region(32, 40, block);
  }

  TablesState state_;
};

}  // namespace blockmgr

#endif  // TESTS_ENGINE_TABLES_TABLES_STATE_FIXTURE_H_
