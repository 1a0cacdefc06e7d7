#include "tests/blockmgr/driver_config.h"

#include <array>

#include "tests/blockmgr/naive_layout.h"
#include "tests/testing/random.h"

namespace blockmgr {

int32_t DriverConfig::ShardOf(int32_t head_index) const {
  return NaiveShardOf({layout.num_layers, layout.num_heads, layout.num_shards},
                      head_index % layout.num_heads);
}

DriverConfig RandomConfig(std::mt19937_64& random, int32_t page_size,
                          bool caching, DriverWindows windows) {
  constexpr std::array<int32_t, 4> kMaxBlocks = {4, 10, 24, 64};
  DriverConfig config;
  config.layout = {
      .num_layers = RandomInt(random, 1, 3),
      .num_heads = RandomInt(random, 1, 4),
      .num_q_heads = 0,
      .head_dim = 8,
      .page_size = page_size,
      .dtype = DType::kFloat32,
      .num_blocks = RandomInt(random, 2, kMaxBlocks[RandomInt(random, 0, 3)])};
  if (RandomChance(random, 0.5)) {
    config.layout.num_shards = RandomInt(random, 1, 3);
    config.layout.num_heads =
        config.layout.num_shards * RandomInt(random, 1, 2);
  }
  config.layout.num_q_heads = config.layout.num_heads;
  config.max_sequences = RandomInt(random, 1, 6);
  config.caching = caching;
  config.max_steps_in_flight = RandomInt(random, 1, 4);
  if (windows == DriverWindows::kNone) return config;
  config.layout.num_blocks += RandomInt(random, 0, 30);
  const auto random_window = [&] {
    // Many windows lose a page with the first token of the next page.
    const int32_t more = RandomChance(random, 0.5)
                             ? RandomInt(random, 0, 3) * page_size + 1
                             : RandomInt(random, 0, 3 * page_size);
    return page_size + more;
  };
  if (windows == DriverWindows::kAll) config.layout.window = random_window();
  if (windows == DriverWindows::kAll) return config;
  config.evicts_in_windows = windows == DriverWindows::kEvictedGroups;
  config.layout.group_windows.resize(RandomInt(random, 1, 3));
  for (int32_t& window : config.layout.group_windows) window = random_window();
  // Groups share the blocks: more groups need more blocks for as many tokens.
  config.layout.num_blocks *= RandomInt(random, 1, config.layout.num_groups());
  return config;
}

}  // namespace blockmgr
