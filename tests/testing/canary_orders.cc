#include "tests/testing/canary_orders.h"

#include <algorithm>
#include <numeric>

#include "blockmgr/base/bits.h"
#include "blockmgr/base/status_macros.h"
#include "blockmgr/eviction/select.h"
#include "tests/testing/canary_error.h"
#include "tests/testing/random.h"

namespace blockmgr {
namespace {

// Returns the shard of a head. The heads are counted out by hand.
int32_t ShardOf(const ModelLayout& layout, int32_t head_index) {
  return head_index % layout.num_heads * layout.num_shards / layout.num_heads;
}

}  // namespace

absl::Status CanaryOrders::Check(const StepPlan& plan,
                                 std::span<const StepId> in_flight,
                                 const EvictionOrder& order) const {
  BM_RETURN_IF_ERROR(AsCanaryError(tables_.CheckOrder(plan, order)));
  const int32_t first = sequences_.FirstAttended(order.group, order.length);
  const RegionLayout* const region =
      sequences_.RegionFrom(order.slot, order.group, first);
  if (order.cut <= (region == nullptr ? first : region->cut())) {
    return CanaryError("order: group ", order.group, ", cut ", order.cut,
                       " adds nothing to the region");
  }
  const CanaryView view = sequences_.ViewBelow(order);
  std::vector<BlockId> below(view.tail.begin(), view.tail.end());
  if (region != nullptr) {
    below.insert(below.end(), region->blocks().begin(), region->blocks().end());
  }
  BM_RETURN_IF_ERROR(CheckTotals(order, std::ssize(below)));
  const std::vector<int32_t> holders = sequences_.CountHolders();
  for (const BlockId block : EngineTables::Destinations(plan, order)) {
    const bool is_own = std::ranges::count(below, block) > 0;
    if (holders[Index(block)] != (is_own ? 1 : 0)) {
      return CanaryError("destination ", Index(block), " is in other tables");
    }
    if (is_own) continue;
    BM_RETURN_IF_ERROR(memory_.CheckFresh(block, plan.id, in_flight));
  }
  const int32_t window = order.policy.query_window();
  const int32_t num_cached = sequences_.contents(order.slot).num_cached;
  const int32_t query_window = sequences_.row(order.slot).query_window;
  if (std::min(window, order.length) > order.length - num_cached ||
      window > std::max(query_window, 1)) {
    return CanaryError("order: ", window, " queries wanted, ", query_window,
                       " kept of ", order.length, " with ", num_cached,
                       " cached");
  }
  return absl::OkStatus();
}

absl::Status CanaryOrders::CheckTotals(const EvictionOrder& order,
                                       int64_t num_below) const {
  const std::vector<int64_t> page_totals = PageTotals(order);
  const int64_t page_total = std::ranges::max(page_totals);
  for (int32_t shard = 0; shard < layout_.num_shards; ++shard) {
    if (order.page_total_of(shard) != page_totals[shard]) {
      return CanaryError("order: shard ", shard, " has page total ",
                         order.page_total_of(shard), ", expected ",
                         page_totals[shard]);
    }
  }
  if (order.page_total != page_total ||
      order.num_destinations !=
          CeilDiv<int64_t>(page_total,
                           layout_.pages_per_block() / layout_.num_shards) ||
      order.num_destinations >= num_below) {
    return CanaryError("order: page total ", order.page_total, " (expected ",
                       page_total, "), ", order.num_destinations,
                       " destinations for ", num_below, " blocks");
  }
  return absl::OkStatus();
}

std::vector<int64_t> CanaryOrders::PageTotals(
    const EvictionOrder& order) const {
  const HeadShape shape{.num_layers = layout_.num_layers,
                        .num_heads = layout_.num_heads / layout_.num_shards,
                        .page_size = layout_.page_size};
  EvictionRange range{.cut = order.cut, .length = order.length};
  EvictionPolicy policy = order.policy;
  if (order.group > 0) {
    const int32_t first = sequences_.FirstAttended(order.group, order.length);
    range = {.cut = order.cut - first, .length = order.length - first};
    // Sinks that have left the window belong to nobody.
    if (first > 0) policy.protect.sinks = 0;
    if (first > 0 && policy.scorer.kind == ScorerKind::kStreaming) {
      policy.scorer.sinks = 0;
    }
  }
  std::vector<int64_t> totals;
  for (int32_t shard = 0; shard < layout_.num_shards; ++shard) {
    if (order.budgets == nullptr) {
      totals.push_back(PageTotal(policy, order.target, shape, range));
      continue;
    }
    std::vector<int32_t> own;
    for (int32_t h = 0; h < std::ssize(*order.budgets); ++h) {
      if (ShardOf(layout_, h) == shard) own.push_back((*order.budgets)[h]);
    }
    totals.push_back(PageTotalExternal(own, policy, shape, range));
  }
  return totals;
}

absl::Status CanaryOrders::CheckShards(const RaggedRegion& region) const {
  for (int32_t h = 0; h < layout_.pages_per_block(); ++h) {
    const int32_t shard = ShardOf(layout_, h);
    for (const PageId page : region.pages(h)) {
      const int32_t other = ShardOf(layout_, layout_.page_head(page));
      if (other == shard) continue;
      return CanaryError("head ", h, " of shard ", shard, " has page ",
                         Index(page), " of shard ", other);
    }
  }
  return absl::OkStatus();
}

bool CanaryOrders::IsRefused(const EvictionOrder& order) const {
  if (options_.refuse_one_in == 0) return false;
  const uint64_t incarnation = sequences_.contents(order.slot).incarnation;
  SeededRandom random(options_.seed ^ (incarnation * 7919 + order.length) ^
                      static_cast<uint64_t>(order.group) << 40);
  return random.OneIn(options_.refuse_one_in);
}

KeepSets CanaryOrders::ChooseSurvivors(const EvictionOrder& order,
                                       const EntryIndex& entries) const {
  const CanaryContents& contents = sequences_.contents(order.slot);
  // The same tokens, compressed alike before, keep the same entries.
  uint64_t seed = ExtendHash(options_.seed, contents.chain[order.length - 1]);
  seed = ExtendHash(seed, contents.history);
  if (!options_.same_choice_on_replay) {
    seed = ExtendHash(seed, contents.incarnation);
  }
  SeededRandom random(seed);
  const int32_t num_heads = layout_.pages_per_block();
  std::vector<int32_t> heads(num_heads);
  std::iota(heads.begin(), heads.end(), 0);
  random.Shuffle(&heads);
  const bool is_greedy = random.Between(0, 2) == 0 || options_.keeps_all;
  std::vector<int64_t> pages_left = PageTotals(order);
  std::vector<int64_t> counts(num_heads);
  for (const int32_t h : heads) {
    const int64_t held = entries.offsets[h + 1] - entries.offsets[h];
    int64_t& left = pages_left[ShardOf(layout_, h)];
    const int64_t most = std::min(held, left * layout_.page_size);
    counts[h] =
        is_greedy ? most : random.Between(0, static_cast<int32_t>(most));
    left -= CeilDiv<int64_t>(counts[h], layout_.page_size);
  }
  KeepSets keep;
  keep.offsets.push_back(0);
  for (int32_t h = 0; h < num_heads; ++h) {
    std::vector<int32_t> ranks(entries.offsets[h + 1] - entries.offsets[h]);
    std::iota(ranks.begin(), ranks.end(), 0);
    random.Shuffle(&ranks);
    ranks.resize(counts[h]);
    std::ranges::sort(ranks);
    keep.ranks.insert(keep.ranks.end(), ranks.begin(), ranks.end());
    keep.offsets.push_back(std::ssize(keep.ranks));
  }
  return keep;
}

}  // namespace blockmgr
