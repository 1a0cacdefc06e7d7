// Bugs planted in copies of rows, lists of entries, selections and plans of
// moves: the emulator or the comparison with the CPU notices each. A check that
// lets one pass would let a real one pass too.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/cuda/planted_bugs.h"
#include "tests/kernels/cuda/index_checks.h"
#include "tests/kernels/cuda/move_checks.h"
#include "tests/kernels/cuda/row_checks.h"
#include "tests/kernels/cuda/select_checks.h"

namespace blockmgr {
namespace {

struct PlantedCase {
  std::string name;
  PlantedBug bug;
  std::function<std::string(uint64_t)> check;
  uint64_t num_seeds;
};

std::string CheckAnySelect(uint64_t seed) {
  return CheckSelect(seed, seed % 2 == 1, false);
}

std::string CheckFloors(uint64_t seed) {
  return CheckSelect(seed, seed % 2 == 1, true);
}

const std::vector<PlantedCase>& Cases() {
  static const auto& cases = *new std::vector<PlantedCase>{
      {"MoveDropsLastRow", PlantedBug::kMoveDropsLastRow, CheckMoves, 16},
      {"MoveSkipsValueRow", PlantedBug::kMoveSkipsValueRow, CheckCopyBlocks,
       16},
      {"MoveLosesPosition", PlantedBug::kMoveLosesPosition, CheckGather, 16},
      {"MoveIgnoresDeviceCount", PlantedBug::kMoveIgnoresDeviceCount,
       CheckGather, 16},
      {"MoveRepeatsPairs", PlantedBug::kMoveRepeatsPairs, CheckSwap, 16},
      {"StageSwapsStrides", PlantedBug::kStageSwapsStrides, CheckSwap, 16},
      {"AppendTruncates", PlantedBug::kAppendTruncates, CheckAppend, 16},
      {"AppendHidesError", PlantedBug::kAppendHidesError, CheckAppend, 16},
      {"SelectOrdersNanBySign", PlantedBug::kSelectOrdersNanBySign,
       CheckAnySelect, 40},
      {"SelectSplitsZeros", PlantedBug::kSelectSplitsZeros, CheckAnySelect, 40},
      {"SelectForgetsPrefix", PlantedBug::kSelectForgetsPrefix, CheckAnySelect,
       40},
      {"SelectNoBarrierAfterClear", PlantedBug::kSelectNoBarrierAfterClear,
       CheckAnySelect, 40},
      {"SelectNoBarrierBeforePick", PlantedBug::kSelectNoBarrierBeforePick,
       CheckAnySelect, 40},
      {"SelectPicksEarly", PlantedBug::kSelectPicksEarly, CheckAnySelect, 40},
      {"SelectIgnoresEarlierChunks", PlantedBug::kSelectIgnoresEarlierChunks,
       CheckAnySelect, 40},
      {"SelectIgnoresEarlierWarps", PlantedBug::kSelectIgnoresEarlierWarps,
       CheckAnySelect, 40},
      {"SelectTiesToHigher", PlantedBug::kSelectTiesToHigher, CheckAnySelect,
       40},
      {"SelectFractionTiesToHigher", PlantedBug::kSelectFractionTiesToHigher,
       CheckAnySelect, 40},
      {"SelectForgetsProtection", PlantedBug::kSelectForgetsProtection,
       CheckAnySelect, 40},
      {"SelectForgetsCut", PlantedBug::kSelectForgetsCut, CheckAnySelect, 40},
      {"SelectFloorCountsTwice", PlantedBug::kSelectFloorCountsTwice,
       CheckFloors, 40},
      {"MovesIgnoreHeldPages", PlantedBug::kMovesIgnoreHeldPages, CheckHistory,
       12},
      {"MovesOffByOnePage", PlantedBug::kMovesOffByOnePage, CheckHistory, 12},
      {"MovesNoBarrier", PlantedBug::kMovesNoBarrier, CheckLong, 12},
      {"MovesLosePosition", PlantedBug::kMovesLosePosition, CheckHistory, 12},
      {"IndexForgetsHead", PlantedBug::kIndexForgetsHead, CheckIndex, 16},
      {"IndexForgetsEarlierWords", PlantedBug::kIndexForgetsEarlierWords,
       CheckIndex, 16},
      {"IndexNoBarrierAfterMarks", PlantedBug::kIndexNoBarrierAfterMarks,
       CheckIndex, 16},
      {"IndexNoBarrierAfterWords", PlantedBug::kIndexNoBarrierAfterWords,
       CheckIndex, 16},
  };
  return cases;
}

class PlantedBugsTest : public testing::TestWithParam<PlantedCase> {
 protected:
  void TearDown() override { planted_bug = PlantedBug::kNone; }
};

TEST_P(PlantedBugsTest, IsCaught) {
  planted_bug = GetParam().bug;
  std::string caught;
  for (uint64_t seed = 0; seed < GetParam().num_seeds && caught.empty();
       ++seed) {
    caught = GetParam().check(seed);
  }
  EXPECT_NE(caught, "");
  RecordProperty("caught", caught);
}

INSTANTIATE_TEST_SUITE_P(All, PlantedBugsTest, testing::ValuesIn(Cases()),
                         [](const testing::TestParamInfo<PlantedCase>& param) {
                           return param.param.name;
                         });

}  // namespace
}  // namespace blockmgr
