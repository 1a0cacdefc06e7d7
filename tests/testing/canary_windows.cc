// Layer groups: their tables, and what of these their windows still reach.

#include <algorithm>

#include "blockmgr/base/bits.h"
#include "blockmgr/base/status_macros.h"
#include "tests/testing/canary_engine.h"

namespace blockmgr {

std::vector<BlockId>& CanaryEngine::BlocksOf(CanaryTable* table,
                                             int32_t group) {
  return group == 0 ? table->tail : table->windows.at(group - 1);
}

const std::vector<BlockId>& CanaryEngine::BlocksOf(const CanaryTable& table,
                                                   int32_t group) {
  return group == 0 ? table.tail : table.windows.at(group - 1);
}

std::span<const BlockId> CanaryEngine::NewBlocks(const StepPlan& plan,
                                                 size_t run,
                                                 int32_t group) const {
  if (group == 0) {
    return std::span(plan.blocks)
        .subspan(plan.block_offsets[run],
                 plan.block_offsets[run + 1] - plan.block_offsets[run]);
  }
  const size_t place = run * layout_.group_windows.size() + group - 1;
  return std::span(plan.window_blocks)
      .subspan(plan.window_offsets[place],
               plan.window_offsets[place + 1] - plan.window_offsets[place]);
}

int32_t CanaryEngine::FirstRead(const CanaryTable& table, int32_t group) const {
  const int32_t window = layout_.window_of(group);
  return window == 0 ? 0 : std::max(0, table.first_query + 1 - window);
}

std::span<const BlockId> CanaryEngine::LiveBlocks(const CanaryTable& table,
                                                  int32_t group) const {
  if (table.windows.empty() && group > 0) return {};  // not in use
  const std::span<const BlockId> blocks = BlocksOf(table, group);
  // A start may not have any blocks yet.
  return blocks.subspan(std::min<size_t>(
      layout_.FirstPage(group, table.length() + 1), blocks.size()));
}

std::span<const BlockId> CanaryEngine::ReadBlocks(const CanaryTable& table,
                                                  int32_t group) const {
  if (table.windows.empty() && group > 0) return {};  // not in use
  const std::span<const BlockId> blocks = BlocksOf(table, group);
  return blocks.subspan(std::min<size_t>(
      FirstRead(table, group) / layout_.page_size, blocks.size()));
}

std::vector<BlockId> CanaryEngine::PagesOf(const CanaryTable& table,
                                           int32_t group,
                                           int32_t length) const {
  const std::vector<BlockId>& blocks = BlocksOf(table, group);
  if (group == 0) {
    return {blocks.begin() + layout_.FirstPage(group, length),
            blocks.begin() + CeilDiv(length - table.cut(), layout_.page_size)};
  }
  return {blocks.begin() +
              std::max(layout_.FirstPage(group, length),
                       SwappedCut(table, group, length) / layout_.page_size),
          blocks.begin() + CeilDiv(length, layout_.page_size)};
}

absl::Status CanaryEngine::ReadWindow(const CanaryTable& table,
                                      int32_t group) const {
  const std::vector<BlockId>& blocks = BlocksOf(table, group);
  const int32_t first = FirstRead(table, group);
  const CanaryWindowRegion* const region = RegionFrom(table, group, first);
  if (region != nullptr) BM_RETURN_IF_ERROR(ReadRegion(table, group));
  const int32_t begin = region == nullptr ? first : region->layout.cut();
  for (int32_t p = begin; p < table.length(); ++p) {
    const BlockId block = blocks[p / layout_.page_size];
    if (block == kNullBlock) {
      return Wrong("request ", Index(table.request), " reads position ", p,
                   " of group ", group, ", which was left out");
    }
    for (int32_t h = 0; h < layout_.pages_per_block(); ++h) {
      const PageId page =
          layout_.page_id(h / layout_.num_heads, block, h % layout_.num_heads);
      BM_RETURN_IF_ERROR(CheckTag(table, group, h, p,
                                  layout_.slot(page, p % layout_.page_size)));
    }
  }
  return absl::OkStatus();
}

void CanaryEngine::Touch(const CanaryTable& table, StepId step) {
  absl::flat_hash_set<BlockId>& touched = touched_[step];
  for (int32_t group = 0; group < layout_.num_groups(); ++group) {
    const std::span<const BlockId> blocks = ReadBlocks(table, group);
    touched.insert(blocks.begin(), blocks.end());
    const CanaryWindowRegion* const region =
        RegionFrom(table, group, FirstRead(table, group));
    if (region == nullptr) continue;
    touched.insert(region->layout.blocks().begin(),
                   region->layout.blocks().end());
  }
  if (!table.region.has_value()) return;
  touched.insert(table.region->blocks().begin(), table.region->blocks().end());
}

void CanaryEngine::CutTables(int32_t length, CanaryTable* table) const {
  const int32_t page_size = layout_.page_size;
  table->tail.resize(CeilDiv(length - table->cut(), page_size));
  for (std::vector<BlockId>& blocks : table->windows) {
    blocks.resize(CeilDiv(length, page_size));
  }
}

absl::Status CanaryEngine::CheckSourceWindows(
    const CanaryTable& source, const SequenceStart& start) const {
  for (int32_t group = 0; group < layout_.num_groups(); ++group) {
    // Who starts one token before what the source has settled may lack a page
    // that it does not need.
    const int32_t num_tokens = start.num_cached_tokens;
    const int32_t needed = CeilDiv(num_tokens, layout_.page_size) -
                           layout_.FirstPage(group, num_tokens + 1);
    std::vector<BlockId> pages = PagesOf(source, group, num_tokens);
    if (std::ssize(pages) > needed) {
      pages.erase(pages.begin(), pages.end() - needed);
    }
    if (std::ranges::count(pages, kNullBlock) == 0) {
      continue;
    }
    return Wrong("slot ", Index(start.slot), " starts with ",
                 start.num_cached_tokens, " tokens of slot ",
                 Index(start.source), ", which has not all pages of group ",
                 group);
  }
  return absl::OkStatus();
}

}  // namespace blockmgr
