// What plans do to the tables, before anything is computed; and the loss of
// blocks.

#include <algorithm>
#include <utility>

#include <absl/strings/str_cat.h>

#include "blockmgr/base/bits.h"
#include "blockmgr/base/status_macros.h"
#include "tests/testing/canary_engine.h"

namespace blockmgr {
namespace {

bool IsCopiedTo(const StepPlan& plan, SequenceSlot slot) {
  return std::ranges::count(plan.copies, slot, &CopyOnWrite::slot) > 0;
}

}  // namespace

absl::Status CanaryEngine::ApplyStarts(const Queued& queued,
                                       StepResult* result) {
  const StepPlan& plan = queued.plan;
  for (const SequenceSlot slot : plan.released) {
    CanaryTable& table = tables_[Index(slot)];
    if (!table.open) return Wrong("released slot ", Index(slot), " is empty");
    table = CanaryTable{};
  }
  for (const SequenceStart& start : plan.starts) {
    BM_RETURN_IF_ERROR(ApplyStart(queued, start, result));
  }
  for (const RegionId region : plan.dropped_regions) {
    if (regions_.erase(region) == 0) {
      return Wrong("region ", Index(region), " is dropped and was not kept");
    }
  }
  return absl::OkStatus();
}

absl::Status CanaryEngine::ApplyStart(const Queued& queued,
                                      const SequenceStart& start,
                                      StepResult* result) {
  const StepPlan& plan = queued.plan;
  const bool has_source = start.source != kNoSequenceSlot;
  CanaryTable& table = tables_[Index(start.slot)];
  const CanaryTable source =
      has_source ? tables_[Index(start.source)] : CanaryTable{};
  if (table.open && start.source != start.slot) {
    return Wrong("slot ", Index(start.slot), " is in use");
  }
  table = CanaryTable{};
  const bool is_partly_cached =
      !has_source && start.swap == kNoSwap &&
      start.num_cached_tokens % layout_.page_size != 0;
  if ((is_partly_cached &&
       (layout_.has_windows() || !IsCopiedTo(plan, start.slot))) ||
      start.num_cached_tokens >= start.num_tokens) {
    return Wrong("cached tokens: ", start.num_cached_tokens, " of ",
                 start.num_tokens);
  }
  table.open = true;
  table.request = start.request;
  table.incarnation = next_incarnation_++;
  table.query_window = start.query_window;
  table.num_cached = start.num_cached_tokens;
  table.windows.resize(layout_.group_windows.size());
  table.window_regions.resize(layout_.group_windows.size());
  uint64_t chain = 0;
  for (int32_t i = 0; i < start.num_tokens; ++i) {
    table.tokens.push_back(plan.start_tokens[start.token_begin + i]);
    chain = Extend(chain, table.tokens.back());
    table.chain.push_back(chain);
  }
  if (start.region != kNoRegion) {
    BM_RETURN_IF_ERROR(StartOnRegion(start, &table));
  }
  if (has_source) BM_RETURN_IF_ERROR(StartFrom(source, start, &table));
  table.num_shared = (table.num_cached - table.cut()) / layout_.page_size;
  table.num_shared_windows = table.num_cached / layout_.page_size;
  if (start.swap != kNoSwap) {
    BM_RETURN_IF_ERROR(StartFromHost(queued, start, result, &table));
  }
  // The rest of a hit was computed without any eviction but those.
  for (int32_t i = table.length(); i < table.num_cached; ++i) {
    table.content.push_back(Extend(table.chain[i], table.history));
  }
  table.steps.assign(table.content.size(), StepId{0});
  return absl::OkStatus();
}

absl::Status CanaryEngine::StartFrom(const CanaryTable& source,
                                     const SequenceStart& start,
                                     CanaryTable* table) {
  const int32_t length = start.num_cached_tokens;
  if (!source.open || start.region != kNoRegion || length < 1 ||
      length < source.cut() || length > source.length()) {
    return Wrong("slot ", Index(start.slot), " starts with ", length,
                 " tokens of slot ", Index(start.source), ", which has ",
                 source.length(), " and cut ", source.cut());
  }
  // Evictions after these tokens depend on what comes after them.
  if (!source.evictions.empty() && source.evictions.back().length > length) {
    return Wrong("slot ", Index(start.slot), " starts with ", length,
                 " tokens of slot ", Index(start.source),
                 ", which was compressed at ", source.evictions.back().length);
  }
  if (source.chain[length - 1] != table->chain[length - 1]) {
    return Wrong("slot ", Index(start.slot), " starts with ", length,
                 " other tokens than slot ", Index(start.source));
  }
  table->content.assign(source.content.begin(),
                        source.content.begin() + length);
  table->history = source.history;
  table->evictions = source.evictions;
  table->region = source.region;
  table->region_positions = source.region_positions;
  table->tail = source.tail;
  table->windows = source.windows;
  table->window_regions = source.window_regions;
  CutTables(length, table);
  return CheckSourceWindows(source, start);
}

void CanaryEngine::LoseBlocks(const std::vector<BlockId>& blocks) {
  losses_.insert(losses_.end(), blocks.begin(), blocks.end());
}

void CanaryEngine::CarryOutLosses(StepResult* result) {
  for (const BlockId block : losses_) {
    result->lost_blocks.push_back(block);
    lost_.insert(block);
    for (int32_t h = 0; h < layout_.pages_per_block(); ++h) {
      const PageId page =
          layout_.page_id(h / layout_.num_heads, block, h % layout_.num_heads);
      for (int32_t i = 0; i < layout_.page_size; ++i) {
        memory_[layout_.slot(page, i)] = Tag{};
      }
    }
  }
  losses_.clear();
}

bool CanaryEngine::IsDamaged(const CanaryTable& table) const {
  if (table.is_tainted) return true;
  if (lost_.empty()) return false;
  const auto is_lost = [this](BlockId block) { return lost_.contains(block); };
  for (int32_t group = 0; group < layout_.num_groups(); ++group) {
    if (std::ranges::any_of(ReadBlocks(table, group), is_lost)) return true;
    const CanaryWindowRegion* const region =
        RegionFrom(table, group, FirstRead(table, group));
    if (region != nullptr &&
        std::ranges::any_of(region->layout.blocks(), is_lost)) {
      return true;
    }
  }
  return table.region.has_value() &&
         std::ranges::any_of(table.region->blocks(), is_lost);
}

absl::Status CanaryEngine::ApplyCopies(const Queued& queued,
                                       StepResult* result) {
  const std::vector<int32_t> holders = CountHolders();
  for (const CopyOnWrite& copy : queued.plan.copies) {
    CanaryTable& table = tables_[Index(copy.slot)];
    const auto [source, destination] = copy.blocks;
    std::vector<BlockId>& own = BlocksOf(&table, copy.group);
    // Of a start in the cache the blocks come with its run.
    const bool has_tail = !own.empty();
    const int32_t num_tokens =
        (table.length() - table.cut()) % layout_.page_size;
    if (!table.open || copy.num_tokens != num_tokens ||
        (has_tail
             ? own.back() != source
             : num_tokens == 0 || NextOwnBlock(queued.plan, table, copy.slot) !=
                                      destination)) {
      return Wrong("slot ", Index(copy.slot), " copies ", copy.num_tokens,
                   " tokens of block ", Index(source),
                   ", not the end of its tail");
    }
    BM_RETURN_IF_ERROR(CheckFresh(queued, destination));
    if (holders[Index(destination)] > 0) {
      return Wrong("block ", Index(destination), " is copied to and in use");
    }
    for (int32_t h = 0; h < layout_.pages_per_block(); ++h) {
      const int32_t layer = h / layout_.num_heads;
      const PageId from = layout_.page_id(layer, source, h % layout_.num_heads);
      const PageId to =
          layout_.page_id(layer, destination, h % layout_.num_heads);
      for (int32_t i = 0; i < copy.num_tokens; ++i) {
        memory_[layout_.slot(to, i)] = memory_[layout_.slot(from, i)];
      }
    }
    touched_[queued.plan.id].insert(source);
    if (lost_.contains(source)) {
      lost_.insert(destination);
      result->lost_blocks.push_back(destination);
    } else {
      lost_.erase(destination);
    }
    if (has_tail) own.back() = destination;
  }
  return absl::OkStatus();
}

BlockId CanaryEngine::NextOwnBlock(const StepPlan& plan,
                                   const CanaryTable& table,
                                   SequenceSlot slot) const {
  const auto run = std::ranges::find(plan.slots, slot) - plan.slots.begin();
  if (run == std::ssize(plan.slots)) return kNullBlock;
  const int64_t place = plan.block_offsets[run] +
                        (table.length() - table.cut()) / layout_.page_size;
  return place < plan.block_offsets[run + 1] ? plan.blocks[place] : kNullBlock;
}

absl::Status CanaryEngine::StartOnRegion(const SequenceStart& start,
                                         CanaryTable* table) {
  const auto found = regions_.find(start.region);
  if (found == regions_.end()) {
    return Wrong("slot ", Index(start.slot), " starts on region ",
                 Index(start.region), ", which is not kept");
  }
  const CanaryRegion& region = found->second;
  const size_t length = region.content.size();
  if (table->num_cached < std::ssize(region.content) ||
      table->chain[length - 1] != region.chain) {
    return Wrong("slot ", Index(start.slot), " starts with ", table->num_cached,
                 " cached tokens on region ", Index(start.region), " of ",
                 length, " other tokens");
  }
  table->content = region.content;
  table->history = region.history;
  table->evictions = region.evictions;
  table->region = region.layout;
  table->region_positions = region.positions;
  // What comes back has those of window groups with it.
  if (start.swap != kNoSwap) return absl::OkStatus();
  table->window_regions = region.window_regions;
  LeavePastRegions(table->num_cached, &table->window_regions);
  return absl::OkStatus();
}

std::vector<int32_t> CanaryEngine::CountHolders() const {
  std::vector<int32_t> holders(layout_.num_blocks, 0);
  for (const CanaryTable& table : tables_) {
    for (int32_t group = 0; group < layout_.num_groups(); ++group) {
      for (const BlockId block : LiveBlocks(table, group)) {
        ++holders[Index(block)];
      }
      const CanaryWindowRegion* const region =
          RegionFrom(table, group, FirstAttended(group, table.length()));
      if (region == nullptr) continue;
      for (const BlockId block : region->layout.blocks()) {
        ++holders[Index(block)];
      }
    }
    if (!table.region.has_value()) continue;
    for (const BlockId block : table.region->blocks()) ++holders[Index(block)];
  }
  return holders;
}

absl::Status CanaryEngine::CheckFresh(const Queued& queued,
                                      BlockId block) const {
  if (Index(block) <= 0 || Index(block) >= layout_.num_blocks) {
    return Wrong("block ", Index(block), " is no block");
  }
  for (const StepId step : queued.in_flight) {
    if (touched_.at(step).contains(block)) {
      return Wrong("block ", Index(block), " is handed out by step ",
                   Index(queued.plan.id), " while step ", Index(step),
                   ", in flight, touches it");
    }
  }
  return absl::OkStatus();
}

absl::Status CanaryEngine::ApplyBlocks(const Queued& queued) {
  const StepPlan& plan = queued.plan;
  std::vector<int32_t> holders = CountHolders();
  // What sequences may yet start on is nobody else's, but for what it has in
  // windows: who starts behind those does not need that.
  for (const auto& [id, region] : regions_) {
    for (const BlockId block : region.layout.blocks()) ++holders[Index(block)];
  }
  for (size_t i = 0; i < plan.slots.size(); ++i) {
    CanaryTable& table = tables_[Index(plan.slots[i])];
    if (!table.open || table.length() != plan.positions[i]) {
      return Wrong("slot ", Index(plan.slots[i]), " has ", table.length(),
                   " tokens, the plan starts at ", plan.positions[i]);
    }
    for (int32_t group = 0; group < layout_.num_groups(); ++group) {
      BM_RETURN_IF_ERROR(AddBlocks(queued, i, group, &holders));
    }
  }
  return absl::OkStatus();
}

absl::Status CanaryEngine::AddBlocks(const Queued& queued, size_t run,
                                     int32_t group,
                                     std::vector<int32_t>* holders) {
  const StepPlan& plan = queued.plan;
  CanaryTable& table = tables_[Index(plan.slots[run])];
  std::vector<BlockId>& own = BlocksOf(&table, group);
  int32_t num_left_out = 0;
  int32_t num_shared = 0;
  if (own.empty()) {
    // A region that it has taken stands for the pages below its cut.
    num_left_out = std::max(
        layout_.FirstPage(group, table.num_cached),
        SwappedCut(table, group, table.num_cached) / layout_.page_size);
    num_shared = group == 0 ? table.num_shared : table.num_shared_windows;
  }
  for (const BlockId block : NewBlocks(plan, run, group)) {
    const int64_t place = std::ssize(own);
    if ((block == kNullBlock) != (place < num_left_out)) {
      return Wrong("slot ", Index(plan.slots[run]), ": page ", place,
                   " of group ", group, " is on block ", Index(block), ", ",
                   num_left_out, " are left out; the null block is no block");
    }
    own.push_back(block);
    if (block == kNullBlock) continue;
    if (place >= num_shared) {  // else its content is checked when it is read
      BM_RETURN_IF_ERROR(CheckFresh(queued, block));
      if ((*holders)[Index(block)] > 0) {
        return Wrong("new block ", Index(block), " is in a table already");
      }
      // What was copied is as sound as its source.
      const bool is_copy =
          std::ranges::any_of(plan.copies,
                              [block](const CopyOnWrite& copy) {
                                return copy.blocks.destination == block;
                              }) ||
          std::ranges::count(plan.transfers_in, block, &BlockTransfer::block) >
              0;
      if (!is_copy) lost_.erase(block);
    }
    ++(*holders)[Index(block)];
  }
  const int32_t cut = group == 0 ? table.cut() : 0;
  const int32_t end = plan.positions[run] + plan.num_tokens[run];
  if (std::ssize(own) != CeilDiv(end - cut, layout_.page_size)) {
    return Wrong("slot ", Index(plan.slots[run]), ": ", own.size(),
                 " blocks of group ", group, " for tokens ", cut, " to ", end);
  }
  return absl::OkStatus();
}

}  // namespace blockmgr
