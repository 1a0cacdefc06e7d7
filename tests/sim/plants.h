// Planted bugs: a copy of the libraries into which known bugs were written
// (plants.txt), each switched on by its number. In one test program only.
#ifndef TESTS_SIM_PLANTS_H_
#define TESTS_SIM_PLANTS_H_

#include <cstdint>

namespace blockmgr::sim {

inline constexpr int32_t kNoPlant = -1;

// The bug that is on, by its place in plants.txt. Set before any library call.
inline int32_t active_plant = kNoPlant;

inline bool IsPlanted(int32_t plant) { return active_plant == plant; }

}  // namespace blockmgr::sim

#endif  // TESTS_SIM_PLANTS_H_
