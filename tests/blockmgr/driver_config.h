// DriverConfig: the memory, and the limits, of one small manager that
// ManagerDriver tests.
#ifndef TESTS_BLOCKMGR_DRIVER_CONFIG_H_
#define TESTS_BLOCKMGR_DRIVER_CONFIG_H_

#include <cstdint>
#include <random>

#include "blockmgr/base/model_layout.h"

namespace blockmgr {

struct DriverConfig {
  ModelLayout layout;
  int32_t max_sequences = 0;
  bool caching = false;
  int32_t max_steps_in_flight = 0;
  int32_t num_host_blocks = 0;
  bool evicts_in_windows = false;

  // Returns how many pages of one shard a block has.
  int32_t PagesPerShard() const {
    return layout.pages_per_block() / layout.num_shards;
  }
  // Returns the shard of a head. The heads of all layers are numbered together.
  int32_t ShardOf(int32_t head_index) const;
};

// DriverWindows says which layers have a window.
enum class DriverWindows : uint8_t {
  kNone,
  kGroups,         // some layers, in one to three window groups
  kEvictedGroups,  // as kGroups, and window groups are evicted from, too
  kAll,
};

// Returns the configuration of a random small manager.
DriverConfig RandomConfig(std::mt19937_64& random, int32_t page_size,
                          bool caching, DriverWindows windows);

}  // namespace blockmgr

#endif  // TESTS_BLOCKMGR_DRIVER_CONFIG_H_
