// Evictions: what an order may ask, and what of it is carried out.

#include <algorithm>
#include <numeric>
#include <utility>

#include "blockmgr/base/bits.h"
#include "blockmgr/base/status_macros.h"
#include "blockmgr/eviction/select.h"
#include "tests/testing/canary_engine.h"
#include "tests/testing/random.h"

namespace blockmgr {
namespace {

template <typename T>
void Shuffle(std::vector<T>* values, SeededRandom* random) {
  for (auto i = static_cast<int32_t>(values->size()) - 1; i > 0; --i) {
    std::swap((*values)[i], (*values)[random->Between(0, i)]);
  }
}

}  // namespace

CanaryEngine::View CanaryEngine::ViewBelow(const EvictionOrder& order) const {
  return ViewOf(order.slot, order.group,
                FirstAttended(order.group, order.length), order.cut);
}

absl::Status CanaryEngine::CheckOrder(const Queued& queued,
                                      const EvictionOrder& order) {
  BM_RETURN_IF_ERROR(Right(tables_.CheckOrder(queued.plan, order)));
  const int32_t first = FirstAttended(order.group, order.length);
  const RegionLayout* const region = RegionFrom(order.slot, order.group, first);
  if (order.cut <= (region == nullptr ? first : region->cut())) {
    return Wrong("order: group ", order.group, ", cut ", order.cut,
                 " adds nothing to the region");
  }
  const View view = ViewBelow(order);
  std::vector<BlockId> below(view.tail.begin(), view.tail.end());
  if (region != nullptr) {
    below.insert(below.end(), region->blocks().begin(), region->blocks().end());
  }
  BM_RETURN_IF_ERROR(CheckTotals(order, std::ssize(below)));
  const std::vector<int32_t> holders = CountHolders();
  for (const BlockId block : EngineTables::Destinations(queued.plan, order)) {
    const bool is_own = std::ranges::count(below, block) > 0;
    if (holders[Index(block)] != (is_own ? 1 : 0)) {
      return Wrong("destination ", Index(block), " is in other tables");
    }
    if (!is_own) BM_RETURN_IF_ERROR(CheckFresh(queued, block));
  }
  const int32_t window = order.policy.query_window();
  const int32_t num_cached = contents_of(order.slot).num_cached;
  const int32_t query_window = row(order.slot).query_window;
  if (std::min(window, order.length) > order.length - num_cached ||
      window > std::max(query_window, 1)) {
    return Wrong("order: ", window, " queries wanted, ", query_window,
                 " kept of ", order.length, " with ", num_cached, " cached");
  }
  return absl::OkStatus();
}

absl::Status CanaryEngine::CheckTotals(const EvictionOrder& order,
                                       int64_t num_below) const {
  const std::vector<int64_t> page_totals = PageTotals(order);
  const int64_t page_total = std::ranges::max(page_totals);
  for (int32_t shard = 0; shard < layout_.num_shards; ++shard) {
    if (order.page_total_of(shard) != page_totals[shard]) {
      return Wrong("order: shard ", shard, " has page total ",
                   order.page_total_of(shard), ", expected ",
                   page_totals[shard]);
    }
  }
  if (order.page_total != page_total ||
      order.num_destinations !=
          CeilDiv<int64_t>(page_total,
                           layout_.pages_per_block() / layout_.num_shards) ||
      order.num_destinations >= num_below) {
    return Wrong("order: page total ", order.page_total, " (expected ",
                 page_total, "), ", order.num_destinations,
                 " destinations for ", num_below, " blocks");
  }
  return absl::OkStatus();
}

int32_t CanaryEngine::ShardOf(int32_t head_index) const {
  return head_index % layout_.num_heads * layout_.num_shards /
         layout_.num_heads;
}

std::vector<int64_t> CanaryEngine::PageTotals(
    const EvictionOrder& order) const {
  const HeadShape shape{.num_layers = layout_.num_layers,
                        .num_heads = layout_.num_heads / layout_.num_shards,
                        .page_size = layout_.page_size};
  EvictionRange range{.cut = order.cut, .length = order.length};
  EvictionPolicy policy = order.policy;
  if (order.group > 0) {
    const int32_t first = FirstAttended(order.group, order.length);
    range = {.cut = order.cut - first, .length = order.length - first};
    // Sinks that have fallen out are nobody's.
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
      if (ShardOf(h) == shard) own.push_back((*order.budgets)[h]);
    }
    totals.push_back(PageTotalExternal(own, policy, shape, range));
  }
  return totals;
}

absl::Status CanaryEngine::CheckShards(const RaggedRegion& region) const {
  for (int32_t h = 0; h < layout_.pages_per_block(); ++h) {
    for (const PageId page : region.pages(h)) {
      if (ShardOf(layout_.page_head(page)) == ShardOf(h)) continue;
      return Wrong("head ", h, " of shard ", ShardOf(h), " has page ",
                   Index(page), " of shard ", ShardOf(layout_.page_head(page)));
    }
  }
  return absl::OkStatus();
}

bool CanaryEngine::IsRefused(const EvictionOrder& order) const {
  if (refuses_all_) return true;
  if (options_.refuse_one_in == 0) return false;
  const uint64_t incarnation = contents_of(order.slot).incarnation;
  SeededRandom random(options_.seed ^ (incarnation * 7919 + order.length) ^
                      static_cast<uint64_t>(order.group) << 40);
  return random.OneIn(options_.refuse_one_in);
}

