// Costs of the control plane that `blockmgr-bench micro` does not time: what
// routers are told of the prefix cache, a decode step without a scheduler, and
// the page lists of a region.
//
// Times are of bookkeeping alone; no K or V bytes are involved. Items are the
// units named in each benchmark, so items/s is the number to compare.

#include <cstdint>
#include <numeric>
#include <vector>

#include <benchmark/benchmark.h>

#include "bench/micro/memory_workloads.h"
#include "blockmgr/base/bits.h"
#include "blockmgr/base/check.h"
#include "blockmgr/block_manager.h"
#include "blockmgr/ragged_region.h"

namespace blockmgr {
namespace {

// Items: blocks told to a router, in readings of 512: by a walk through all
// entries, or by the log of their additions.
void ReadPrefixCache(benchmark::State& state) {
  constexpr int32_t kBlocks = 1 << 17;
  ReadCacheWorkload workload(kBlocks);
  for ([[maybe_unused]] auto _ : state) workload.Run(512, state.range(0) != 0);
  state.SetItemsProcessed(state.iterations() * kBlocks);
}
BENCHMARK(ReadPrefixCache)->ArgName("walks")->Arg(1)->Arg(0);

// Items: sequences. One token each; sequences cross block boundaries at
// different steps. They start over when the pool is used up.
void DecodeStep(benchmark::State& state) {
  const auto num_sequences = static_cast<int32_t>(state.range(0));
  constexpr int32_t kMaxTokens = 4096;
  BlockManager manager(LlamaLayout(num_sequences * kMaxTokens / 16 + 1),
                       num_sequences, false);
  std::vector<TokenDemand> demands;
  std::vector<int64_t> offsets;
  std::vector<BlockId> blocks;
  uint64_t step = 0;
  const auto restart = [&] {
    for (const TokenDemand& demand : demands) manager.Close(demand.slot);
    demands.clear();
    for (int32_t i = 0; i < num_sequences; ++i) {
      const SequenceSlot slot = manager.Open({}, {});
      demands.push_back({slot, 1});
      ReserveTokens(&manager, slot, 1 + i % 16);
      manager.Commit(slot, 1 + i % 16, {}, {});
    }
  };
  restart();
  for ([[maybe_unused]] auto _ : state) {
    if (manager.num_available() < num_sequences) {
      state.PauseTiming();
      restart();
      state.ResumeTiming();
    }
    offsets.clear();
    blocks.clear();
    BM_CHECK(manager.Reserve(demands, &offsets, &blocks));
    manager.Dispatch(StepId{++step});
    manager.Acknowledge(StepId{step});
    for (const TokenDemand& demand : demands) {
      manager.Commit(demand.slot, 1, {}, {});
    }
  }
  state.SetItemsProcessed(state.iterations() * num_sequences);
}
BENCHMARK(DecodeStep)->Arg(256);

// The page lists of a region of 256 heads that keeps a fifth of 32k tokens, as
// an engine derives them. Items: pages.
void DeriveRegion(benchmark::State& state) {
  const ModelLayout layout = LlamaLayout(kLongPromptTokens / 16 + 1);
  const std::vector<int32_t> counts =
      UnevenCounts(layout, kLongPromptTokens, 20);
  const int64_t num_pages =
      std::accumulate(counts.begin(), counts.end(), int64_t{0}) /
      layout.page_size;
  std::vector<BlockId> destinations;
  const int64_t num_blocks =
      CeilDiv<int64_t>(num_pages, layout.pages_per_block());
  for (int32_t i = 1; i <= num_blocks; ++i) destinations.push_back(BlockId{i});
  for ([[maybe_unused]] auto _ : state) {
    const RaggedRegion region = RaggedRegion::LayOut(
        layout, CacheView{}, destinations, counts, kLongPromptTokens);
    BM_CHECK(std::ssize(region.page_list()) == num_pages);
  }
  state.SetItemsProcessed(state.iterations() * num_pages);
}
BENCHMARK(DeriveRegion);

}  // namespace
}  // namespace blockmgr
