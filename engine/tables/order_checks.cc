#include "engine/tables/order_checks.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <span>
#include <string>
#include <vector>

#include <absl/container/flat_hash_set.h>
#include <absl/strings/str_cat.h>

#include "blockmgr/base/check.h"
#include "blockmgr/base/invalid.h"
#include "blockmgr/base/status_macros.h"
#include "blockmgr/eviction/policy.h"
#include "blockmgr/eviction/window_eviction.h"
#include "blockmgr/ragged_region.h"
#include "engine/tables/slice.h"

namespace blockmgr {
namespace {

// Checks the place of the order: its slot, group, length and cut.
absl::Status CheckPlace(const TablesState& state, const EvictionOrder& order) {
  BM_RETURN_IF_ERROR(state.CheckSlot("slot", order.slot));
  if (!state.IsInUse(order.slot)) {
    return Invalid("slot: ", Index(order.slot), " is not in use");
  }
  if (state.layout.kind_of(0) == GroupKind::kWindow) {
    return Invalid("cut: expected no order in a model with a window, got ",
                   order.cut);
  }
  const SequenceTable& table = state.row(order.slot);
  if (order.group < 0 || order.group >= state.layout.num_groups()) {
    return Invalid("group: expected 0 to ", state.layout.num_groups() - 1,
                   ", got ", order.group);
  }
  if (order.group < state.CommittedOf(order.slot).next_group) {
    return Invalid("slot: a second order for slot ", Index(order.slot),
                   " in one step, of group ", order.group);
  }
  if (order.length != table.num_computed) {
    return Invalid("length: expected ", table.num_computed, ", got ",
                   order.length);
  }
  const int32_t cut_now = state.group_of(order.slot, order.group).region.cut;
  if (order.cut < std::max(cut_now, 1) || order.cut >= order.length ||
      order.cut % state.layout.page_size != 0) {
    return Invalid("cut: expected a positive multiple of ",
                   state.layout.page_size, " in [", cut_now, ", ", order.length,
                   "), got ", order.cut);
  }
  const int32_t first = WindowEviction::FirstOf(
      state.layout.window_of(order.group), order.length);
  if (order.cut <= first) {
    return Invalid("cut: expected one above ", first,
                   ", from which on the group attends, got ", order.cut);
  }
  return absl::OkStatus();
}

// Checks the policy, and that the group has what the policy reads. A window
// group has no scores and budgets from outside, and no state of a scorer.
absl::Status CheckPolicy(GroupKind kind, const EvictionPolicy& policy) {
  BM_RETURN_IF_ERROR(policy.Validate());
  if (policy.needs_table()) {
    return Invalid("policy: expected budgets of the order's own, got ",
                   FormatPolicy(policy));
  }
  if (kind == GroupKind::kWindow &&
      (policy.has_external_scores() ||
       policy.budget.kind == BudgetKind::kExternal ||
       policy.scorer_state() != ScorerState::kNone)) {
    return Invalid(
        "policy: expected scores and budgets of what a group with a window ",
        "has, got ", FormatPolicy(policy));
  }
  return absl::OkStatus();
}

// Checks the name that the order gives. A name stands for the regions of all
// groups, and the order of a full group gives it.
absl::Status CheckName(const TablesState& state, const EvictionOrder& order) {
  if (order.region == kNoRegion) return absl::OkStatus();
  if (state.layout.kind_of(order.group) == GroupKind::kWindow) {
    return Invalid("region: expected none of a group with a window, got ",
                   Index(order.region));
  }
  if (!state.regions.contains(order.region)) return absl::OkStatus();
  return Invalid("region: expected a name that is not in use, got ",
                 Index(order.region));
}

absl::Status CheckDestinations(const TablesState& state, const StepPlan& plan,
                               const EvictionOrder& order) {
  const auto destinations =
      Slice(plan.destinations, order.destination_begin, order.num_destinations);
  if (!destinations.has_value()) {
    return Invalid("destinations: expected a part of ",
                   plan.destinations.size(), ", got [", order.destination_begin,
                   ", +", order.num_destinations, ")");
  }
  const SequenceTable& table = state.row(order.slot);
  // The destinations must not be blocks behind the cut or blocks of other
  // groups: the new region would overwrite live tokens. The check leaves out
  // the blocks of other groups' regions, because the tables do not know which
  // of these blocks are in use.
  absl::flat_hash_set<BlockId> taken;
  for (int32_t group = 0; group < state.layout.num_groups(); ++group) {
    const GroupTable& own = state.group_of(order.slot, group);
    const int32_t cut = group == order.group ? order.cut : own.region.cut;
    const int32_t first =
        std::max(state.layout.FirstPage(group, table.num_computed + 1),
                 cut / state.layout.page_size);
    taken.insert(
        own.blocks.begin() + (first - own.region.cut / state.layout.page_size),
        own.blocks.end());
  }
  // Pages of the region and of the covered tail may stay where they are. So the
  // two together must not name a block twice.
  const CoveredTail covered = state.Covered(order);
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
  for (const BlockId block : *destinations) {
    if (!state.IsBlock(block)) {
      return Invalid("destinations: expected block ids in [1, ",
                     state.layout.num_blocks, "), got ", Index(block));
    }
    if (!taken.insert(block).second) {
      return Invalid("destinations: block ", Index(block),
                     " is named twice or holds tokens that stay");
    }
  }
  return absl::OkStatus();
}

// Checks the shapes of external scores and budgets.
absl::Status CheckExternal(const ModelLayout& layout,
                           const EvictionOrder& order) {
  const int64_t num_heads = layout.pages_per_block();
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

}  // namespace

absl::Status CheckEvictionOrder(const TablesState& state, const StepPlan& plan,
                                const EvictionOrder& order) {
  BM_RETURN_IF_ERROR(CheckPlace(state, order));
  BM_RETURN_IF_ERROR(
      CheckPolicy(state.layout.kind_of(order.group), order.policy));
  BM_RETURN_IF_ERROR(CheckName(state, order));
  if (!order.shard_page_totals.empty() &&
      std::ssize(order.shard_page_totals) != state.layout.num_shards) {
    return Invalid("shard_page_totals: expected none or ",
                   state.layout.num_shards, " values, got ",
                   order.shard_page_totals.size());
  }
  BM_RETURN_IF_ERROR(CheckDestinations(state, plan, order));
  return CheckExternal(state.layout, order);
}

absl::Status CheckKeptCounts(const TablesState& state,
                             const EvictionOrder& order,
                             std::span<const int32_t> counts) {
  BM_CHECK(static_cast<int64_t>(counts.size()) ==
           state.layout.pages_per_block());
  for (size_t head = 0; head < counts.size(); ++head) {
    const int32_t held =
        state.CountHeldBelow(order, static_cast<int32_t>(head));
    if (counts[head] < 0 || counts[head] > held) {
      return Invalid("counts: expected at most ", held,
                     " entries for head index ", head, ", got ", counts[head]);
    }
  }
  for (int32_t shard = 0; shard < state.layout.num_shards; ++shard) {
    const int64_t num_pages = CountShardPages(state.layout, shard, counts);
    const std::string where =
        state.layout.num_shards == 1 ? "" : absl::StrCat(" in shard ", shard);
    const int64_t page_total = order.page_total_of(shard);
    if (num_pages > page_total) {
      return Invalid("counts: expected at most page_total ", page_total,
                     " pages", where, ", got ", num_pages);
    }
    const int64_t destination_pages =
        int64_t{order.num_destinations} * state.layout.shard_pages_per_block();
    if (num_pages > destination_pages) {
      return Invalid("counts: expected at most the destinations' ",
                     destination_pages, " pages", where, ", got ", num_pages);
    }
  }
  return absl::OkStatus();
}

}  // namespace blockmgr
