// Probes of copies of rows, lists of entries, selections and plans of moves.

#include <cstdint>
#include <string>
#include <vector>

#include <absl/strings/str_cat.h>

#include "tests/kernels/cuda/plants/plant_probes.h"
#include "tests/kernels/cuda/rows/row_checks.h"
#include "tests/kernels/cuda/selection/index_checks.h"
#include "tests/kernels/cuda/selection/move_checks.h"
#include "tests/kernels/cuda/selection/select_checks.h"

namespace blockmgr {
namespace {

// The first complaint of a check about seeds from 0 on, or "".
template <auto kCheck, uint64_t kNumSeeds>
std::string FindInSeeds() {
  for (uint64_t seed = 0; seed < kNumSeeds; ++seed) {
    const std::string found = kCheck(seed);
    if (!found.empty()) return absl::StrCat("seed ", seed, ": ", found);
  }
  return "";
}

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

}  // namespace

std::vector<PlantProbe> RowProbes() {
  return {{"append", FindInSeeds<CheckAppend, 16>},
          {"gather", FindInSeeds<CheckGather, 16>},
          {"moves", FindInSeeds<CheckMoves, 16>},
          {"copy_blocks", FindInSeeds<CheckCopyBlocks, 16>},
          {"swap", FindInSeeds<CheckSwap, 16>},
          {"many_ties", FindInSeeds<CheckManyTies, 1>},
          {"many_turns", FindInSeeds<CheckManyTurns, 12>},
          {"any_select", FindInSeeds<CheckAnySelect, 40>},
          {"divided", FindInSeeds<CheckDivided, 64>},
          {"close_floors", FindInSeeds<CheckCloseFloors, 24>},
          {"floors", FindInSeeds<CheckFloors, 40>},
          {"many_heads", FindInSeeds<CheckManyEqualHeads, 12>},
          {"history", FindInSeeds<CheckHistory, 12>},
          {"long", FindInSeeds<CheckLong, 3>},
          {"index", FindInSeeds<CheckIndex, 16>}};
}

}  // namespace blockmgr
