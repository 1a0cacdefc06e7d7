// Window groups: who holds which page of them, and how long.

#include <algorithm>

#include <absl/strings/str_cat.h>

#include "blockmgr/base/bits.h"
#include "tests/sim/ledger.h"

namespace blockmgr::sim {

bool Ledger::IsOut(int32_t group, int32_t page, int32_t length) const {
  const int32_t window =
      group == 0 ? layout_.window : layout_.group_windows[group - 1];
  if (window == 0) return false;
  // The last token attends to itself and window - 1 before it.
  const int32_t first_attended = length - window;
  const int32_t page_end = (page + 1) * layout_.page_size;
  return page_end <= first_attended;
}

int32_t Ledger::FirstPage(int32_t group, int32_t length) const {
  int32_t page = 0;
  while (IsOut(group, page, length)) ++page;
  return page;
}

PageRange Ledger::PagesBehind(const Table& table, int32_t group,
                              int32_t length) const {
  const int32_t page_size = layout_.page_size;
  if (group == 0) {
    return {FirstPage(0, length), CeilDiv(length - table.cut, page_size)};
  }
  const WindowRegion& region = table.window_regions.at(group - 1);
  return {std::max(FirstPage(group, length), region.cut / page_size),
          CeilDiv(length, page_size)};
}

std::vector<BlockId>& Ledger::BlocksOf(Table* table, int32_t group) const {
  return group == 0 ? table->tail : table->windows.at(group - 1);
}

const std::vector<BlockId>& Ledger::BlocksOf(const Table& table,
                                             int32_t group) const {
  return group == 0 ? table.tail : table.windows.at(group - 1);
}

void Ledger::CheckWindowArrays(const StepPlan& plan) {
  const size_t num_groups = layout_.group_windows.size();
  const size_t expected =
      num_groups == 0 ? 0 : plan.slots.size() * num_groups + 1;
  const int64_t num_blocks =
      plan.window_offsets.empty() ? 0 : plan.window_offsets.back();
  if (plan.window_offsets.size() != expected ||
      std::ssize(plan.window_blocks) != num_blocks) {
    report_->Fail("step ", Index(plan.id), " has ", plan.window_offsets.size(),
                  " offsets and ", plan.window_blocks.size(),
                  " blocks of window groups; expected ", expected, " and ",
                  num_blocks);
  }
}

std::vector<BlockId> Ledger::NewBlocks(const StepPlan& plan, size_t index,
                                       int32_t group) {
  if (group == 0) {
    return {plan.blocks.begin() + plan.block_offsets[index],
            plan.blocks.begin() + plan.block_offsets[index + 1]};
  }
  const size_t place = index * layout_.group_windows.size() + group - 1;
  return {plan.window_blocks.begin() + plan.window_offsets[place],
          plan.window_blocks.begin() + plan.window_offsets[place + 1]};
}

bool Ledger::CanGoOn(const Table& table, int32_t length) const {
  for (int32_t group = 0; group < layout_.num_groups(); ++group) {
    const int32_t cut = group == 0 ? table.cut : 0;
    const int32_t num_pages = CeilDiv(length - cut, layout_.page_size);
    // A region stands for the pages below its cut.
    const int32_t first =
        group == 0 ? 0
                   : table.window_regions[group - 1].cut / layout_.page_size;
    for (int32_t i = first; i < num_pages; ++i) {
      // The next token is the last of one more.
      if (BlocksOf(table, group)[i] == kNullBlock &&
          !IsOut(group, i, length + 1)) {
        return false;
      }
    }
  }
  return true;
}

void Ledger::CutTables(int32_t length, Table* table) {
  for (int32_t group = 0; group < layout_.num_groups(); ++group) {
    std::vector<BlockId>& own = BlocksOf(table, group);
    const int32_t cut = group == 0 ? table->cut : 0;
    const int32_t num_blocks = CeilDiv(length - cut, layout_.page_size);
    while (std::ssize(own) > num_blocks) {
      if (own.back() != kNullBlock) Release(own.back());
      own.pop_back();
    }
  }
}

void Ledger::ReleaseBehindWindows(Table* table) {
  ReleaseRegionsBehind(table);
  for (int32_t group = 0; group < layout_.num_groups(); ++group) {
    std::vector<BlockId>& own = BlocksOf(table, group);
    for (int32_t i = 0; IsOut(group, i, table->num_settled); ++i) {
      if (own[i] == kNullBlock) continue;
      Release(own[i]);
      own[i] = kNullBlock;
      ++report_->counts().left_behind;
    }
  }
}

int32_t Ledger::SoundBefore(const Table& table,
                            const std::vector<BlockId>& lost) const {
  int32_t num_sound = table.num_reserved;
  for (int32_t group = 0; group < layout_.num_groups(); ++group) {
    const std::vector<BlockId>& own = BlocksOf(table, group);
    const int32_t cut = group == 0 ? table.cut : 0;
    for (int32_t i = 0; i < std::ssize(own); ++i) {
      if (std::ranges::count(lost, own[i]) == 0) continue;
      num_sound = std::min(num_sound, cut + i * layout_.page_size);
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
      num_blocks += CeilDiv(i + 1, layout_.page_size) - FirstPage(group, i);
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

void Ledger::CompareWindows(const BlockManager& manager, SequenceSlot slot,
                            const Table& table) {
  for (int32_t group = 1; group < layout_.num_groups(); ++group) {
    const std::vector<BlockId>& own = BlocksOf(table, group);
    const std::vector<BlockId>& theirs = manager.window_tail(slot, group);
    CompareWindowRegion(manager, slot, group, table);
    if (own == theirs) continue;
    const auto count = [](const std::vector<BlockId>& blocks) {
      return std::ssize(blocks) - std::ranges::count(blocks, kNullBlock);
    };
    report_->Fail("slot ", Index(slot), ", group ", group, ": the manager has ",
                  count(theirs), " blocks of ", theirs.size(),
                  " pages, expected ", count(own), " of ", own.size());
  }
}

}  // namespace blockmgr::sim
