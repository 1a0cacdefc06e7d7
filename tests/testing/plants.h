// Planted bugs: copies of sources into which the known bugs of a plants.txt
// were written, each switched on by its number. In test programs of their own
// only.
#ifndef TESTS_TESTING_PLANTS_H_
#define TESTS_TESTING_PLANTS_H_

#include <cstdint>

namespace blockmgr {

inline constexpr int32_t kNoPlant = -1;

// The bug that is on, by its place in plants.txt. Set before anything of the
// copies is called.
inline int32_t active_plant = kNoPlant;

inline bool IsPlanted(int32_t plant) { return active_plant == plant; }

}  // namespace blockmgr

#endif  // TESTS_TESTING_PLANTS_H_
