// Parts of an eviction, for Python: entries, keep sets, regions.
#ifndef PYTHON_CORE_EVICTION_H_
#define PYTHON_CORE_EVICTION_H_

#include <cstdint>
#include <vector>

#include "blockmgr/base/model_layout.h"
#include "blockmgr/base/moves.h"
#include "blockmgr/eviction/select.h"
#include "blockmgr/ragged_region.h"

namespace blockmgr::python {

// A region and the layout that it belongs to.
struct PyRegion {
  ModelLayout layout;
  RaggedRegion region;
};

// The candidates of an eviction. Checked when it is made, and constant.
struct PyEntries {
  int32_t num_layers = 0;
  int32_t num_heads = 0;
  std::vector<int64_t> offsets = {};    // [num_layers * num_heads + 1]
  std::vector<int32_t> positions = {};  // strictly ascending in each head
  std::vector<int64_t> slots = {};      // empty if they are not known
};

// Ranks into the candidates of each head, strictly ascending. Constant.
struct PyKeepSets {
  int32_t num_layers = 0;
  int32_t num_heads = 0;
  KeepSets sets = {};
};

struct PyPlacement {
  std::vector<int32_t> positions;
  CompactionMoves moves;
};

}  // namespace blockmgr::python

#endif  // PYTHON_CORE_EVICTION_H_
