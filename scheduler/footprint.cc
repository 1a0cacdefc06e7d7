#include "scheduler/footprint.h"

#include <algorithm>
#include <cstring>

#include <absl/strings/str_cat.h>

#include "blockmgr/base/bits.h"
#include "blockmgr/base/check.h"
#include "blockmgr/eviction/window_eviction.h"

namespace blockmgr {

HeadShape ShapeOf(const ModelLayout& layout) {
  return {.num_layers = layout.num_layers,
          .num_heads = layout.num_heads,
          .page_size = layout.page_size};
}

int32_t LargestCut(int32_t length, int32_t page_size) {
  return (length - 1) / page_size * page_size;
}

namespace {

HeadShape ShardShapeOf(const ModelLayout& layout) {
  HeadShape shape = ShapeOf(layout);
  shape.num_heads = layout.shard_heads();
  return shape;
}

// By budgets per head: what the shard's own add up to.
int64_t ExternalPages(const CompressionPoint& point, const ModelLayout& layout,
                      int32_t shard) {
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

}  // namespace

int64_t PagesOf(const CompressionPoint& point, const ModelLayout& layout) {
  if (point.budgets == nullptr) {
    return PageTotal(point.policy, point.target, ShardShapeOf(layout),
                     {.cut = point.cut, .length = point.length});
  }
  int64_t most = 0;
  for (int32_t shard = 0; shard < layout.num_shards; ++shard) {
    most = std::max(most, ExternalPages(point, layout, shard));
  }
  return most;
}

std::vector<int64_t> ShardPagesOf(const CompressionPoint& point,
                                  const ModelLayout& layout) {
  std::vector<int64_t> totals;
  if (point.budgets == nullptr || layout.num_shards == 1) return totals;
  for (int32_t shard = 0; shard < layout.num_shards; ++shard) {
    totals.push_back(ExternalPages(point, layout, shard));
  }
  return totals;
}

int32_t RegionBlocks(const CompressionPoint& point, const ModelLayout& layout) {
  return static_cast<int32_t>(
      CeilDiv<int64_t>(point.page_total, layout.shard_pages_per_block()));
}

int64_t WindowPagesOf(const CompressionPoint& point, int32_t group,
                      const ModelLayout& layout) {
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

int32_t WindowRegionBlocks(const CompressionPoint& point,
                           const ModelLayout& layout) {
  if (!point.target.evicts_in_windows()) return 0;
  int32_t num_blocks = 0;
  for (int32_t group = 1; group < layout.num_groups(); ++group) {
    // A range as long as the window, with one token behind it, is longer than
    // any, and protects more.
    const int32_t window = layout.window_of(group);
    const int64_t num_pages =
        PageTotal(point.policy, point.target.InWindow(), ShardShapeOf(layout),
                  {.cut = window, .length = window + 1});
    num_blocks += static_cast<int32_t>(
        CeilDiv<int64_t>(num_pages, layout.shard_pages_per_block()));
  }
  return num_blocks;
}

namespace {

// headkv and lukv become budgets of a caller: neither page counts nor engines
// need the table. `range` is what the target is measured by; where it covers
// nothing, nothing is evicted, and the point stays as it is.
void ResolveTable(const std::shared_ptr<const BudgetTable>& table,
                  const EvictionRange& range, const ModelLayout& layout,
                  CompressionPoint* point) {
  if (!point->policy.needs_table() || range.cut == 0) return;
  point->budgets = std::make_shared<const std::vector<int32_t>>(TableBudgets(
      point->policy, point->target, ShapeOf(layout), range, *table));
  point->policy.budget = BudgetSpec();
  point->policy.budget.kind = BudgetKind::kExternal;
}

}  // namespace

void ResolvePoint(const std::shared_ptr<const BudgetTable>& table,
                  const ModelLayout& layout, CompressionPoint* point) {
  ResolveTable(table, {.cut = point->cut, .length = point->length}, layout,
               point);
  point->page_total = point->cut > 0 ? PagesOf(*point, layout) : 0;
}

namespace {

// What all points of an eviction have in common.
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

// Of points that have `any` in common, the one when `length` tokens are
// computed; what its table says depends on nothing else.
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

std::vector<CompressionPoint> PlanCompressions(const RequestEviction& eviction,
                                               int32_t num_prompt,
                                               const ModelLayout& layout) {
  std::vector<CompressionPoint> points;
  const int32_t last_cut = LargestCut(num_prompt, layout.page_size);
  const bool plans = eviction.mode != EvictionMode::kNone &&
                     eviction.mode != EvictionMode::kPressure;
  if (!plans || last_cut == 0) return points;
  // The block after the cut of a shared region is shared with it: a whole one,
  // and before the last token, which every request computes itself.
  const int32_t multiple = std::max(eviction.share_multiple, layout.page_size);
  const int32_t last = eviction.share_prefix
                           ? (num_prompt - 1) / multiple * multiple
                           : num_prompt;
  if (last == 0) return points;
  const int32_t step = eviction.mode == EvictionMode::kEveryChunk
                           ? eviction.compress_every
                           : last;
  // Budgets by a table are those of the whole prompt, or, where others are to
  // agree on them, of each length.
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
        RegionBlocks(point, layout) < point.cut / layout.page_size) {
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
    absl::StrAppend(&sharing.plan, " windows ", target.window_ratio.ToString());
  }
  // A prefix that was compressed less often than every so many tokens took more
  // blocks to make than its sharer may ever get.
  if (eviction.mode == EvictionMode::kEveryChunk) {
    absl::StrAppend(&sharing.plan, " every ", eviction.compress_every);
  }
  // Nor one that was compressed at other lengths: its sharer leaves out what
  // would have come before of its own, and that may be what makes it fit.
  absl::StrAppend(&sharing.plan, " multiple of ",
                  std::max(eviction.share_multiple, layout.page_size));
  return sharing;
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

namespace {

// INT32_MAX: beyond every request.
int32_t NextLength(const DecodeCompression& decode, int32_t length) {
  const int64_t num_past =
      std::max(0, length - decode.begin) / decode.every + 1;
  return static_cast<int32_t>(
      std::min<int64_t>(decode.begin + num_past * decode.every, INT32_MAX));
}

// With whole pages and one shard a table only divides a total that is known
// without it.
bool KnowsTotals(const DecodeCompression& decode, const ModelLayout& layout) {
  return decode.table == nullptr ||
         (layout.num_shards == 1 &&
          decode.point.policy.rounding == Rounding::kPage);
}

// NextPoint, but for the division. REQUIRES: KnowsTotals.
CompressionPoint UndividedPointAt(const DecodeCompression& decode,
                                  int32_t length, const ModelLayout& layout) {
  CompressionPoint point = decode.point;
  if (decode.table != nullptr) {
    point.policy.budget = BudgetSpec();
    point.policy.budget.kind = BudgetKind::kGlobal;
  }
  return PointAt(point, nullptr, length, layout);
}

}  // namespace

CompressionPoint NextPoint(const DecodeCompression& decode, int32_t length,
                           const ModelLayout& layout) {
  return PointAt(decode.point, decode.table, NextLength(decode, length),
                 layout);
}

std::unique_ptr<const DecodeCompression> WithEnd(
    const DecodeCompression& decode, int32_t end, const ModelLayout& layout) {
  auto longer = std::make_unique<DecodeCompression>(decode);
  longer->end = std::max(decode.end, end);
  if (KnowsTotals(decode, layout)) return longer;
  for (int32_t length = NextLength(decode, decode.end); length <= end;
       length = NextLength(decode, length)) {
    longer->region_blocks =
        std::max(longer->region_blocks,
                 RegionBlocks(NextPoint(decode, length - 1, layout), layout));
  }
  return longer;
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

namespace {

// A sequence on its way: what it holds, and has held at most.
class Walk {
 public:
  Walk(const ModelLayout& layout, Holding now) : layout_(layout), now_(now) {}

  void ComputeUntil(int32_t length) {
    peak_ = std::max(peak_, now_.region_blocks +
                                CeilDiv(length - now_.cut, layout_.page_size));
  }
  // In place of what is below its cut, as far as that frees blocks. A region
  // that reaches as far already (a command has made it) is not made anew.
  void Compress(int32_t cut, int32_t region_blocks) {
    if (cut <= now_.cut) return;
    const int32_t below =
        now_.region_blocks + (cut - now_.cut) / layout_.page_size;
    if (region_blocks < below) {
      now_ = {.region_blocks = region_blocks, .cut = cut};
    }
  }
  void Compress(const CompressionPoint& point) {
    Compress(point.cut, RegionBlocks(point, layout_));
  }
  int32_t peak() const { return peak_; }

 private:
  const ModelLayout& layout_;
  Holding now_;
  int32_t peak_ = 0;
};

// The points of `decode` in (begin, end]. Nothing goes before something is not
// protected. From there on totals only grow from one to the next, and intervals
// are whole pages: what is held between the last two is not exceeded between
// any others. (A region may even be smaller: when a point has nothing to free,
// the one before is kept. That is not followed.) Where a table decides the
// total, all regions count as the largest: where that frees nothing, what is
// held is no more than it.
void WalkDecode(const DecodeCompression& decode, int32_t begin, int32_t end,
                const ModelLayout& layout, Walk* walk) {
  const int32_t first = NextLength(
      decode, std::max(begin, decode.point.policy.protected_recent()));
  if (first > end) return;
  const bool knows_totals = KnowsTotals(decode, layout);
  BM_CHECK(knows_totals || end <= decode.end);
  const auto compress_at = [&](int32_t length) {
    if (knows_totals) {
      walk->Compress(UndividedPointAt(decode, length, layout));
    } else {
      walk->Compress(LargestCut(length, layout.page_size),
                     decode.region_blocks);
    }
  };
  walk->ComputeUntil(first);
  compress_at(first);
  const int32_t num_more = (end - first) / decode.every;
  if (num_more == 0) return;
  const int32_t last = first + num_more * decode.every;
  if (num_more > 1) compress_at(last - decode.every);
  walk->ComputeUntil(last);
  compress_at(last);
}

// What a group with a window holds at most: the pages that so many tokens,
// those of the window and a chunk, are in, wherever the first page begins.
int32_t WindowPeak(int32_t length, int32_t chunk, int32_t group,
                   const ModelLayout& layout) {
  const int64_t tokens = int64_t{layout.window_of(group)} + chunk;
  return static_cast<int32_t>(
      std::min<int64_t>(CeilDiv(length, layout.page_size),
                        CeilDiv<int64_t>(tokens - 1, layout.page_size) + 1));
}

// The same of all of them, beside regions of so many blocks. These stand for
// more pages than they have blocks, so there are never more than without any
// window.
int32_t WindowPeaks(int32_t length, int32_t chunk, int32_t region_blocks,
                    const ModelLayout& layout) {
  int32_t num_blocks = region_blocks;
  for (int32_t group = 1; group < layout.num_groups(); ++group) {
    num_blocks += WindowPeak(length, chunk, group, layout);
  }
  return std::min(num_blocks, layout.num_window_groups() *
                                  CeilDiv(length, layout.page_size));
}

}  // namespace

int32_t PeakBlocks(int32_t length, int32_t chunk,
                   std::span<const CompressionPoint> compressions,
                   const ModelLayout& layout, Holding now,
                   const DecodeCompression* decode,
                   const EvictionCommand* squeeze) {
  Walk walk(layout, now);
  for (const CompressionPoint& point : compressions) {
    if (point.length > length) break;
    walk.ComputeUntil(point.length);
    walk.Compress(point);
  }
  if (decode != nullptr) {
    WalkDecode(*decode, decode->LastLength(compressions), length, layout,
               &walk);
  }
  walk.ComputeUntil(length);
  if (layout.window > 0) return WindowPeak(length, chunk, 0, layout);
  // All points of a request ask the same of windows, or nothing. Where there
  // are regions to come, there is room for those that are.
  const auto evicts = [](const CompressionPoint& point) {
    return point.target.evicts_in_windows();
  };
  int32_t in_regions = now.window_region_blocks;
  const auto point = std::ranges::find_if(compressions, evicts);
  if (point != compressions.end()) {
    in_regions = WindowRegionBlocks(*point, layout);
  } else if (decode != nullptr && evicts(decode->point)) {
    in_regions = WindowRegionBlocks(decode->point, layout);
  } else if (squeeze != nullptr && squeeze->target.evicts_in_windows()) {
    CompressionPoint to_come;
    to_come.policy = squeeze->policy;
    to_come.target = squeeze->target;
    in_regions = WindowRegionBlocks(to_come, layout);
  }
  return walk.peak() + WindowPeaks(length, chunk, in_regions, layout);
}

int32_t RemainingBlocks(const RequestState& request,
                        const SequenceCache& sequence,
                        const OwnInWindows& in_windows, int32_t length,
                        int32_t chunk, const ModelLayout& layout) {
  Holding now{.cut = sequence.cut(),
              .window_region_blocks = in_windows.num_in_regions};
  if (sequence.pending.has_value()) {
    now.cut = sequence.pending->cut;
    now.region_blocks =
        static_cast<int32_t>(sequence.pending->destinations.size());
  } else if (sequence.region != nullptr) {
    now.region_blocks = static_cast<int32_t>(sequence.region->blocks.size());
  }
  if (length <= sequence.num_reserved) return 0;
  int32_t held = in_windows.num_blocks;
  if (layout.window == 0) {
    held += now.region_blocks +
            CeilDiv(sequence.num_reserved - now.cut, layout.page_size);
  }
  const auto to_come = std::span<const CompressionPoint>(request.compressions)
                           .subspan(request.next_compression);
  return std::max(0, PeakBlocks(length, chunk, to_come, layout, now,
                                request.decode.get(), request.squeeze.get()) -
                         held);
}

int32_t WindowGrowth(int32_t num_reserved, int32_t num_tokens, int32_t chunk,
                     const ModelLayout& layout) {
  const int32_t num_pages = CeilDiv(num_reserved, layout.page_size);
  const int32_t end = CeilDiv(num_reserved + num_tokens, layout.page_size);
  int32_t growth = 0;
  for (int32_t group = layout.window > 0 ? 0 : 1; group < layout.num_groups();
       ++group) {
    const int32_t held = num_pages - layout.FirstPage(group, num_reserved);
    const int32_t room =
        WindowPeak(num_reserved + num_tokens, chunk, group, layout) - held;
    growth += std::min(end - num_pages, std::max(0, room));
  }
  return growth;
}

}  // namespace blockmgr
