// What the control plane costs: the pool per block, the prefix cache per block
// of a long prompt, a decode step of many sequences, and one eviction of every
// head of a large model.
//
// Times are of bookkeeping alone; no K or V bytes are involved. Items are the
// units named in each benchmark, so items/s is the number to compare.

#include <cstdint>
#include <numeric>
#include <random>
#include <span>
#include <vector>

#include <benchmark/benchmark.h>

#include "blockmgr/base/bits.h"
#include "blockmgr/base/check.h"
#include "blockmgr/block_hash.h"
#include "blockmgr/block_manager.h"
#include "blockmgr/block_pool.h"
#include "blockmgr/ragged_region.h"

namespace blockmgr {
namespace {

// The heads of Llama-3.1-8B: 32 layers of 8.
ModelLayout LargeLayout(int32_t num_blocks) {
  return {.num_layers = 32,
          .num_heads = 8,
          .num_q_heads = 32,
          .head_dim = 128,
          .page_size = 16,
          .dtype = DType::kBFloat16,
          .num_blocks = num_blocks};
}

constexpr int32_t kPromptTokens = 32 * 1024;

std::vector<int32_t> RandomPrompt() {
  std::mt19937 random(1);
  std::vector<int32_t> tokens(kPromptTokens);
  for (int32_t& token : tokens) token = static_cast<int32_t>(random() % 128000);
  return tokens;
}

void ReserveTokens(BlockManager* manager, SequenceSlot slot,
                   int32_t num_tokens) {
  std::vector<int64_t> offsets;
  std::vector<BlockId> blocks;
  const TokenDemand demand{slot, num_tokens};
  BM_CHECK(manager->Reserve(std::span(&demand, 1), &offsets, &blocks));
}

// Items: blocks.
void AllocateAndRelease(benchmark::State& state) {
  const auto num_blocks = static_cast<int32_t>(state.range(0));
  BlockPool pool(num_blocks + 1);
  std::vector<BlockId> blocks(num_blocks);
  for ([[maybe_unused]] auto _ : state) {
    BM_CHECK(pool.Allocate(blocks));
    for (const BlockId block : blocks) pool.Release(block);
  }
  BM_CHECK(pool.num_free() == num_blocks);
  state.SetItemsProcessed(state.iterations() * num_blocks);
}
BENCHMARK(AllocateAndRelease)->Arg(16)->Arg(1024)->Arg(65536);

// Items: blocks of a prompt that the cache has whole, keys included.
void HashAndMatch(benchmark::State& state) {
  const std::vector<int32_t> prompt = RandomPrompt();
  constexpr int32_t kBlocks = kPromptTokens / 16;
  BlockManager manager(LargeLayout(kBlocks + 1), 1, true);
  BlockChain chain;
  chain.Extend(prompt, 16);
  const SequenceSlot slot = manager.Open({}, {});
  ReserveTokens(&manager, slot, kPromptTokens);
  manager.Commit(slot, kPromptTokens, prompt, chain);
  for ([[maybe_unused]] auto _ : state) {
    BlockChain fresh;
    fresh.Extend(prompt, 16);
    const PrefixMatch match = manager.Match(fresh, prompt, kPromptTokens);
    BM_CHECK(std::ssize(match.blocks) == kBlocks);
  }
  state.SetItemsProcessed(state.iterations() * kBlocks);
}
BENCHMARK(HashAndMatch);

// Items: sequences. One token each; sequences cross block boundaries at
// different steps. They start over when the pool is used up.
void DecodeStep(benchmark::State& state) {
  const auto num_sequences = static_cast<int32_t>(state.range(0));
  constexpr int32_t kMaxTokens = 4096;
  BlockManager manager(LargeLayout(num_sequences * kMaxTokens / 16 + 1),
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

// Kept entries of every head: whole pages, uneven, `keep_percent` in total.
std::vector<int32_t> UnevenCounts(const ModelLayout& layout, int32_t cut,
                                  int32_t keep_percent) {
  std::mt19937 random(2);
  const int32_t num_heads = layout.pages_per_block();
  const int32_t pages_per_head = cut / layout.page_size * keep_percent / 100;
  std::vector<int32_t> pages(num_heads, pages_per_head);
  for (int32_t i = 0; i + 1 < num_heads; i += 2) {
    const auto moved = static_cast<int32_t>(random() % pages_per_head);
    pages[i] -= moved;
    pages[i + 1] += moved;
  }
  for (int32_t& count : pages) count *= layout.page_size;
  return pages;
}

// One eviction of 32k tokens x 256 heads. Range: whether it is done in place.
// Items: evictions. The first of a sequence costs no page lists here (they are
// derived by whoever reads them); one over an earlier region, in place, does.
void CommitEviction(benchmark::State& state) {
  const bool again_in_place = state.range(0) != 0;
  constexpr int32_t kBlocks = kPromptTokens / 16;
  const ModelLayout layout = LargeLayout(2 * kBlocks + 1);
  const std::vector<int32_t> counts = UnevenCounts(layout, kPromptTokens, 20);
  const int64_t page_total =
      std::accumulate(counts.begin(), counts.end(), int64_t{0}) /
      layout.page_size;
  const auto num_destinations = static_cast<int32_t>(
      CeilDiv<int64_t>(page_total, layout.pages_per_block()));
  BlockManager manager(layout, 1, false);
  std::vector<BlockId> destinations;
  int64_t evicted_entries = 0;
  for ([[maybe_unused]] auto _ : state) {
    state.PauseTiming();
    const SequenceSlot slot = manager.Open({}, {});
    ReserveTokens(&manager, slot, kPromptTokens);
    manager.Commit(slot, kPromptTokens, {}, {});
    int32_t cut = kPromptTokens;
    destinations.clear();
    if (again_in_place) {
      BM_CHECK(manager.ReserveEviction(slot, cut, page_total, num_destinations,
                                       &destinations));
      manager.CommitEviction(slot, counts);
      ReserveTokens(&manager, slot, layout.page_size);
      manager.Commit(slot, layout.page_size, {}, {});
      cut += layout.page_size;
      destinations.clear();
    }
    state.ResumeTiming();
    BM_CHECK(manager.ReserveEviction(slot, cut, page_total,
                                     again_in_place ? 0 : num_destinations,
                                     &destinations));
    evicted_entries = manager.CommitEviction(slot, counts).evicted_entries;
    state.PauseTiming();
    manager.Close(slot);
    state.ResumeTiming();
  }
  state.counters["evicted_entries"] = static_cast<double>(evicted_entries);
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(CommitEviction)->ArgName("again_in_place")->Arg(0)->Arg(1);

// The page lists of such a region, as an engine derives them. Items: pages.
void DeriveRegion(benchmark::State& state) {
  const ModelLayout layout = LargeLayout(kPromptTokens / 16 + 1);
  const std::vector<int32_t> counts = UnevenCounts(layout, kPromptTokens, 20);
  const int64_t num_pages =
      std::accumulate(counts.begin(), counts.end(), int64_t{0}) /
      layout.page_size;
  std::vector<BlockId> destinations;
  const int64_t num_blocks =
      CeilDiv<int64_t>(num_pages, layout.pages_per_block());
  for (int32_t i = 1; i <= num_blocks; ++i) destinations.push_back(BlockId{i});
  for ([[maybe_unused]] auto _ : state) {
    const RaggedRegion region = RaggedRegion::LayOut(
        layout, CacheView{}, destinations, counts, kPromptTokens);
    BM_CHECK(std::ssize(region.page_list()) == num_pages);
  }
  state.SetItemsProcessed(state.iterations() * num_pages);
}
BENCHMARK(DeriveRegion);

}  // namespace
}  // namespace blockmgr
