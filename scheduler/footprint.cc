#include "scheduler/footprint.h"

#include <algorithm>

#include "blockmgr/base/bits.h"
#include "blockmgr/base/check.h"
#include "scheduler/compression_points.h"

namespace blockmgr {
namespace {

// Walk follows a sequence. It counts the blocks that the sequence holds now,
// and the most blocks that it has held.
class Walk {
 public:
  Walk(const ModelLayout& layout, Holding now) : layout_(layout), now_(now) {}

  void ComputeUntil(int32_t length) {
    peak_ = std::max(peak_, now_.region_blocks +
                                CeilDiv(length - now_.cut, layout_.page_size));
  }
  // Replaces the blocks below the cut by a region if that frees blocks. Does
  // nothing if a region (made by a command) reaches the cut already.
  void Compress(int32_t cut, int32_t region_blocks) {
    if (cut <= now_.cut) return;
    const int32_t below =
        now_.region_blocks + (cut - now_.cut) / layout_.page_size;
    if (region_blocks < below) {
      now_ = {.region_blocks = region_blocks, .cut = cut};
    }
  }
  void Compress(const CompressionPoint& point) {
    Compress(point.cut, CountRegionBlocks(point, layout_));
  }
  int32_t peak() const { return peak_; }

 private:
  const ModelLayout& layout_;
  Holding now_;
  int32_t peak_ = 0;
};

// Walks the points of `decode` in (begin, end]. A point evicts nothing while
// all positions are protected. From the first point on that evicts, totals only
// grow from point to point, and intervals are whole pages. So the most blocks
// are held between the last two points, and the points in the middle are left
// out.
//
// Two simplifications count too many blocks, never too few. If a point frees
// nothing, the sequence keeps the smaller region before, which is not followed
// here: then it holds no more blocks than the larger region has. If a table
// decides the totals, all regions count as the largest one.
void WalkDecode(const DecodeCompression& decode, int32_t begin, int32_t end,
                const ModelLayout& layout, Walk* walk) {
  const int32_t first = NextLength(
      decode, std::max(begin, decode.point.policy.protected_recent()));
  if (first > end) return;
  const bool knows_totals =
      KnowsTotals(decode.table.get(), decode.point.policy, layout);
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

// Returns the most blocks that a window group holds: the pages that contain the
// tokens of the window and of a chunk, for any offset in the first page.
int32_t WindowPeak(int32_t length, int32_t chunk, int32_t group,
                   const ModelLayout& layout) {
  const int64_t tokens = int64_t{layout.window_of(group)} + chunk;
  return static_cast<int32_t>(
      std::min<int64_t>(CeilDiv(length, layout.page_size),
                        CeilDiv<int64_t>(tokens - 1, layout.page_size) + 1));
}

// Returns the most blocks that all window groups hold, with regions of
// region_blocks blocks. A region has fewer blocks than the pages it stands for,
// so the groups never hold more than without windows.
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
  if (layout.kind_of(0) == GroupKind::kWindow) {
    return WindowPeak(length, chunk, 0, layout);
  }
  // All points of a request that evict from windows have the same target, so
  // the largest region of any point has room for the regions of today.
  const auto evicts = [](const CompressionPoint& point) {
    return point.target.evicts_in_windows();
  };
  int32_t in_regions = now.window_region_blocks;
  const auto point = std::ranges::find_if(compressions, evicts);
  if (point != compressions.end()) {
    in_regions = CountWindowRegionBlocks(*point, layout);
  } else if (decode != nullptr && evicts(decode->point)) {
    in_regions = CountWindowRegionBlocks(decode->point, layout);
  } else if (squeeze != nullptr && squeeze->target.evicts_in_windows()) {
    CompressionPoint to_come;
    to_come.policy = squeeze->policy;
    to_come.target = squeeze->target;
    in_regions = CountWindowRegionBlocks(to_come, layout);
  }
  return walk.peak() + WindowPeaks(length, chunk, in_regions, layout);
}

int32_t CountRemainingBlocks(const RequestState& request,
                             const SequenceCache& sequence,
                             const OwnInWindows& in_windows, int32_t length,
                             int32_t chunk, const ModelLayout& layout) {
  Holding now{.cut = sequence.cut(),
              .window_region_blocks = in_windows.num_in_regions};
  const GroupCache& first = sequence.first();
  if (first.pending != nullptr) {
    now.cut = first.pending->cut;
    now.region_blocks =
        static_cast<int32_t>(first.pending->destinations.size());
  } else {
    now.region_blocks = first.num_region_blocks();
  }
  if (length <= sequence.num_reserved) return 0;
  int32_t held = in_windows.num_blocks;
  if (layout.kind_of(0) == GroupKind::kFull) {
    held += now.region_blocks +
            CeilDiv(sequence.num_reserved - now.cut, layout.page_size);
  }
  const auto to_come =
      std::span<const CompressionPoint>(request.eviction.compressions)
          .subspan(request.next_compression);
  return std::max(0, PeakBlocks(length, chunk, to_come, layout, now,
                                request.eviction.decode.get(),
                                request.eviction.squeeze.get()) -
                         held);
}

int32_t WindowGrowth(int32_t num_reserved, int32_t num_tokens, int32_t chunk,
                     const ModelLayout& layout) {
  const int32_t num_pages = CeilDiv(num_reserved, layout.page_size);
  const int32_t end = CeilDiv(num_reserved + num_tokens, layout.page_size);
  int32_t growth = 0;
  for (int32_t group = 0; group < layout.num_groups(); ++group) {
    if (layout.kind_of(group) != GroupKind::kWindow) continue;
    const int32_t held = num_pages - layout.FirstPage(group, num_reserved);
    const int32_t room =
        WindowPeak(num_reserved + num_tokens, chunk, group, layout) - held;
    growth += std::min(end - num_pages, std::max(0, room));
  }
  return growth;
}

}  // namespace blockmgr
