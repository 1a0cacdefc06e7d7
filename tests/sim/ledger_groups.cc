// Layer groups: who holds which page and region of them, and how long.

#include <algorithm>

#include "blockmgr/base/bits.h"
#include "tests/sim/ledger.h"
#include "tests/testing/block_tables.h"

namespace blockmgr::sim {

void Ledger::CheckBlockArrays(const StepPlan& plan) {
  const size_t expected =
      plan.slots.size() * (1 + layout_.group_windows.size()) + 1;
  const int64_t num_blocks =
      plan.block_offsets.empty() ? 0 : plan.block_offsets.back();
  if (plan.block_offsets.size() != expected ||
      std::ssize(plan.blocks) != num_blocks) {
    report_->Fail("step ", Index(plan.id), " has ", plan.block_offsets.size(),
                  " offsets and ", plan.blocks.size(), " blocks; expected ",
                  expected, " and ", num_blocks);
  }
}

std::vector<BlockId> Ledger::NewBlocks(const StepPlan& plan, size_t index,
                                       int32_t group) {
  const size_t row = index * (1 + layout_.group_windows.size()) + group;
  return {plan.blocks.begin() + plan.block_offsets[row],
          plan.blocks.begin() + plan.block_offsets[row + 1]};
}

bool Ledger::CanGoOn(const Table& table, int32_t length) const {
  for (int32_t group = 0; group < layout_.num_groups(); ++group) {
    if (!rules_.CanGoOn(table.groups[group], group, length)) return false;
  }
  return true;
}

void Ledger::CutTables(int32_t length, Table* table) {
  for (GroupBook& book : table->groups) {
    for (const BlockId block : rules_.CutBack(length, &book)) Release(block);
  }
}

void Ledger::ReleaseOutOfSpan(Table* table) {
  for (int32_t group = 0; group < layout_.num_groups(); ++group) {
    const BookCover left =
        rules_.LeaveWindow(group, table->num_settled, &table->groups[group]);
    for (const BlockId block : left.Blocks()) Release(block);
    report_->counts().left_behind += left.pages.size();
    report_->counts().left_regions += left.region.cut > 0 ? 1 : 0;
  }
}

int32_t Ledger::SoundBefore(const Table& table,
                            const std::vector<BlockId>& lost) const {
  int32_t num_sound = table.num_reserved;
  for (int32_t group = 0; group < layout_.num_groups(); ++group) {
    const std::vector<BlockId>& own = table.groups[group].pages;
    for (int32_t i = 0; i < std::ssize(own); ++i) {
      if (std::ranges::count(lost, own[i]) == 0) continue;
      num_sound = std::min(num_sound, i * layout_.page_size);
    }
  }
  return num_sound;
}

std::optional<std::string> Ledger::ContextAt(const Table& table,
                                             int32_t begin) const {
  std::string found;
  for (const auto& [length, context] : table.contexts) {
    if (length >= begin + layout_.page_size) break;
    if (length > begin) return std::nullopt;
    found = context;
  }
  return found;
}

Ledger::Peaks Ledger::PeaksOf(const Request& request,
                              const EvictionTarget& target) const {
  const bool has_window_regions = target.evicts_in_windows();
  const int32_t length =
      static_cast<int32_t>(request.prompt.size()) + request.max_tokens - 1;
  const int32_t all = CeilDiv(length, layout_.page_size);
  // Without windows all of it; too long ones are refused anyway.
  Peaks peaks{.least = all, .most = all};
  if (!layout_.has_windows() || length > options_.max_model_len) return peaks;
  peaks = {};
  for (int32_t i = 0; i < length; ++i) {
    int32_t num_blocks = 0;
    for (int32_t group = 0; group < layout_.num_groups(); ++group) {
      num_blocks +=
          CeilDiv(i + 1, layout_.page_size) - rules_.FirstPage(group, i);
    }
    peaks.least = std::max(peaks.least, num_blocks);
  }
  for (int32_t group = 0; group < layout_.num_groups(); ++group) {
    // No step computes more tokens of one request. Where pages begin need not
    // be looked at: that is a page more.
    const int32_t window = layout_.window_of(group);
    const int32_t tokens = window + options_.max_num_batched_tokens;
    const int32_t num_pages = CeilDiv(tokens - 1, layout_.page_size) + 1;
    // A region stays, as a whole, beside what the window holds without it.
    const int32_t most = (has_window_regions ? 2 : 1) * num_pages;
    peaks.most += window == 0 ? all : std::min(all, most);
  }
  return peaks;
}

void Ledger::CompareGroup(const BlockManager& manager, SequenceSlot slot,
                          int32_t group, const GroupBook& own) {
  const GroupCache& cache = manager.sequence(slot).groups[group];
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
  report_->Fail("slot ", Index(slot), ", group ", group, ": the manager has ",
                count(table), " blocks of ", table.size(), " pages behind cut ",
                cut, "; expected ", count(expected), " of ", expected.size(),
                " behind ", own.region.cut,
                "; the region is as expected: ", has_blocks);
}

bool Ledger::ChecksumIsValid(const Table& table, int32_t group,
                             const EvictionOutcome& outcome) const {
  if (!outcome.layout_checksum.has_value()) return true;
  const NaivePages lists =
      rules_.RegionOf(table.groups[group], group, outcome.counts).pages;
  constexpr uint64_t kFactor = 0x9E3779B97F4A7C15;
  uint64_t checksum = 0;
  uint64_t index = 0;
  for (const auto& [head, list] : lists) {
    uint64_t hash = index * kFactor + outcome.counts[index];
    ++index;
    for (const auto& [layer, block, of_head] : list) {
      const int32_t page =
          (layer * layout_.num_blocks + block) * layout_.num_heads + of_head;
      hash = hash * kFactor + page;
    }
    hash = (hash ^ hash >> 32) * kFactor;
    checksum += hash ^ hash >> 32;
  }
  return checksum == *outcome.layout_checksum;
}

void Ledger::AbortOrders(Table* table) {
  for (GroupBook& book : table->groups) {
    if (!book.pending.has_value()) continue;
    for (const BlockId block : book.pending->Fresh()) Release(block);
    book.pending.reset();
  }
}

void Ledger::OverwriteRegions(BlockId block) {
  for (auto& [id, region] : regions_) {
    for (int32_t group = 0; group < layout_.num_groups(); ++group) {
      const std::vector<BlockId>& blocks = region.regions[group].blocks;
      if (std::ranges::count(blocks, block) == 0) continue;
      region.gone.insert(group);
      if (group > 0) continue;
      report_->Fail("block ", Index(block), " of region ", Index(id),
                    " is handed out");
    }
  }
}

void Ledger::LoseRegions(absl::FunctionRef<bool(BlockId)> is_lost) {
  for (auto& [id, region] : regions_) {
    for (int32_t group = 0; group < layout_.num_groups(); ++group) {
      const std::vector<BlockId>& blocks = region.regions[group].blocks;
      if (std::ranges::any_of(blocks, is_lost)) region.gone.insert(group);
    }
    if (region.gone.contains(0)) lost_regions_.insert(id);
  }
  std::erase_if(regions_, [](const auto& region) {
    return region.second.gone.contains(0);
  });
}

}  // namespace blockmgr::sim
