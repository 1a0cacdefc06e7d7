#include "tests/sim/ledger_loss.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace blockmgr::sim {
namespace {

// Returns the positions before the first lost block of any group.
int32_t SoundBefore(const LedgerTable& table, const std::vector<BlockId>& lost,
                    const LedgerBooks& books) {
  int32_t num_sound = table.num_reserved;
  for (const GroupBook& book : table.groups) {
    for (int32_t i = 0; i < std::ssize(book.pages); ++i) {
      if (std::ranges::count(lost, book.pages[i]) == 0) continue;
      num_sound = std::min(num_sound, i * books.layout.page_size);
    }
  }
  return num_sound;
}

void TakeLostBlocks(const std::vector<BlockId>& lost, LedgerBooks* books) {
  if (lost.empty()) return;
  const auto is_lost = [&lost](BlockId block) {
    return std::ranges::count(lost, block) > 0;
  };
  for (auto& [slot, table] : books->tables) {
    const std::set<BlockId> blocks = table.Blocks();
    if (std::ranges::none_of(blocks, is_lost)) continue;
    const bool has_lost_region =
        std::ranges::any_of(table.groups, [&](const GroupBook& book) {
          return std::ranges::any_of(book.region.blocks, is_lost);
        });
    table.num_sound =
        has_lost_region
            ? 0
            : std::min(table.num_settled, SoundBefore(table, lost, *books));
    // The runs in flight for the sequence count for nothing.
    table.stay = books->next_stay++;
    table.takes_more = true;
    ++books->counts().cut_requests;
  }
  for (const BlockId block : lost) books->blocks[Index(block)].content.clear();
  books->LoseRegions(is_lost);
}

}  // namespace

void TakeLoss(const StepResult& result, LedgerBooks* books) {
  TakeLostBlocks(result.lost_blocks, books);
  for (auto& [id, swap] : books->swaps) {
    for (const HostBlockId block : result.lost_host_blocks) {
      swap.is_due |= std::ranges::count(swap.blocks, block) > 0;
    }
  }
}

void TakeCuts(const BlockManager& manager, LedgerBooks* books) {
  if (!books->ok()) return;
  std::vector<SequenceSlot> left;
  for (auto& [slot, table] : books->tables) {
    if (!table.num_sound.has_value()) continue;
    const int32_t num_sound = *std::exchange(table.num_sound, std::nullopt);
    const SequenceCache& sequence = manager.sequence(slot);
    if (!sequence.open) {
      left.push_back(slot);
      continue;
    }
    const int32_t num_kept = sequence.num_settled;
    if (table.has_order() || num_kept < 1 || num_kept > num_sound ||
        num_kept < std::max(table.cut(), table.last_length()) ||
        !books->CanGoOn(table, num_kept)) {
      books->Fail("slot ", Index(slot), " goes on from ", num_kept,
                  " tokens; it has ", num_sound, " left, cut ", table.cut(),
                  ", was compressed at ", table.last_length(),
                  ", under way: ", table.has_order());
      return;
    }
    books->CutTables(num_kept, &table);
    table.num_settled = num_kept;
    table.num_reserved = num_kept;
    table.restart_due = true;
    books->requests.at(table.request).num_placeholders = 0;
    books->requests.at(table.request).num_ready = 0;
  }
  for (const SequenceSlot slot : left) books->CloseTable(slot);
}

void TakeLeft(const BlockManager& manager, LedgerBooks* books) {
  std::vector<SequenceSlot> left;
  for (auto& [slot, table] : books->tables) {
    if (!table.may_leave) continue;
    table.may_leave = false;
    if (!manager.sequence(slot).open) left.push_back(slot);
  }
  for (const SequenceSlot slot : left) books->CloseTable(slot);
}

}  // namespace blockmgr::sim