KeepSets CanaryEngine::ChooseSurvivors(const EntryIndex& entries,
                                       const EvictionOrder& order) const {
  const Contents& contents = contents_of(order.slot);
  // The same tokens, compressed alike before, keep the same entries.
  uint64_t seed = Extend(options_.seed, contents.chain[order.length - 1]);
  seed = Extend(seed, contents.history);
  if (!options_.same_choice_on_replay)
    seed = Extend(seed, contents.incarnation);
  SeededRandom random(seed);
  const int32_t num_heads = layout_.pages_per_block();
  std::vector<int32_t> heads(num_heads);
  std::iota(heads.begin(), heads.end(), 0);
  Shuffle(&heads, &random);
  const bool greedy = random.Between(0, 2) == 0 || options_.keeps_all;
  std::vector<int64_t> pages_left = PageTotals(order);
  std::vector<int64_t> counts(num_heads);
  for (const int32_t h : heads) {
    const int64_t held = entries.offsets[h + 1] - entries.offsets[h];
    int64_t& left = pages_left[ShardOf(h)];
    const int64_t most = std::min(held, left * layout_.page_size);
    counts[h] = greedy ? most : random.Between(0, static_cast<int32_t>(most));
    left -= CeilDiv<int64_t>(counts[h], layout_.page_size);
  }
  KeepSets keep;
  keep.offsets.push_back(0);
  for (int32_t h = 0; h < num_heads; ++h) {
    std::vector<int32_t> ranks(entries.offsets[h + 1] - entries.offsets[h]);
    std::iota(ranks.begin(), ranks.end(), 0);
    Shuffle(&ranks, &random);
    ranks.resize(counts[h]);
    std::ranges::sort(ranks);
    keep.ranks.insert(keep.ranks.end(), ranks.begin(), ranks.end());
    keep.offsets.push_back(std::ssize(keep.ranks));
  }
  return keep;
}

void CanaryEngine::Move(CompactionMoves moves, uint64_t seed) {
  SeededRandom random(seed);
  if (!moves.in_place) {
    Shuffle(&moves.moves, &random);
    for (const SlotMove& move : moves.moves) {
      memory_[move.destination] = memory_[move.source];
    }
    return;
  }
  int64_t begin = 0;
  for (const int64_t end : moves.group_ends) {
    // Together with the next group, which must not matter.
    if (end != moves.group_ends.back() && random.Between(0, 1) == 0) continue;
    const std::vector<SlotMove> group(moves.moves.begin() + begin,
                                      moves.moves.begin() + end);
    std::vector<Tag> staged;
    staged.reserve(group.size());
    for (const SlotMove& move : group) staged.push_back(memory_[move.source]);
    for (size_t i = 0; i < group.size(); ++i) {
      memory_[group[i].destination] = staged[i];
    }
    begin = end;
  }
}

absl::Status CanaryEngine::CarryOut(const StepPlan& plan,
                                    const EvictionOrder& order,
                                    EvictionOutcome* outcome) {
  if (IsRefused(order)) {
    outcome->ok = false;
    outcome->error = "refused at random";
    return absl::OkStatus();
  }
  Contents& contents = contents_of(order.slot);
  std::vector<int32_t>& positions = contents.positions[order.group];
  const EntryIndex entries =
      IndexEntries(layout_, ViewBelow(order).cache(), positions, order.cut,
                   FirstAttended(order.group, order.length));
  const KeepSets keep = ChooseSurvivors(entries, order);
  for (int32_t h = 0; h < layout_.pages_per_block(); ++h) {
    outcome->counts.push_back(
        static_cast<int32_t>(keep.offsets[h + 1] - keep.offsets[h]));
  }
  // What is moved is no better than it was; fresh blocks may be all of it.
  const bool was_damaged = IsDamaged(order.slot);
  BM_RETURN_IF_ERROR(Right(tables_.CheckCounts(order, outcome->counts)));
  tables_.Commit(plan, order, outcome->counts);
  outcome->layout_checksum = tables_.ChecksumOf(order);
  const RaggedRegion next(layout_, *RegionFrom(order.slot, order.group, 0));
  BM_RETURN_IF_ERROR(CheckShards(next));
  for (const BlockId block : next.blocks()) {
    if (was_damaged) {
      lost_.insert(block);
    } else {
      lost_.erase(block);
    }
  }
  CompactionPlan compaction = PlanCompaction(layout_, entries, keep, next);
  Move(std::move(compaction.moves), contents.history + 1);
  positions = std::move(compaction.positions);
  if (order.group == 0) {
    contents.evictions.push_back({.length = order.length, .cut = order.cut});
  }
  contents.history = Extend(Extend(contents.history, order.length), order.cut);
  for (const int32_t rank : keep.ranks) {
    contents.history = Extend(contents.history, rank);
  }
  const RegionId name = tables_.KeptName(order.slot);
  if (name == kNoRegion) return absl::OkStatus();
  Region& kept = regions_[name];
  kept.contents = contents;
  if (order.group == 0) {
    kept.blocks.assign(next.blocks().begin(), next.blocks().end());
  }
  return absl::OkStatus();
}

}  // namespace blockmgr
