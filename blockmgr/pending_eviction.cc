#include "blockmgr/pending_eviction.h"

#include <optional>

#include <absl/strings/str_cat.h>

#include "blockmgr/base/invalid.h"
#include "blockmgr/layout_checksum.h"

namespace blockmgr {
namespace {

// Returns the page lists of the region that the order makes.
RegionLayout LayOut(const ModelLayout& layout, const PendingEviction& pending,
                    const HeldBlocks& covered,
                    std::span<const int32_t> counts) {
  if (pending.num_own == 0) {
    // If all destinations are fresh, no old block is among them.
    return RegionLayout::LayOut(layout, nullptr, {}, pending.destinations,
                                counts, pending.cut);
  }
  std::optional<RegionLayout> now;
  if (covered.region != nullptr) now = LayoutOf(layout, *covered.region);
  return RegionLayout::LayOut(layout, now.has_value() ? &*now : nullptr,
                              covered.tail, pending.destinations, counts,
                              pending.cut);
}

}  // namespace

absl::Status CheckCounts(const ModelLayout& layout,
                         const PendingEviction& pending,
                         const HeldBlocks& covered,
                         std::span<const int32_t> counts) {
  if (std::ssize(counts) != layout.pages_per_block()) {
    return Invalid("counts: expected ", layout.pages_per_block(),
                   " (layers * heads), got ", counts.size());
  }
  const int32_t in_tail =
      static_cast<int32_t>(covered.tail.size()) * layout.page_size;
  for (size_t i = 0; i < counts.size(); ++i) {
    const int32_t held =
        in_tail + (covered.region == nullptr ? 0 : covered.region->kept[i]);
    if (counts[i] < 0 || counts[i] > held) {
      return Invalid("counts[layer ", i / layout.num_heads, ", head ",
                     i % layout.num_heads, "]: expected 0 to ", held, ", got ",
                     counts[i]);
    }
  }
  for (int32_t shard = 0; shard < layout.num_shards; ++shard) {
    const int64_t page_total = pending.page_totals[shard];
    const int64_t num_pages = CountShardPages(layout, shard, counts);
    if (num_pages > page_total) {
      return Invalid("counts: expected at most ", page_total, " pages",
                     layout.num_shards == 1 ? "" : " in shard ",
                     layout.num_shards == 1 ? "" : absl::StrCat(shard),
                     ", got ", num_pages);
    }
  }
  return absl::OkStatus();
}

absl::Status CheckLayout(const ModelLayout& layout,
                         const PendingEviction& pending,
                         const HeldBlocks& covered,
                         std::span<const int32_t> counts, uint64_t checksum) {
  const uint64_t expected =
      LayoutChecksum(layout, LayOut(layout, pending, covered, counts));
  if (checksum == expected) return absl::OkStatus();
  return Invalid(
      "layout_checksum: expected 0x", absl::Hex(expected, absl::kZeroPad16),
      ", got 0x", absl::Hex(checksum, absl::kZeroPad16),
      ": the engine has derived other page lists than the manager for a region "
      "of cut ",
      pending.cut, " on ", pending.destinations.size(), " destinations, ",
      pending.num_own, " of them blocks of the sequence, ",
      covered.region == nullptr ? "without a region before"
                                : "with a region before",
      "; docs/engine.md has the rule (\"How a region is laid out\"), and "
      "docs/region_layout_vectors.json cases to test an engine with");
}

std::shared_ptr<const RegionRecord> MakeRegion(
    const ModelLayout& layout, const PendingEviction& pending,
    const HeldBlocks& covered, std::span<const int32_t> counts) {
  auto region = std::make_shared<RegionRecord>();
  region->id = pending.region;
  region->cut = pending.cut;
  region->kept.assign(counts.begin(), counts.end());
  region->blocks = pending.destinations;
  // The pages of the shard that has the most pages.
  int64_t num_pages = 0;
  for (int32_t shard = 0; shard < layout.num_shards; ++shard) {
    num_pages = std::max(num_pages, CountShardPages(layout, shard, counts));
  }
  const bool keeps_old_pages = covered.region != nullptr && pending.num_own > 0;
  const bool may_leave_surplus =
      num_pages <= (std::ssize(pending.destinations) - 1) *
                       int64_t{layout.shard_pages_per_block()};
  if (keeps_old_pages || may_leave_surplus) {
    region->layout = std::make_unique<const RegionLayout>(
        LayOut(layout, pending, covered, counts));
    region->blocks.assign(region->layout->blocks().begin(),
                          region->layout->blocks().end());
  }
  return region;
}

RegionLayout LayoutOf(const ModelLayout& layout, const RegionRecord& region) {
  if (region.layout != nullptr) return *region.layout;
  return RegionLayout::LayOut(layout, nullptr, {}, region.blocks, region.kept,
                              region.cut);
}

}  // namespace blockmgr
