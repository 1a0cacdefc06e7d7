// Orders of evictions, as far as tables are concerned.

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <absl/container/flat_hash_set.h>
#include <absl/strings/str_cat.h>

#include "blockmgr/base/check.h"
#include "blockmgr/base/invalid.h"
#include "blockmgr/base/status_macros.h"
#include "blockmgr/eviction/policy.h"
#include "blockmgr/eviction/window_eviction.h"
#include "blockmgr/ragged_region.h"
#include "engine/tables/tables.h"

namespace blockmgr {
namespace {

absl::Status CheckPolicy(const EvictionPolicy& policy) {
  BM_RETURN_IF_ERROR(policy.Validate());
  if (!policy.needs_table()) return absl::OkStatus();
  return Invalid("policy: expected budgets of the order's own, got ",
                 FormatPolicy(policy));
}

bool IsPart(int64_t begin, int64_t count, size_t size) {
  return begin >= 0 && count >= 0 && begin <= static_cast<int64_t>(size) &&
         count <= static_cast<int64_t>(size) - begin;
}

}  // namespace

absl::Status EngineTables::CheckDestinations(const StepPlan& plan,
                                             const EvictionOrder& order) const {
  if (!IsPart(order.destination_begin, order.num_destinations,
              plan.destinations.size())) {
    return Invalid("destinations: expected a part of ",
                   plan.destinations.size(), ", got [", order.destination_begin,
                   ", +", order.num_destinations, ")");
  }
  const SequenceTable& table = row(order.slot);
  // Blocks behind the cut stay in the table, and those of other groups: a
  // region on one of them would overwrite live tokens. Which of their regions'
  // blocks do, the tables do not know.
  absl::flat_hash_set<BlockId> taken;
  for (int32_t group = 0; group < layout_.num_groups(); ++group) {
    const GroupTable& own = group_of(order.slot, group);
    const int32_t cut = group == order.group ? order.cut : own.region.cut;
    const int32_t first =
        std::max(layout_.FirstPage(group, table.num_computed + 1),
                 cut / layout_.page_size);
    taken.insert(
        own.blocks.begin() + (first - own.region.cut / layout_.page_size),
        own.blocks.end());
  }
  // Pages of the region and of the covered tail may stay where they are. So the
  // two together must not name a block twice.
  const CoveredTail covered = Covered(order);
  std::vector<BlockId> below(covered.blocks.begin(), covered.blocks.end());
  if (covered.region != nullptr && covered.region->layout != nullptr) {
    const std::span<const BlockId> blocks = covered.region->layout->blocks();
    below.insert(below.end(), blocks.begin(), blocks.end());
  }
  std::ranges::sort(below);
  if (const auto twice = std::ranges::adjacent_find(below);
      twice != below.end()) {
    return Invalid("blocks: expected different ones below the cut, got block ",
                   Index(*twice), " twice");
  }
  for (const BlockId block : Destinations(plan, order)) {
    if (!IsBlock(block)) {
      return Invalid("destinations: expected block ids in [1, ",
                     layout_.num_blocks, "), got ", Index(block));
    }
    if (!taken.insert(block).second) {
      return Invalid("destinations: block ", Index(block),
                     " is named twice or holds tokens that stay");
    }
  }
  return absl::OkStatus();
}

absl::Status EngineTables::CheckOrder(const StepPlan& plan,
                                      const EvictionOrder& order) {
  BM_RETURN_IF_ERROR(CheckSlot("slot", order.slot));
  if (!InUse(order.slot)) {
    return Invalid("slot: ", Index(order.slot), " is not in use");
  }
  if (layout_.kind_of(0) == GroupKind::kWindow) {
    return Invalid("cut: expected no order in a model with a window, got ",
                   order.cut);
  }
  const SequenceTable& table = row(order.slot);
  if (order.group < 0 || order.group >= layout_.num_groups()) {
    return Invalid("group: expected 0 to ", layout_.num_groups() - 1, ", got ",
                   order.group);
  }
  if (order.group < CommittedOf(order.slot).next_group) {
    return Invalid("slot: a second order for slot ", Index(order.slot),
                   " in one step, of group ", order.group);
  }
  if (order.length != table.num_computed) {
    return Invalid("length: expected ", table.num_computed, ", got ",
                   order.length);
  }
  const int32_t cut_now = group_of(order.slot, order.group).region.cut;
  if (order.cut < std::max(cut_now, 1) || order.cut >= order.length ||
      order.cut % layout_.page_size != 0) {
    return Invalid("cut: expected a positive multiple of ", layout_.page_size,
                   " in [", cut_now, ", ", order.length, "), got ", order.cut);
  }
  BM_RETURN_IF_ERROR(CheckPolicy(order.policy));
  if (layout_.kind_of(order.group) == GroupKind::kWindow) {
    BM_RETURN_IF_ERROR(CheckWindowOrder(order));
  }
  if (order.region != kNoRegion && regions_.contains(order.region)) {
    return Invalid("region: expected a name that is not in use, got ",
                   Index(order.region));
  }
  if (!order.shard_page_totals.empty() &&
      std::ssize(order.shard_page_totals) != layout_.num_shards) {
    return Invalid("shard_page_totals: expected none or ", layout_.num_shards,
                   " values, got ", order.shard_page_totals.size());
  }
  BM_RETURN_IF_ERROR(CheckDestinations(plan, order));
  const int64_t num_heads = layout_.pages_per_block();
  if (order.policy.scorer.kind == ScorerKind::kExternal) {
    const int64_t expected = num_heads * order.cut;
    const int64_t size =
        order.scores ? static_cast<int64_t>(order.scores->size()) : 0;
    if (size != expected) {
      return Invalid("scores: expected ", expected, " values, got ", size);
    }
  }
  if (order.policy.budget.kind == BudgetKind::kExternal) {
    const int64_t size =
        order.budgets ? static_cast<int64_t>(order.budgets->size()) : 0;
    if (size != num_heads) {
      return Invalid("budgets: expected ", num_heads, " values, got ", size);
    }
    const auto bad = std::find_if(order.budgets->begin(), order.budgets->end(),
                                  [](int32_t budget) { return budget < 0; });
    if (bad != order.budgets->end()) {
      return Invalid("budgets: expected no negative value, got ", *bad);
    }
  }
  return absl::OkStatus();
}

absl::Status EngineTables::CheckCounts(const EvictionOrder& order,
                                       std::span<const int32_t> counts) const {
  BM_CHECK(static_cast<int64_t>(counts.size()) == layout_.pages_per_block());
  for (size_t head = 0; head < counts.size(); ++head) {
    const int32_t held = HeldBelow(order, static_cast<int32_t>(head));
    if (counts[head] < 0 || counts[head] > held) {
      return Invalid("counts: expected at most ", held,
                     " entries for head index ", head, ", got ", counts[head]);
    }
  }
  for (int32_t shard = 0; shard < layout_.num_shards; ++shard) {
    const int64_t num_pages = ShardPages(layout_, shard, counts);
    const std::string where =
        layout_.num_shards == 1 ? "" : absl::StrCat(" in shard ", shard);
    const int64_t page_total = order.page_total_of(shard);
    if (num_pages > page_total) {
      return Invalid("counts: expected at most page_total ", page_total,
                     " pages", where, ", got ", num_pages);
    }
    const int64_t destination_pages =
        int64_t{order.num_destinations} * layout_.shard_pages_per_block();
    if (num_pages > destination_pages) {
      return Invalid("counts: expected at most the destinations' ",
                     destination_pages, " pages", where, ", got ", num_pages);
    }
  }
  return absl::OkStatus();
}

absl::Status EngineTables::CheckWindowOrder(const EvictionOrder& order) const {
  if (order.region != kNoRegion) {
    return Invalid("region: expected none of a group with a window, got ",
                   Index(order.region));
  }
  const EvictionPolicy& policy = order.policy;
  if (policy.has_external_scores() ||
      policy.budget.kind == BudgetKind::kExternal || policy.needs_table() ||
      policy.scorer_state() != ScorerState::kNone) {
    return Invalid(
        "policy: expected scores and budgets of what a group with a window ",
        "has, got ", FormatPolicy(policy));
  }
  const int32_t window = layout_.window_of(order.group);
  if (WindowEviction::IsCovered(window, order.cut, order.length)) {
    return absl::OkStatus();
  }
  return Invalid("cut: expected one above ",
                 WindowEviction::FirstOf(window, order.length),
                 ", from which on the group attends, got ", order.cut);
}

void EngineTables::Commit(const StepPlan& plan, const EvictionOrder& order,
                          std::span<const int32_t> counts) {
  Committed& committed = CommittedOf(order.slot);
  committed.next_group = order.group + 1;
  std::shared_ptr<const RegionLayout> layout = LayOut(plan, order, counts);
  SequenceTable& table = table_of(order.slot);
  const auto index = static_cast<size_t>(order.group);
  GroupTable& group = table.groups[index];
  const int32_t num_gone = (order.cut - group.region.cut) / layout_.page_size;
  group.blocks.erase(group.blocks.begin(), group.blocks.begin() + num_gone);
  const std::span<const BlockId> destinations = Destinations(plan, order);
  group.region = {.cut = order.cut,
                  .blocks = {destinations.begin(), destinations.end()},
                  .kept = {counts.begin(), counts.end()},
                  .shard_entries = ShardEntries(counts),
                  .layout = std::move(layout),
                  .length = order.length};
  group.region_is_past = false;
  if (order.group == 0) ++table.num_evictions;
  if (order.region != kNoRegion) {
    committed.name = order.region;
    regions_[order.region] = RegionsAt(table, order.length);
  } else if (committed.name != kNoRegion) {
    regions_.at(committed.name)[index] = group.region;
  }
}

RegionId EngineTables::KeptName(SequenceSlot slot) const {
  const auto index = static_cast<size_t>(Index(slot));
  if (index >= committed_.size()) return kNoRegion;
  const Committed& committed = committed_[index];
  return committed.step == num_steps_ ? committed.name : kNoRegion;
}

}  // namespace blockmgr
