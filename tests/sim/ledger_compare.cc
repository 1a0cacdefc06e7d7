#include "tests/sim/ledger_compare.h"

#include <algorithm>
#include <set>
#include <span>
#include <vector>

#include "tests/testing/block_tables.h"

namespace blockmgr::sim {
namespace {

void CompareGroup(const SequenceCache& sequence, SequenceSlot slot,
                  int32_t group, const LedgerBooks& books) {
  const GroupBook& own = books.tables.at(slot).groups[group];
  const GroupCache& cache = sequence.groups[group];
  const RegionRecord* const region = cache.region.get();
  const std::vector<BlockId> table = BlocksByPage(cache);
  const int32_t cut = region == nullptr ? 0 : region->cut;
  const bool has_blocks = region == nullptr
                              ? own.region.blocks.empty()
                              : region->blocks == own.region.blocks;
  const std::span<const BlockId> expected = own.pages;
  if (cut == own.region.cut && has_blocks &&
      std::ranges::equal(table, expected)) {
    return;
  }
  const auto count = [](std::span<const BlockId> blocks) {
    return std::ssize(blocks) - std::ranges::count(blocks, kNullBlock);
  };
  books.Fail("slot ", Index(slot), ", group ", group, ": the manager has ",
             count(table), " blocks of ", table.size(), " pages behind cut ",
             cut, "; expected ", count(expected), " of ", expected.size(),
             " behind ", own.region.cut,
             "; the region is as expected: ", has_blocks);
}

// Compares the tables of all sequences. Returns false if the tokens differ.
bool CompareTables(const LedgerBooks& books, const BlockManager& manager) {
  for (const auto& [slot, table] : books.tables) {
    const SequenceCache& sequence = manager.sequence(slot);
    if (!sequence.open || sequence.num_reserved != table.num_reserved ||
        sequence.num_settled != table.num_settled) {
      books.Fail("slot ", Index(slot), ": the manager has ",
                 sequence.num_settled, " of ", sequence.num_reserved,
                 " tokens settled; expected ", table.num_settled, " of ",
                 table.num_reserved);
      return false;
    }
    for (int32_t group = 0; group < books.layout.num_groups(); ++group) {
      CompareGroup(sequence, slot, group, books);
    }
  }
  return true;
}

void CompareBlocks(const LedgerBooks& books, const BlockManagerStats& counts) {
  std::set<BlockId> used;
  for (const auto& [slot, table] : books.tables) used.merge(table.Blocks());
  std::set<BlockId> in_regions;
  for (const auto& [id, region] : books.regions) {
    for (int32_t group = 0; group < books.layout.num_groups(); ++group) {
      if (region.gone.contains(group)) continue;
      const std::vector<BlockId>& blocks = region.regions[group].blocks;
      in_regions.insert(blocks.begin(), blocks.end());
    }
  }
  int32_t num_cacheable = 0;
  for (int32_t i = 1; i < books.layout.num_blocks; ++i) {
    const bool held = used.contains(BlockId{i});
    const bool has_content =
        !books.blocks[i].content.empty() || in_regions.contains(BlockId{i});
    num_cacheable += !held && has_content ? 1 : 0;
  }
  const auto num_used = static_cast<int32_t>(used.size());
  if (counts.used_blocks != num_used || counts.cached_blocks > num_cacheable ||
      counts.free_blocks + counts.cached_blocks + counts.fenced_blocks +
              counts.used_blocks !=
          books.layout.num_blocks - 1) {
    books.Fail("blocks: used ", counts.used_blocks, " (expected ", num_used,
               "), cached ", counts.cached_blocks, " (at most ", num_cacheable,
               "), fenced ", counts.fenced_blocks, ", free ",
               counts.free_blocks, " of ", books.layout.num_blocks - 1);
  }
}

void CompareHost(const LedgerBooks& books, const SchedulerStats& stats) {
  int32_t num_swapped = 0;
  int32_t num_used = 0;
  for (const auto& [id, swap] : books.swaps) {
    if (swap.is_due) continue;
    ++num_swapped;
    num_used += static_cast<int32_t>(swap.blocks.size());
  }
  const int32_t num_host_blocks = books.options.engine.num_host_blocks;
  if (stats.num_swapped != num_swapped || stats.used_host_blocks != num_used ||
      stats.host_blocks != num_host_blocks) {
    books.Fail("host tier: ", stats.num_swapped, " requests in ",
               stats.used_host_blocks, " of ", stats.host_blocks,
               " blocks; expected ", num_swapped, " in ", num_used, " of ",
               num_host_blocks);
  }
}

void CompareRequests(const LedgerBooks& books, const SchedulerStats& stats) {
  const auto num_tables = static_cast<int32_t>(books.tables.size());
  const auto num_live = static_cast<int32_t>(books.names.size());
  if (stats.num_running != num_tables ||
      stats.num_running + stats.num_waiting != num_live ||
      stats.num_waiting_tokens != books.CountQueuedTokens() ||
      stats.num_steps_in_flight != std::ssize(books.in_flight) ||
      stats.num_finished != books.num_finished) {
    books.Fail("requests: ", stats.num_running, " running (expected ",
               num_tables, "), ", stats.num_waiting, " waiting with ",
               stats.num_waiting_tokens, " tokens, ", num_live, " live, ",
               stats.num_finished, " ended (expected ", books.num_finished,
               ")");
  }
}

}  // namespace

void CompareBooks(const LedgerBooks& books, const BlockManager& manager,
                  const SchedulerStats& stats) {
  if (!books.ok() || !CompareTables(books, manager)) return;
  CompareBlocks(books, stats.blocks);
  CompareHost(books, stats);
  CompareRequests(books, stats);
}

void CheckAtRest(const LedgerBooks& books, const SchedulerStats& stats) {
  if (!books.names.empty() || !books.in_flight.empty() ||
      !books.commands.empty() || stats.blocks.used_blocks != 0 ||
      stats.blocks.fenced_blocks != 0 || stats.used_host_blocks != 0) {
    books.Fail("at rest: ", books.names.size(), " live requests, ",
               books.in_flight.size(), " steps in flight, ",
               books.commands.size(), " unanswered commands, ",
               stats.blocks.used_blocks, " used, ", stats.blocks.fenced_blocks,
               " fenced blocks, ", stats.used_host_blocks, " used host blocks");
  }
}

}  // namespace blockmgr::sim
