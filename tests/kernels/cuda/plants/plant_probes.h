// Ways to look for bugs in kernels: each runs some in the way their own tests
// do.
#ifndef TESTS_KERNELS_CUDA_PLANTS_PLANT_PROBES_H_
#define TESTS_KERNELS_CUDA_PLANTS_PLANT_PROBES_H_

#include <string>
#include <vector>

namespace blockmgr {

struct PlantProbe {
  const char* name;  // in plants.txt
  // Returns the first complaint of those tests, or "" where they pass.
  std::string (*find)();
};

// These probe copies of rows, lists of entries, selections and plans of moves.
std::vector<PlantProbe> RowProbes();
// These probe attention and scores.
std::vector<PlantProbe> AttentionProbes();

}  // namespace blockmgr

#endif  // TESTS_KERNELS_CUDA_PLANTS_PLANT_PROBES_H_
