// How many blocks a request needs at its peak, eviction taken into account.
#ifndef SCHEDULER_FOOTPRINT_H_
#define SCHEDULER_FOOTPRINT_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <absl/strings/string_view.h>

#include "blockmgr/base/model_layout.h"
#include "blockmgr/block_manager_types.h"
#include "blockmgr/eviction/select.h"
#include "blockmgr/sequence_cache.h"
#include "scheduler/request.h"
#include "scheduler/request_state.h"

namespace blockmgr {

// All heads.
HeadShape ShapeOf(const ModelLayout& layout);

// The largest cut of an eviction when `length` tokens are computed: whole
// pages, the last token stays in the tail.
int32_t LargestCut(int32_t length, int32_t page_size);

// The most pages that the region which a compression point makes has in any
// shard. Upper bounds of what ranks can do: each allocates budgets among its
// own heads.
int64_t PagesOf(const CompressionPoint& point, const ModelLayout& layout);
// What each shard may have of them; empty: the same.
std::vector<int64_t> ShardPagesOf(const CompressionPoint& point,
                                  const ModelLayout& layout);

// Settles what follows from a point's length and cut: budgets of a caller in
// place of headkv's and lukv's, so that neither page counts nor engines need
// the table, and its page total. O(1); by budgets per head, O(heads). Where
// nothing is covered, nothing is evicted: a table is not asked, and the total
// is 0.
void ResolvePoint(const std::shared_ptr<const BudgetTable>& table,
                  const ModelLayout& layout, CompressionPoint* point);

// Whole blocks to hold its page total.
int32_t RegionBlocks(const CompressionPoint& point, const ModelLayout& layout);

// The most pages that the point's region in a window group has in any shard; 0:
// it makes none. REQUIRES: a policy that ValidateWindows accepts.
int64_t WindowPagesOf(const CompressionPoint& point, int32_t group,
                      const ModelLayout& layout);

// Blocks that the regions of all window groups have at most, whatever the
// length: until their cuts fall out, beside what the windows hold.
int32_t WindowRegionBlocks(const CompressionPoint& point,
                           const ModelLayout& layout);

// The compressions of its prompt that a request asks for, ascending: those that
// free at least one block. Their budgets are fixed by the whole prompt, for
// every_chunk too; how a table divides them, by the length of each where they
// are shared: whoever goes on from one may have another prompt. REQUIRES: a
// valid eviction of a prompt of num_prompt tokens.
std::vector<CompressionPoint> PlanCompressions(const RequestEviction& eviction,
                                               int32_t num_prompt,
                                               const ModelLayout& layout);

// The same of a request that shares its compressed prefix: what its points have
// in common, its name included. O(table). REQUIRES: eviction.share_prefix.
SharedCompression ShareCompression(const RequestEviction& eviction,
                                   int32_t num_prompt,
                                   const ModelLayout& layout);

// Its point when `length` tokens are computed: the same for all sharers.
CompressionPoint SharedPointAt(const SharedCompression& sharing, int32_t length,
                               const ModelLayout& layout);

// How RegionName::history tells the lengths of compressions, and back.
std::string EncodeHistory(std::span<const CompressionPoint> points);
// Likewise, behind what is there.
void AppendHistory(std::span<const CompressionPoint> points,
                   std::string* history);
std::vector<int32_t> DecodeHistory(absl::string_view history);

// The point of `decode` that comes next when `length` tokens are computed.
CompressionPoint NextPoint(const DecodeCompression& decode, int32_t length,
                           const ModelLayout& layout);

// What a kDecode eviction does after the prompt, until `end` tokens are
// computed; null for other modes. Cost: that of WithEnd.
std::unique_ptr<const DecodeCompression> DecodeCompressionOf(
    const RequestEviction& eviction, int32_t num_prompt, int32_t end,
    const ModelLayout& layout);

// The same, known until `end`. Cost: O(1); where a table decides how many pages
// a region has, O(heads) for every point until a later end.
std::unique_ptr<const DecodeCompression> WithEnd(
    const DecodeCompression& decode, int32_t end, const ModelLayout& layout);

// Where a sequence computes on from: its region, then whole blocks from its cut
// on.
struct Holding {
  int32_t region_blocks = 0;
  int32_t cut = 0;
  // Of its regions in groups with a window.
  int32_t window_region_blocks = 0;
};

// Blocks at the peak of a sequence that computes on from `now`, alone in the
// pool, until `length` positions are computed, at most `chunk` of them in a
// step: groups with a window hold what is in it, and that, and their regions,
// if there are to be any. Compressions to come
// (ascending; those above `length` do not matter) replace what is below their
// cut by their region, as far as that frees blocks; `decode`, if any, goes on
// after the last of them; a `squeeze` may come at any time. An upper bound
// where that has a table, exact without. REQUIRES: a table is known until
// `length`. Cost: O(compressions).
int32_t PeakBlocks(int32_t length, int32_t chunk,
                   std::span<const CompressionPoint> compressions,
                   const ModelLayout& layout, Holding now = {},
                   const DecodeCompression* decode = nullptr,
                   const EvictionCommand* squeeze = nullptr);

// Blocks that a running request will still take until it has computed `length`
// positions, at most `chunk` in a step, in the worst of the steps until then:
// what its orders in flight and those to come give back is counted, when they
// free blocks at all. in_windows: what groups with a window hold when the steps
// in flight are settled, but for what others use: that does not come back when
// it falls out (BlockManager::NumOwnInWindows). Not counted: destinations of
// copies, which orders do without when blocks are short.
int32_t RemainingBlocks(const RequestState& request,
                        const SequenceCache& sequence,
                        const OwnInWindows& in_windows, int32_t length,
                        int32_t chunk, const ModelLayout& layout);

// Blocks that groups with a window take for the next num_tokens of a sequence
// with so many positions reserved, at most `chunk` of them in a step.
int32_t WindowGrowth(int32_t num_reserved, int32_t num_tokens, int32_t chunk,
                     const ModelLayout& layout);

}  // namespace blockmgr

#endif  // SCHEDULER_FOOTPRINT_H_
