#include "scheduler/footprint.h"

#include <algorithm>

#include "blockmgr/base/bits.h"

namespace blockmgr {

HeadShape ShapeOf(const ModelLayout& layout) {
  return {.num_layers = layout.num_layers,
          .num_heads = layout.num_heads,
          .page_size = layout.page_size};
}

int32_t LargestCut(int32_t length, int32_t page_size) {
  return (length - 1) / page_size * page_size;
}

int64_t PagesOf(const CompressionPoint& point, const ModelLayout& layout) {
  const EvictionRange range{.cut = point.cut, .length = point.length};
  if (point.budgets != nullptr) {
    return PageTotalExternal(*point.budgets, point.policy, ShapeOf(layout),
                             range);
  }
  return PageTotal(point.policy, point.target, ShapeOf(layout), range);
}

int32_t RegionBlocks(const CompressionPoint& point, const ModelLayout& layout) {
  return static_cast<int32_t>(
      CeilDiv<int64_t>(PagesOf(point, layout), layout.pages_per_block()));
}

void ResolveTable(const std::shared_ptr<const BudgetTable>& table,
                  const EvictionRange& range, const ModelLayout& layout,
                  CompressionPoint* point) {
  if (!point->policy.needs_table()) return;
  point->budgets = std::make_shared<const std::vector<int32_t>>(TableBudgets(
      point->policy, point->target, ShapeOf(layout), range, *table));
  point->policy.budget = BudgetSpec();
  point->policy.budget.kind = BudgetKind::kExternal;
}

std::vector<CompressionPoint> PlanCompressions(const RequestEviction& eviction,
                                               int32_t num_prompt,
                                               const ModelLayout& layout) {
  std::vector<CompressionPoint> points;
  const int32_t last_cut = LargestCut(num_prompt, layout.page_size);
  if (eviction.mode == EvictionMode::kNone || last_cut == 0) return points;
  CompressionPoint point;
  point.policy = eviction.policy;
  point.target = eviction.target;
  int32_t step = num_prompt;
  if (eviction.mode == EvictionMode::kEveryChunk) {
    step = eviction.compress_every;
    point.target.kind = EvictionTarget::Kind::kTokens;
    point.target.tokens = eviction.target.TokensPerHead(num_prompt);
  }
  ResolveTable(eviction.table, {.cut = last_cut, .length = num_prompt}, layout,
               &point);
  for (int32_t length = std::min(step, num_prompt);;
       length += std::min(step, num_prompt - length)) {
    point.length = length;
    point.cut = LargestCut(length, layout.page_size);
    if (point.cut > 0 &&
        RegionBlocks(point, layout) < point.cut / layout.page_size) {
      points.push_back(point);
    }
    if (length == num_prompt) return points;
  }
}

namespace {

// A sequence that computes on: its region, then whole blocks from `cut` on.
struct Holding {
  int32_t region = 0;  // blocks
  int32_t cut = 0;
};

// Blocks at the peak until `length` positions are computed.
int32_t PeakFrom(Holding now, int32_t length,
                 std::span<const CompressionPoint> compressions,
                 const ModelLayout& layout) {
  const int32_t page_size = layout.page_size;
  int32_t peak = 0;
  for (const CompressionPoint& point : compressions) {
    if (point.length > length) break;
    peak =
        std::max(peak, now.region + CeilDiv(point.length - now.cut, page_size));
    const int32_t next = RegionBlocks(point, layout);
    if (next >= now.region + (point.cut - now.cut) / page_size) continue;
    now = {.region = next, .cut = point.cut};
  }
  return std::max(peak, now.region + CeilDiv(length - now.cut, page_size));
}

}  // namespace

int32_t PeakBlocks(int32_t length,
                   std::span<const CompressionPoint> compressions,
                   const ModelLayout& layout) {
  return PeakFrom({}, length, compressions, layout);
}

int32_t RemainingBlocks(const RequestState& request,
                        const SequenceCache& sequence, int32_t length,
                        const ModelLayout& layout) {
  Holding now{.cut = sequence.cut()};
  if (sequence.pending.has_value()) {
    now.cut = sequence.pending->cut;
    now.region = static_cast<int32_t>(sequence.pending->destinations.size());
  } else if (sequence.region != nullptr) {
    now.region = static_cast<int32_t>(sequence.region->blocks.size());
  }
  if (length <= sequence.num_reserved) return 0;
  const int32_t held =
      now.region + CeilDiv(sequence.num_reserved - now.cut, layout.page_size);
  const auto to_come = std::span<const CompressionPoint>(request.compressions)
                           .subspan(request.next_compression);
  return std::max(0, PeakFrom(now, length, to_come, layout) - held);
}

}  // namespace blockmgr
