// Bugs planted in copies of rows, lists of entries, selections and plans of
// moves: the emulator or the comparison with the CPU notices each. A check that
// lets one pass would let a real one pass too.

#include <cstdint>
#include <string>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

#include "kernels/cuda/planted_bugs.h"
#include "tests/kernels/cuda/index_checks.h"
#include "tests/kernels/cuda/move_checks.h"
#include "tests/kernels/cuda/row_checks.h"
#include "tests/kernels/cuda/select_checks.h"

namespace blockmgr {
namespace {

// A check, and the seeds that bugs are looked for with.
struct Probe {
  const char* name;
  std::string (*check)(uint64_t);
  uint64_t num_seeds;

  // The first complaint, or "".
  std::string Find() const {
    for (uint64_t seed = 0; seed < num_seeds; ++seed) {
      const std::string found = check(seed);
      if (!found.empty()) return absl::StrCat("seed ", seed, ": ", found);
    }
    return "";
  }
};

std::string CheckAnySelect(uint64_t seed) {
  return CheckSelect(seed, seed % 2 == 1, false);
}

std::string CheckFloors(uint64_t seed) {
  return CheckSelect(seed, seed % 2 == 1, true);
}

std::string CheckManyEqualHeads(uint64_t seed) {
  return CheckManyHeads(BudgetKind::kAdaKv, AdaKvMode::kBlend,
                        seed == 0 ? 40 : 304, seed);
}

constexpr Probe kAppend = {"Append", CheckAppend, 16};
constexpr Probe kGather = {"Gather", CheckGather, 16};
constexpr Probe kMoves = {"Moves", CheckMoves, 16};
constexpr Probe kCopyBlocks = {"CopyBlocks", CheckCopyBlocks, 16};
constexpr Probe kSwap = {"Swap", CheckSwap, 16};
constexpr Probe kManyTies = {"ManyTies", CheckManyTies, 1};
constexpr Probe kManyTurns = {"ManyTurns", CheckManyTurns, 12};
constexpr Probe kAnySelect = {"AnySelect", CheckAnySelect, 40};
constexpr Probe kFloors = {"Floors", CheckFloors, 40};
constexpr Probe kManyHeads = {"ManyHeads", CheckManyEqualHeads, 12};
constexpr Probe kHistory = {"History", CheckHistory, 12};
constexpr Probe kLong = {"Long", CheckLong, 3};
constexpr Probe kIndex = {"Index", CheckIndex, 16};

struct PlantedCase {
  const char* name;
  PlantedBug bug;
  Probe probe;
};

const std::vector<PlantedCase>& Cases() {
  static const auto& cases = *new std::vector<PlantedCase>{
      {"MoveDropsLastRow", PlantedBug::kMoveDropsLastRow, kMoves},
      {"MoveSkipsValueRow", PlantedBug::kMoveSkipsValueRow, kCopyBlocks},
      {"MoveLosesPosition", PlantedBug::kMoveLosesPosition, kGather},
      {"MoveIgnoresDeviceCount", PlantedBug::kMoveIgnoresDeviceCount, kGather},
      {"MoveRepeatsPairs", PlantedBug::kMoveRepeatsPairs, kSwap},
      {"StageSwapsStrides", PlantedBug::kStageSwapsStrides, kSwap},
      {"AppendTruncates", PlantedBug::kAppendTruncates, kAppend},
      {"AppendHidesError", PlantedBug::kAppendHidesError, kAppend},
      {"SelectOrdersNanBySign", PlantedBug::kSelectOrdersNanBySign, kAnySelect},
      {"SelectSplitsZeros", PlantedBug::kSelectSplitsZeros, kAnySelect},
      {"SelectForgetsPrefix", PlantedBug::kSelectForgetsPrefix, kAnySelect},
      {"SelectForgetsUncached", PlantedBug::kSelectForgetsUncached, kManyTurns},
      {"SelectNoBarrierAfterClear", PlantedBug::kSelectNoBarrierAfterClear,
       kAnySelect},
      {"SelectNoBarrierAfterFill", PlantedBug::kSelectNoBarrierAfterFill,
       kAnySelect},
      {"SelectNoBarrierBeforePick", PlantedBug::kSelectNoBarrierBeforePick,
       kAnySelect},
      {"SelectPicksEarly", PlantedBug::kSelectPicksEarly, kAnySelect},
      {"SelectNoBarrierAfterPick", PlantedBug::kSelectNoBarrierAfterPick,
       kAnySelect},
      {"SelectNoBarrierAfterCut", PlantedBug::kSelectNoBarrierAfterCut,
       kManyHeads},
      {"SelectNoBarrierAfterSum", PlantedBug::kSelectNoBarrierAfterSum,
       kAnySelect},
      {"SelectForgetsEarlierTies", PlantedBug::kSelectForgetsEarlierTies,
       kManyTies},
      {"SelectTakesTiesEarly", PlantedBug::kSelectTakesTiesEarly, kManyTies},
      {"SelectIgnoresEarlierWarps", PlantedBug::kSelectIgnoresEarlierWarps,
       kAnySelect},
      {"SelectTiesToHigher", PlantedBug::kSelectTiesToHigher, kAnySelect},
      {"SelectFractionTiesToHigher", PlantedBug::kSelectFractionTiesToHigher,
       kAnySelect},
      {"SelectForgetsProtection", PlantedBug::kSelectForgetsProtection,
       kAnySelect},
      {"SelectNoBarrierAfterBegin", PlantedBug::kSelectNoBarrierAfterBegin,
       kAnySelect},
      {"SelectForgetsCut", PlantedBug::kSelectForgetsCut, kAnySelect},
      {"SelectFloorCountsTwice", PlantedBug::kSelectFloorCountsTwice, kFloors},
      {"SelectNoBarrierAfterSearch", PlantedBug::kSelectNoBarrierAfterSearch,
       kAnySelect},
      {"ApportionNoBarrierAfterSum", PlantedBug::kApportionNoBarrierAfterSum,
       kManyHeads},
      {"ApportionNoBarrierAfterClear",
       PlantedBug::kApportionNoBarrierAfterClear, kManyHeads},
      {"ApportionNoBarrierAfterPick", PlantedBug::kApportionNoBarrierAfterPick,
       kManyHeads},
      {"ApportionForgetsTurns", PlantedBug::kApportionForgetsTurns, kManyHeads},
      {"MovesOffByOnePage", PlantedBug::kMovesOffByOnePage, kHistory},
      {"PrefixNoBarrier", PlantedBug::kPrefixNoBarrier, kAnySelect},
      {"MovesNoBarrierAfterWords", PlantedBug::kMovesNoBarrierAfterWords,
       kLong},
      {"MovesForgetEarlierTurns", PlantedBug::kMovesForgetEarlierTurns, kLong},
      {"MovesLosePosition", PlantedBug::kMovesLosePosition, kHistory},
      {"UnstageIgnoresSource", PlantedBug::kUnstageIgnoresSource, kMoves},
      {"IndexForgetsHead", PlantedBug::kIndexForgetsHead, kIndex},
      {"IndexForgetsEarlierWords", PlantedBug::kIndexForgetsEarlierWords,
       kIndex},
      {"IndexNoBarrierAfterMarks", PlantedBug::kIndexNoBarrierAfterMarks,
       kIndex},
      {"IndexNoBarrierAfterWords", PlantedBug::kIndexNoBarrierAfterWords,
       kIndex},
  };
  return cases;
}

class PlantedBugsTest : public testing::TestWithParam<PlantedCase> {
 protected:
  void TearDown() override { planted_bug = PlantedBug::kNone; }
};

TEST_P(PlantedBugsTest, IsCaught) {
  planted_bug = GetParam().bug;
  const std::string caught = GetParam().probe.Find();
  EXPECT_NE(caught, "");
  RecordProperty("caught", caught);
}

INSTANTIATE_TEST_SUITE_P(All, PlantedBugsTest, testing::ValuesIn(Cases()),
                         [](const testing::TestParamInfo<PlantedCase>& param) {
                           return param.param.name;
                         });

// Else a complaint about a planted bug could be one about something else.
class PlantedBugsProbesTest : public testing::TestWithParam<Probe> {};

TEST_P(PlantedBugsProbesTest, FindNothingWithoutBugs) {
  EXPECT_EQ(GetParam().Find(), "");
}

INSTANTIATE_TEST_SUITE_P(All, PlantedBugsProbesTest,
                         testing::Values(kAppend, kGather, kMoves, kCopyBlocks,
                                         kSwap, kAnySelect, kManyTies,
                                         kManyTurns, kFloors, kManyHeads,
                                         kHistory, kLong, kIndex),
                         [](const testing::TestParamInfo<Probe>& param) {
                           return param.param.name;
                         });

}  // namespace
}  // namespace blockmgr
