#include "blockmgr/base/layer_groups.h"

#include <cstdint>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/testing/is_invalid.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

LayerGroups Group(const std::vector<int32_t>& windows) {
  const auto groups = GroupLayers(windows);
  EXPECT_OK(groups.status());
  return *groups;
}

TEST(LayerGroupsTest, LayersThatAttendToAllAreOneGroup) {
  const LayerGroups groups = Group({0, 0, 0});
  EXPECT_EQ(groups.num_layers, 3);
  EXPECT_EQ(groups.window, 0);
  EXPECT_THAT(groups.group_windows, IsEmpty());
  EXPECT_THAT(groups.layers,
              ElementsAre(LayerPlace{0, 0, 0}, LayerPlace{0, 1, 0},
                          LayerPlace{0, 2, 0}));
}

TEST(LayerGroupsTest, LayersOfOneWindowAreOneGroup) {
  const LayerGroups groups = Group({64, 64});
  EXPECT_EQ(groups.num_layers, 2);
  EXPECT_EQ(groups.window, 64);
  EXPECT_THAT(groups.group_windows, IsEmpty());
  EXPECT_THAT(groups.layers,
              ElementsAre(LayerPlace{0, 0, 64}, LayerPlace{0, 1, 64}));
}

TEST(LayerGroupsTest, AModelOfWindowsOnlyKeepsTheLongest) {
  const LayerGroups groups = Group({64, 128, 32});
  EXPECT_EQ(groups.num_layers, 3);
  EXPECT_EQ(groups.window, 128);
  EXPECT_THAT(groups.group_windows, IsEmpty());
  EXPECT_THAT(groups.layers,
              ElementsAre(LayerPlace{0, 0, 64}, LayerPlace{0, 1, 128},
                          LayerPlace{0, 2, 32}));
}

// Gemma-3 in small: five layers with a window to each without.
TEST(LayerGroupsTest, SlidingLayersFillGroupsOfAsManySlots) {
  const LayerGroups groups =
      Group({32, 32, 32, 32, 32, 0, 32, 32, 32, 32, 32, 0, 32});
  EXPECT_EQ(groups.num_layers, 2);
  EXPECT_EQ(groups.window, 0);
  EXPECT_THAT(groups.group_windows, ElementsAre(32, 32, 32, 32, 32, 32));
  EXPECT_THAT(groups.layers,
              ElementsAre(LayerPlace{1, 0, 32}, LayerPlace{1, 1, 32},
                          LayerPlace{2, 0, 32}, LayerPlace{2, 1, 32},
                          LayerPlace{3, 0, 32}, LayerPlace{0, 0, 0},
                          LayerPlace{3, 1, 32}, LayerPlace{4, 0, 32},
                          LayerPlace{4, 1, 32}, LayerPlace{5, 0, 32},
                          LayerPlace{5, 1, 32}, LayerPlace{0, 1, 0},
                          LayerPlace{6, 0, 32}));
  EXPECT_EQ(groups.LayerAt(0), 5);
  EXPECT_EQ(groups.LayerAt(1), 11);
  EXPECT_EQ(groups.LayerAt(1, 3), 6);
  EXPECT_EQ(groups.LayerAt(0, 6), 12);
  EXPECT_EQ(groups.LayerAt(1, 6), -1) << "padding";
}

TEST(LayerGroupsTest, EachWindowHasGroupsOfItsOwn) {
  const LayerGroups groups = Group({64, 0, 16, 64, 0, 16, 64});
  EXPECT_EQ(groups.num_layers, 2);
  EXPECT_THAT(groups.group_windows, ElementsAre(64, 16, 64));
  EXPECT_THAT(groups.layers,
              ElementsAre(LayerPlace{1, 0, 64}, LayerPlace{0, 0, 0},
                          LayerPlace{2, 0, 16}, LayerPlace{1, 1, 64},
                          LayerPlace{0, 1, 0}, LayerPlace{2, 1, 16},
                          LayerPlace{3, 0, 64}));
}

TEST(LayerGroupsTest, EveryLayerHasASlotOfItsOwnInAGroupThatKeepsItsWindow) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    std::vector<int32_t> windows(1 + random() % 40);
    const uint64_t num_kinds = 1 + random() % 4;
    for (int32_t& window : windows) {
      window = static_cast<int32_t>(16 * (random() % num_kinds));
    }
    const LayerGroups groups = Group(windows);
    ASSERT_EQ(groups.layers.size(), windows.size());
    std::set<std::pair<int32_t, int32_t>> taken;
    for (size_t i = 0; i < windows.size(); ++i) {
      const LayerPlace& place = groups.layers[i];
      EXPECT_EQ(place.window, windows[i]);
      EXPECT_LT(place.slot, groups.num_layers);
      EXPECT_TRUE(taken.emplace(place.group, place.slot).second);
      if (place.group > 0) {
        EXPECT_EQ(groups.group_windows.at(static_cast<size_t>(place.group) - 1),
                  windows[i]);
      } else if (groups.window > 0) {
        EXPECT_LE(windows[i], groups.window);
      } else {
        EXPECT_EQ(windows[i], 0);
      }
    }
    for (int32_t slot = 0; slot < groups.num_layers; ++slot) {
      EXPECT_TRUE(taken.contains({0, slot}));
    }
  }
}

TEST(LayerGroupsTest, RefusesNoLayersAndNegativeWindows) {
  EXPECT_THAT(GroupLayers({}).status(), IsInvalid("at least one layer"));
  const std::vector<int32_t> windows = {0, -1};
  EXPECT_THAT(GroupLayers(windows).status(),
              IsInvalid("windows[1]: expected 0"));
}

}  // namespace
}  // namespace blockmgr
