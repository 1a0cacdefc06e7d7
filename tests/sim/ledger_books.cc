#include "tests/sim/ledger_books.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "blockmgr/base/bits.h"

namespace blockmgr::sim {

LedgerBooks::LedgerBooks(const ModelLayout& model_layout,
                         const SchedulerOptions& scheduler_options,
                         bool engine_replays, Report* run_report)
    : layout(model_layout),
      rules(model_layout),
      options(scheduler_options),
      replays(engine_replays),
      report(run_report),
      blocks(model_layout.num_blocks),
      host_fences(scheduler_options.engine.num_host_blocks, 0) {}

const LedgerRequest* LedgerBooks::FindLive(const std::string& name) const {
  const auto id = names.find(name);
  return id == names.end() ? nullptr : &requests.at(id->second);
}

const LedgerTable* LedgerBooks::Find(const LedgerStep::Run& run) const {
  const auto found = tables.find(run.slot);
  if (found == tables.end() || found->second.stay != run.stay) return nullptr;
  return &found->second;
}

LedgerTable* LedgerBooks::Find(const LedgerStep::Run& run) {
  return const_cast<LedgerTable*>(std::as_const(*this).Find(run));
}

int64_t LedgerBooks::CountQueuedTokens() const {
  int64_t num_tokens = 0;
  for (const auto& [name, id] : names) {
    const LedgerRequest& served = requests.at(id);
    if (served.num_cached < 0) num_tokens += served.num_prompt();
  }
  return num_tokens;
}

int32_t LedgerBooks::CountHolders(BlockId block) const {
  int32_t count = 0;
  for (const auto& [slot, table] : tables) {
    count += static_cast<int32_t>(table.Blocks().count(block));
  }
  return count;
}

bool LedgerBooks::CanGoOn(const LedgerTable& table, int32_t length) const {
  for (int32_t group = 0; group < layout.num_groups(); ++group) {
    if (!rules.CanGoOn(table.groups[group], group, length)) return false;
  }
  return true;
}

std::optional<std::string> LedgerBooks::ContextAt(const LedgerTable& table,
                                                  int32_t begin) const {
  std::string found;
  for (const auto& [length, context] : table.contexts) {
    if (length >= begin + layout.page_size) break;
    if (length > begin) return std::nullopt;
    found = context;
  }
  return found;
}

LedgerPeaks LedgerBooks::PeaksOf(const Request& request,
                                 const EvictionTarget& target) const {
  const bool has_window_regions = target.evicts_in_windows();
  const int32_t length =
      static_cast<int32_t>(request.prompt.size()) + request.max_tokens - 1;
  const int32_t all = CeilDiv(length, layout.page_size);
  // A request without windows has all pages. Submit refuses too long requests
  // anyway.
  LedgerPeaks peaks{.least = all, .most = all};
  if (!layout.has_windows() || length > options.max_model_len) return peaks;
  peaks = {};
  for (int32_t i = 0; i < length; ++i) {
    int32_t num_blocks = 0;
    for (int32_t group = 0; group < layout.num_groups(); ++group) {
      num_blocks +=
          CeilDiv(i + 1, layout.page_size) - rules.FirstPage(group, i);
    }
    peaks.least = std::max(peaks.least, num_blocks);
  }
  for (int32_t group = 0; group < layout.num_groups(); ++group) {
    // No step computes more than max_num_batched_tokens tokens of one request.
    // The tokens may begin inside of a page, which makes one page more.
    const int32_t window = layout.window_of(group);
    const int32_t tokens = window + options.max_num_batched_tokens;
    const int32_t num_pages = CeilDiv(tokens - 1, layout.page_size) + 1;
    // A region stays as a whole, beside what the window holds without it.
    const int32_t most = (has_window_regions ? 2 : 1) * num_pages;
    peaks.most += window == 0 ? all : std::min(all, most);
  }
  return peaks;
}

void LedgerBooks::Release(BlockId block) {
  blocks[Index(block)].fence = dispatched;
}

void LedgerBooks::CloseTable(SequenceSlot slot) {
  const auto node = tables.extract(slot);
  for (const BlockId block : node.mapped().Blocks()) Release(block);
  LedgerRequest& served = requests.at(node.mapped().request);
  served.slot = kNoSequenceSlot;
  served.num_placeholders = 0;
  served.num_ready = 0;
  unannounced.insert(slot);
}

void LedgerBooks::CutTables(int32_t length, LedgerTable* table) {
  for (GroupBook& book : table->groups) {
    for (const BlockId block : rules.CutBack(length, &book)) Release(block);
  }
}

void LedgerBooks::TakeFresh(BlockId block) {
  if (Index(block) <= 0 || Index(block) >= layout.num_blocks) {
    Fail("block ", Index(block), " is handed out");
    return;
  }
  const uint64_t fence = blocks[Index(block)].fence;
  const int32_t num_holders = CountHolders(block);
  if (num_holders > 0 || fence > acknowledged) {
    Fail("block ", Index(block), " is handed out with ", num_holders,
         " holders, released while step ", fence,
         " was in flight; answered so far: ", acknowledged);
  }
  blocks[Index(block)] = LedgerBlock{};
  OverwriteRegions(block);
}

void LedgerBooks::OverwriteRegions(BlockId block) {
  for (auto& [id, region] : regions) {
    for (int32_t group = 0; group < layout.num_groups(); ++group) {
      const std::vector<BlockId>& own = region.regions[group].blocks;
      if (std::ranges::count(own, block) == 0) continue;
      region.gone.insert(group);
      if (group > 0) continue;
      Fail("block ", Index(block), " of region ", Index(id), " is handed out");
    }
  }
}

void LedgerBooks::LoseRegions(absl::FunctionRef<bool(BlockId)> is_lost) {
  for (auto& [id, region] : regions) {
    for (int32_t group = 0; group < layout.num_groups(); ++group) {
      const std::vector<BlockId>& own = region.regions[group].blocks;
      if (std::ranges::any_of(own, is_lost)) region.gone.insert(group);
    }
    if (region.gone.contains(0)) lost_regions.insert(id);
  }
  std::erase_if(regions, [](const auto& region) {
    return region.second.gone.contains(0);
  });
}

}  // namespace blockmgr::sim
