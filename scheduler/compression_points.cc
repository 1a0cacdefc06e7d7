#include "scheduler/compression_points.h"

#include <algorithm>
#include <cstring>

#include <absl/strings/str_cat.h>

#include "blockmgr/base/bits.h"
#include "blockmgr/eviction/window_eviction.h"

namespace blockmgr {
namespace {

HeadShape ShardShapeOf(const ModelLayout& layout) {
  HeadShape shape = ShapeOf(layout);
  shape.num_heads = layout.shard_heads();
  return shape;
}

// Returns the pages of a shard with budgets per head: the sum over its heads.
int64_t CountExternalPages(const CompressionPoint& point,
                           const ModelLayout& layout, int32_t shard) {
  const int32_t heads = layout.shard_heads();
  const HeadShape row{
      .num_layers = 1, .num_heads = heads, .page_size = layout.page_size};
  int64_t num_pages = 0;
  for (int32_t layer = 0; layer < layout.num_layers; ++layer) {
    num_pages += PageTotalExternal(
        std::span(*point.budgets)
            .subspan(layout.head_index(layer, shard * heads), heads),
        point.policy, row, {.cut = point.cut, .length = point.length});
  }
  return num_pages;
}

// Replaces a budget table by the budgets that it gives, and a protected
// percentage by a number. Page counts and engines then need no table. `range`
// is what the target is measured by: the range of the point, or the range of
// the whole prompt. If `range` is empty, the point stays as it is.
void ResolveTable(const std::shared_ptr<const BudgetTable>& table,
                  const EvictionRange& range, const ModelLayout& layout,
                  CompressionPoint* point) {
  if (range.cut == 0) return;
  ResolveRecent(point->target, range.cut, &point->policy);
  if (!point->policy.needs_table()) return;
  point->budgets = std::make_shared<const std::vector<int32_t>>(TableBudgets(
      point->policy, point->target, ShapeOf(layout), range, *table));
  point->policy.budget = BudgetSpec();
  point->policy.budget.kind = BudgetKind::kExternal;
}

// Returns the fields that all points of an eviction have in common.
CompressionPoint PointOf(const RequestEviction& eviction, int32_t num_prompt) {
  CompressionPoint point;
  point.policy = eviction.policy;
  point.target = eviction.target;
  point.is_shared = eviction.share_prefix;
  point.in_place = eviction.mode == EvictionMode::kEveryChunk;
  if (eviction.mode == EvictionMode::kEveryChunk) {
    point.target.kind = EvictionTarget::Kind::kTokens;
    point.target.tokens = eviction.target.TokensPerHead(num_prompt);
  }
  return point;
}

// Returns the point at `length` tokens of an eviction whose points have the
// fields of `any` in common. The result depends on nothing else.
CompressionPoint PointAt(const CompressionPoint& any,
                         const std::shared_ptr<const BudgetTable>& table,
                         int32_t length, const ModelLayout& layout) {
  CompressionPoint point = any;
  point.length = length;
  point.cut = LargestCut(length, layout.page_size);
  ResolvePoint(table, layout, &point);
  return point;
}

}  // namespace

HeadShape ShapeOf(const ModelLayout& layout) {
  return {.num_layers = layout.num_layers,
          .num_heads = layout.num_heads,
          .page_size = layout.page_size};
}

int32_t LargestCut(int32_t length, int32_t page_size) {
  return (length - 1) / page_size * page_size;
}

int64_t CountPages(const CompressionPoint& point, const ModelLayout& layout) {
  if (point.budgets == nullptr) {
    return PageTotal(point.policy, point.target, ShardShapeOf(layout),
                     {.cut = point.cut, .length = point.length});
  }
  int64_t most = 0;
  for (int32_t shard = 0; shard < layout.num_shards; ++shard) {
    most = std::max(most, CountExternalPages(point, layout, shard));
  }
  return most;
}

std::vector<int64_t> ShardPagesOf(const CompressionPoint& point,
                                  const ModelLayout& layout) {
  std::vector<int64_t> totals;
  if (point.budgets == nullptr || layout.num_shards == 1) return totals;
  for (int32_t shard = 0; shard < layout.num_shards; ++shard) {
    totals.push_back(CountExternalPages(point, layout, shard));
  }
  return totals;
}

void ResolvePoint(const std::shared_ptr<const BudgetTable>& table,
                  const ModelLayout& layout, CompressionPoint* point) {
  ResolveTable(table, {.cut = point->cut, .length = point->length}, layout,
               point);
  point->page_total = point->cut > 0 ? CountPages(*point, layout) : 0;
}

int32_t CountRegionBlocks(const CompressionPoint& point,
                          const ModelLayout& layout) {
  return static_cast<int32_t>(
      CeilDiv<int64_t>(point.page_total, layout.shard_pages_per_block()));
}

int64_t CountGroupPages(const CompressionPoint& point, int32_t group,
                        const ModelLayout& layout) {
  if (layout.kind_of(group) == GroupKind::kFull) return point.page_total;
  const int32_t window = layout.window_of(group);
  if (!point.target.evicts_in_windows() ||
      !WindowEviction::IsCovered(window, point.cut, point.length)) {
    return 0;
  }
  const WindowEviction eviction =
      WindowEviction::Of(point.policy, window, point.cut, point.length);
  return PageTotal(eviction.policy, point.target.InWindow(),
                   ShardShapeOf(layout), eviction.range);
}

int32_t CountWindowRegionBlocks(const CompressionPoint& point,
                                const ModelLayout& layout) {
  if (!point.target.evicts_in_windows()) return 0;
  int32_t num_blocks = 0;
  for (int32_t group = 1; group < layout.num_groups(); ++group) {
    // The range is as long as the window, with one token behind it. No real
    // range is longer or protects more.
    const int32_t window = layout.window_of(group);
    const int64_t num_pages =
        PageTotal(point.policy, point.target.InWindow(), ShardShapeOf(layout),
                  {.cut = window, .length = window + 1});
    num_blocks += static_cast<int32_t>(
        CeilDiv<int64_t>(num_pages, layout.shard_pages_per_block()));
  }
  return num_blocks;
}

std::vector<CompressionPoint> PlanCompressions(const RequestEviction& eviction,
                                               int32_t num_prompt,
                                               const ModelLayout& layout) {
  std::vector<CompressionPoint> points;
  const int32_t last_cut = LargestCut(num_prompt, layout.page_size);
  const bool plans = eviction.mode != EvictionMode::kNone &&
                     eviction.mode != EvictionMode::kPressure;
  if (!plans || last_cut == 0) return points;
  // The block behind the cut of a shared region is shared, too. So the block
  // must be full and before the last token, which every request computes
  // itself.
  const int32_t multiple = std::max(eviction.share_multiple, layout.page_size);
  const int32_t last = eviction.share_prefix
                           ? (num_prompt - 1) / multiple * multiple
                           : num_prompt;
  if (last == 0) return points;
  const int32_t step = eviction.mode == EvictionMode::kEveryChunk
                           ? eviction.compress_every
                           : last;
  // A table gives the budgets of the whole prompt. If the prefix is shared, the
  // table gives the budgets of each length, so that all requests agree on them.
  const CompressionPoint any = PointOf(eviction, num_prompt);
  CompressionPoint point = any;
  if (!eviction.share_prefix) {
    ResolveTable(eviction.table, {.cut = last_cut, .length = num_prompt},
                 layout, &point);
  }
  for (int32_t length = std::min(step, last);;
       length += std::min(step, last - length)) {
    if (eviction.share_prefix) {
      point = PointAt(any, eviction.table, length, layout);
    } else {
      point.length = length;
      point.cut = LargestCut(length, layout.page_size);
      ResolvePoint(nullptr, layout, &point);
    }
    if (point.cut > 0 &&
        CountRegionBlocks(point, layout) < point.cut / layout.page_size) {
      points.push_back(point);
    }
    if (length == last) return points;
  }
}

SharedCompression ShareCompression(const RequestEviction& eviction,
                                   int32_t num_prompt,
                                   const ModelLayout& layout) {
  SharedCompression sharing;
  sharing.point = PointOf(eviction, num_prompt);
  const EvictionTarget& target = sharing.point.target;
  sharing.table = eviction.table;
  sharing.plan = FormatPolicy(eviction.policy);
  if (eviction.policy.needs_table()) {
    absl::StrAppend(&sharing.plan, " ", TableFingerprint(*eviction.table));
  }
  if (target.kind == EvictionTarget::Kind::kTokens) {
    absl::StrAppend(&sharing.plan, " tokens ", target.tokens);
  } else {
    absl::StrAppend(&sharing.plan, " ratio ", target.ratio.ToString());
  }
  if (target.evicts_in_windows()) {
    absl::StrAppend(&sharing.plan, " windows ",
                    target.window_keep_ratio.ToString());
  }
  // A prefix that was compressed less often took more blocks to make than
  // another request may ever get.
  if (eviction.mode == EvictionMode::kEveryChunk) {
    absl::StrAppend(&sharing.plan, " every ", eviction.compress_every);
  }
  // A prefix that was compressed at other lengths is not shared either. A
  // request that starts with it leaves out its own earlier compressions, and
  // may not fit without them.
  absl::StrAppend(&sharing.plan, " multiple of ",
                  std::max(eviction.share_multiple, layout.page_size));
  return sharing;
}

bool HasNextPoint(int32_t last_length, const EvictionPlan& plan) {
  // Nothing is computed after the last length.
  return plan.decode != nullptr &&
         NextLength(*plan.decode, plan.decode->LastLength(plan.compressions)) <
             last_length;
}

void ListNextPoint(int32_t last_length, const ModelLayout& layout,
                   EvictionPlan* plan) {
  if (!HasNextPoint(last_length, *plan)) return;
  std::vector<CompressionPoint>& points = plan->compressions;
  points.push_back(
      NextPoint(*plan->decode, plan->decode->LastLength(points), layout));
}

void ListFirstPoint(int32_t last_length, const ModelLayout& layout,
                    EvictionPlan* plan) {
  // A fork lists one point more than its parent, so that a point is to come
  // wherever the fork starts, even if the parent has ended.
  ListNextPoint(last_length, layout, plan);
  if (plan->compressions.empty() && plan->squeeze == nullptr) {
    plan->scorer_state = ScorerState::kNone;
  }
}

int32_t EvictionPlan::NextAfter(int32_t length) const {
  const auto next = std::ranges::upper_bound(compressions, length, {},
                                             &CompressionPoint::length);
  return static_cast<int32_t>(next - compressions.begin());
}

int32_t EvictionPlan::MaxCachedTokens(int64_t num_tokens,
                                      int32_t length) const {
  // Scores are accumulated from the first token on, so all tokens are computed.
  if (scorer_state != ScorerState::kNone) return 0;
  int32_t limit = static_cast<int32_t>(num_tokens) - 1;
  for (const CompressionPoint& point : compressions) {
    if (point.length <= length) continue;
    limit = std::min(limit,
                     point.length - std::max(1, point.policy.query_window()));
  }
  return std::max(limit, 0);
}

int32_t EvictionPlan::CountQueriesKept(int32_t least) const {
  int32_t num_queries = least;
  for (const CompressionPoint& point : compressions) {
    num_queries = std::max(num_queries, point.policy.query_window());
  }
  if (squeeze != nullptr) {
    num_queries = std::max(num_queries, squeeze->policy.query_window());
  }
  return num_queries;
}

CompressionPoint SharedPointAt(const SharedCompression& sharing, int32_t length,
                               const ModelLayout& layout) {
  return PointAt(sharing.point, sharing.table, length, layout);
}

std::string EncodeHistory(std::span<const CompressionPoint> points) {
  std::string history;
  history.reserve(points.size() * sizeof(int32_t));
  AppendHistory(points, &history);
  return history;
}

void AppendHistory(std::span<const CompressionPoint> points,
                   std::string* history) {
  for (const CompressionPoint& point : points) {
    char bytes[sizeof point.length];
    std::memcpy(bytes, &point.length, sizeof bytes);
    history->append(bytes, sizeof bytes);
  }
}

std::vector<int32_t> DecodeHistory(absl::string_view history) {
  std::vector<int32_t> lengths(history.size() / sizeof(int32_t));
  if (!lengths.empty()) {
    std::memcpy(lengths.data(), history.data(),
                lengths.size() * sizeof(int32_t));
  }
  return lengths;
}

int32_t NextLength(const DecodeCompression& decode, int32_t length) {
  const int64_t num_past =
      std::max(0, length - decode.begin) / decode.every + 1;
  return static_cast<int32_t>(
      std::min<int64_t>(decode.begin + num_past * decode.every, INT32_MAX));
}

CompressionPoint NextPoint(const DecodeCompression& decode, int32_t length,
                           const ModelLayout& layout) {
  return PointAt(decode.point, decode.table, NextLength(decode, length),
                 layout);
}

bool KnowsTotals(const BudgetTable* table, const EvictionPolicy& policy,
                 const ModelLayout& layout) {
  return table == nullptr ||
         (layout.num_shards == 1 && policy.rounding == Rounding::kPage);
}

CompressionPoint UndividedPointAt(const DecodeCompression& decode,
                                  int32_t length, const ModelLayout& layout) {
  CompressionPoint point = decode.point;
  if (decode.table != nullptr) {
    point.policy.budget = BudgetSpec();
    point.policy.budget.kind = BudgetKind::kGlobal;
  }
  return PointAt(point, nullptr, length, layout);
}

std::unique_ptr<const DecodeCompression> DecodeCompressionOf(
    const RequestEviction& eviction, int32_t num_prompt, int32_t end,
    const ModelLayout& layout) {
  if (eviction.mode != EvictionMode::kDecode) return nullptr;
  DecodeCompression decode;
  decode.point.policy = eviction.policy;
  decode.point.target = eviction.target;
  decode.table = eviction.table;
  decode.begin = num_prompt;
  decode.every = eviction.compress_every;
  return WithEnd(decode, end, layout);
}

std::unique_ptr<const DecodeCompression> WithEnd(
    const DecodeCompression& decode, int32_t end, const ModelLayout& layout) {
  auto longer = std::make_unique<DecodeCompression>(decode);
  longer->end = std::max(decode.end, end);
  if (KnowsTotals(decode.table.get(), decode.point.policy, layout)) {
    return longer;
  }
  for (int32_t length = NextLength(decode, decode.end); length <= end;
       length = NextLength(decode, length)) {
    longer->region_blocks = std::max(
        longer->region_blocks,
        CountRegionBlocks(NextPoint(decode, length - 1, layout), layout));
  }
  return longer;
}

}  // namespace blockmgr
