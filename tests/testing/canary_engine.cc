#include "tests/testing/canary_engine.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include <absl/strings/str_cat.h>

#include "blockmgr/base/bits.h"
#include "blockmgr/base/status_macros.h"
#include "blockmgr/eviction/select.h"
#include "blockmgr/layout_checksum.h"

namespace blockmgr {
namespace {

// A stream of random numbers from one number.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(SplitMix64(seed)) {}
  // In [0, limit]. REQUIRES: limit >= 0.
  int64_t UpTo(int64_t limit) {
    state_ = SplitMix64(state_);
    return static_cast<int64_t>(state_ % static_cast<uint64_t>(limit + 1));
  }
  template <typename T>
  void Shuffle(std::vector<T>* values) {
    for (int64_t i = std::ssize(*values) - 1; i > 0; --i) {
      std::swap((*values)[i], (*values)[UpTo(i)]);
    }
  }

 private:
  uint64_t state_;
};

}  // namespace

CanaryEngine::CanaryEngine(const ModelLayout& layout, int32_t max_sequences,
                           const CanaryOptions& options)
    : layout_(layout),
      options_(options),
      tables_(max_sequences),
      memory_(layout.num_pages() * layout.page_size),
      host_memory_(options.num_host_blocks) {}

uint64_t CanaryEngine::Extend(uint64_t hash, uint64_t value) {
  return SplitMix64(hash ^ (value + 0x1000));
}

void CanaryEngine::Restart() {
  std::ranges::fill(tables_, CanaryTable{});
  regions_.clear();
  std::ranges::fill(memory_, Tag{});
  queue_.clear();
  touched_.clear();
  losses_.clear();
  lost_.clear();
  swaps_.clear();
  std::ranges::fill(host_memory_, std::vector<Tag>());
  touched_host_.clear();
  host_losses_.clear();
  lost_host_.clear();
}

int32_t CanaryEngine::SampleAfter(uint64_t chain) const {
  return static_cast<int32_t>(SplitMix64(chain ^ options_.seed) %
                              options_.vocabulary);
}

std::vector<int32_t> CanaryEngine::OutputsAlone(
    std::span<const int32_t> prompt, int32_t max_tokens,
    std::span<const int32_t> stop_token_ids) const {
  uint64_t chain = 0;
  for (const int32_t token : prompt) chain = Extend(chain, token);
  std::vector<int32_t> outputs;
  while (std::ssize(outputs) < max_tokens) {
    outputs.push_back(SampleAfter(chain));
    chain = Extend(chain, outputs.back());
    if (std::ranges::count(stop_token_ids, outputs.back()) > 0) break;
  }
  return outputs;
}

absl::Status CanaryEngine::Enqueue(const StepPlan& plan) {
  const size_t size = plan.slots.size();
  if (size == 0 || plan.positions.size() != size ||
      plan.num_tokens.size() != size || plan.samples.size() != size ||
      (!plan.num_drafts.empty() && plan.num_drafts.size() != size) ||
      plan.block_offsets.size() != size + 1 ||
      plan.block_offsets.back() != std::ssize(plan.blocks) ||
      plan.window_offsets.size() !=
          (layout_.group_windows.empty()
               ? 0
               : size * layout_.group_windows.size() + 1) ||
      (plan.window_offsets.empty() ? 0 : plan.window_offsets.back()) !=
          std::ssize(plan.window_blocks)) {
    return Wrong("step ", Index(plan.id), ": arrays do not fit each other");
  }
  Queued queued{.plan = plan, .in_flight = {}};
  for (const Queued& earlier : queue_) {
    if (earlier.plan.id >= plan.id) return Wrong("step ids must ascend");
    queued.in_flight.push_back(earlier.plan.id);
  }
  queue_.push_back(std::move(queued));
  return absl::OkStatus();
}

absl::StatusOr<StepResult> CanaryEngine::Execute() {
  const Queued queued = std::move(queue_.front());
  queue_.pop_front();
  const StepPlan& plan = queued.plan;
  StepResult result;
  result.id = plan.id;
  BM_RETURN_IF_ERROR(ApplySwapOuts(queued, &result));
  BM_RETURN_IF_ERROR(ApplyStarts(queued, &result));
  BM_RETURN_IF_ERROR(ApplyCopies(queued, &result));
  BM_RETURN_IF_ERROR(ApplyBlocks(queued));
  BM_RETURN_IF_ERROR(Compute(plan, &result));
  for (const SequenceSlot slot : plan.slots) {
    BM_RETURN_IF_ERROR(ReadAll(tables_[Index(slot)]));
    Touch(tables_[Index(slot)], plan.id);
  }
  for (const EvictionOrder& order : plan.evictions) {
    const auto destinations =
        std::span(plan.destinations)
            .subspan(order.destination_begin, order.num_destinations);
    touched_[plan.id].insert(destinations.begin(), destinations.end());
    BM_RETURN_IF_ERROR(CheckOrder(queued, order, destinations));
    result.evictions.emplace_back();
    BM_RETURN_IF_ERROR(CarryOut(plan, order, &result.evictions.back()));
    BM_RETURN_IF_ERROR(ReadAll(tables_[Index(order.slot)]));
  }
  CarryOutLosses(&result);
  CarryOutHostLosses(&result);
  // No more than a few steps are ever in flight.
  const auto is_old = [&plan](const auto& step) {
    return Index(step.first) + 16 < Index(plan.id);
  };
  absl::erase_if(touched_, is_old);
  absl::erase_if(touched_host_, is_old);
  return result;
}

absl::Status CanaryEngine::Compute(const StepPlan& plan, StepResult* result) {
  const std::vector<int32_t> holders = CountHolders();
  if (!plan.num_drafts.empty()) {
    result->num_accepted.assign(plan.slots.size(), 0);
  }
  for (size_t i = 0; i < plan.slots.size(); ++i) {
    CanaryTable& table = tables_[Index(plan.slots[i])];
    const int32_t end = plan.positions[i] + plan.num_tokens[i];
    BM_RETURN_IF_ERROR(TakeDrafts(plan, i));
    if (plan.num_tokens[i] <= 0 || end > std::ssize(table.tokens)) {
      return Wrong("tokens up to ", end, " scheduled, ", table.tokens.size(),
                   " are known");
    }
    for (int32_t p = plan.positions[i]; p < end; ++p) {
      table.content.push_back(Extend(table.chain[p], table.history));
      table.steps.push_back(plan.id);
      for (int32_t group = 0; group < layout_.num_groups(); ++group) {
        BM_RETURN_IF_ERROR(Write(table, group, p, holders));
      }
    }
    table.first_query = plan.positions[i];
    table.is_tainted = IsDamaged(table);
    if (plan.samples[i] == 0) {
      result->sampled.push_back(-1);
      continue;
    }
    if (end != std::ssize(table.tokens)) {
      return Wrong("sampling at ", end, " of ", table.tokens.size());
    }
    if (!plan.num_drafts.empty()) Verify(plan, i, result);
    // What is computed from lost content is of no use.
    result->sampled.push_back(
        SampleAfter(table.chain.back() ^ (IsDamaged(table) ? 1 : 0)));
    table.tokens.push_back(result->sampled.back());
    table.chain.push_back(Extend(table.chain.back(), table.tokens.back()));
    if (options_.max_drafts > 0) ProposeDrafts(&table);
  }
  if (options_.max_drafts > 0) {
    for (const SequenceSlot slot : plan.slots) {
      result->num_drafts.push_back(
          static_cast<int32_t>(tables_[Index(slot)].drafts.size()));
    }
  }
  return absl::OkStatus();
}

absl::Status CanaryEngine::Write(const CanaryTable& table, int32_t group,
                                 int32_t position,
                                 std::span<const int32_t> holders) {
  const int32_t place = position - (group == 0 ? table.cut() : 0);
  const BlockId block = BlocksOf(table, group)[place / layout_.page_size];
  if (holders[Index(block)] != 1) {
    return Wrong("block ", Index(block), " is written and shared");
  }
  for (int32_t h = 0; h < layout_.pages_per_block(); ++h) {
    const PageId page =
        layout_.page_id(h / layout_.num_heads, block, h % layout_.num_heads);
    memory_[layout_.slot(page, place % layout_.page_size)] = {
        .content = table.content.back(),
        .incarnation = table.incarnation,
        .request = table.request,
        .step = table.steps.back(),
        .position = position,
        .head_index = h,
        .group = group};
  }
  return absl::OkStatus();
}

absl::Status CanaryEngine::ReadAll(const CanaryTable& table) const {
  if (IsDamaged(table)) return absl::OkStatus();
  for (int32_t group = 0; group < layout_.num_groups(); ++group) {
    if (layout_.window_of(group) == 0) continue;
    BM_RETURN_IF_ERROR(ReadWindow(table, group));
  }
  if (layout_.window > 0) return absl::OkStatus();
  const EntryIndex entries = IndexEntries(
      layout_,
      {.region = table.region.has_value() ? &*table.region : nullptr,
       .tail_blocks = table.tail},
      table.region_positions, table.length());
  for (int32_t h = 0; h < layout_.pages_per_block(); ++h) {
    for (int64_t i = entries.offsets[h]; i < entries.offsets[h + 1]; ++i) {
      BM_RETURN_IF_ERROR(
          CheckTag(table, 0, h, entries.positions[i], entries.slots[i]));
    }
  }
  return absl::OkStatus();
}

absl::Status CanaryEngine::CheckTag(const CanaryTable& table, int32_t group,
                                    int32_t head_index, int32_t position,
                                    SlotIndex slot) const {
  const Tag& tag = memory_[slot];
  const bool is_shared = position < table.num_cached;
  if (tag.head_index == head_index && tag.group == group &&
      tag.position == position && tag.content == table.content[position] &&
      (is_shared || (tag.incarnation == table.incarnation &&
                     tag.step == table.steps[position]))) {
    return absl::OkStatus();
  }
  return Wrong("slot ", slot, ": expected request ", Index(table.request),
               " incarnation ", table.incarnation, " group ", group, " head ",
               head_index, " position ", position, " content ",
               table.content[position], " step ", Index(table.steps[position]),
               ", got request ", Index(tag.request), " incarnation ",
               tag.incarnation, " group ", tag.group, " head ", tag.head_index,
               " position ", tag.position, " content ", tag.content, " step ",
               Index(tag.step));
}

absl::Status CanaryEngine::CheckOrder(
    const Queued& queued, const EvictionOrder& order,
    std::span<const BlockId> destinations) const {
  const CanaryTable& table = tables_[Index(order.slot)];
  BM_RETURN_IF_ERROR(CheckCut(table, order));
  const std::vector<int64_t> page_totals = PageTotals(order);
  const int64_t page_total = std::ranges::max(page_totals);
  for (int32_t shard = 0; shard < layout_.num_shards; ++shard) {
    if (order.page_total_of(shard) != page_totals[shard]) {
      return Wrong("order: shard ", shard, " has page total ",
                   order.page_total_of(shard), ", expected ",
                   page_totals[shard]);
    }
  }
  const CacheView now = ViewBelow(table, order);
  std::vector<BlockId> below(now.tail_blocks.begin(), now.tail_blocks.end());
  if (now.region != nullptr) {
    below.insert(below.end(), now.region->blocks().begin(),
                 now.region->blocks().end());
  }
  if (order.page_total != page_total ||
      order.num_destinations !=
          CeilDiv<int64_t>(page_total,
                           layout_.pages_per_block() / layout_.num_shards) ||
      order.num_destinations >= std::ssize(below)) {
    return Wrong("order: page total ", order.page_total, " (expected ",
                 page_total, "), ", order.num_destinations,
                 " destinations for ", below.size(), " blocks");
  }
  const std::vector<int32_t> holders = CountHolders();
  absl::flat_hash_set<BlockId> seen;
  for (const BlockId block : destinations) {
    if (!seen.insert(block).second) return Wrong("a destination twice");
    const bool own = std::ranges::count(below, block) > 0;
    if (holders[Index(block)] != (own ? 1 : 0)) {
      return Wrong("destination ", Index(block), " is in other tables");
    }
    if (!own) BM_RETURN_IF_ERROR(CheckFresh(queued, block));
  }
  const int32_t window = order.policy.query_window();
  if (std::min(window, order.length) > order.length - table.num_cached ||
      window > std::max(table.query_window, 1)) {
    return Wrong("order: ", window, " queries wanted, ", table.query_window,
                 " kept of ", order.length, " with ", table.num_cached,
                 " cached");
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
  const CanaryTable& table = tables_[Index(order.slot)];
  Random random(options_.seed ^ (table.incarnation * 7919 + order.length) ^
                static_cast<uint64_t>(order.group) << 40);
  return random.UpTo(options_.refuse_one_in - 1) == 0;
}

KeepSets CanaryEngine::ChooseSurvivors(const CanaryTable& table,
                                       const EntryIndex& entries,
                                       const EvictionOrder& order) const {
  // The same tokens, compressed alike before, keep the same entries.
  uint64_t seed = Extend(options_.seed, table.chain[order.length - 1]);
  seed = Extend(seed, table.history);
  if (!options_.same_choice_on_replay) seed = Extend(seed, table.incarnation);
  Random random(seed);
  const int32_t num_heads = layout_.pages_per_block();
  std::vector<int32_t> heads(num_heads);
  std::iota(heads.begin(), heads.end(), 0);
  random.Shuffle(&heads);
  const bool greedy = random.UpTo(2) == 0 || options_.keeps_all;
  std::vector<int64_t> pages_left = PageTotals(order);
  std::vector<int64_t> counts(num_heads);
  for (const int32_t h : heads) {
    const int64_t held = entries.offsets[h + 1] - entries.offsets[h];
    int64_t& left = pages_left[ShardOf(h)];
    const int64_t most = std::min(held, left * layout_.page_size);
    counts[h] = greedy ? most : random.UpTo(most);
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

void CanaryEngine::Move(CompactionMoves moves, uint64_t seed) {
  Random random(seed);
  if (!moves.in_place) {
    random.Shuffle(&moves.moves);
    for (const SlotMove& move : moves.moves) {
      memory_[move.destination] = memory_[move.source];
    }
    return;
  }
  int64_t begin = 0;
  for (const int64_t end : moves.group_ends) {
    // Together with the next group, which must not matter.
    if (end != moves.group_ends.back() && random.UpTo(1) == 0) continue;
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
  CanaryTable& table = tables_[Index(order.slot)];
  if (IsRefused(order)) {
    outcome->ok = false;
    outcome->error = "refused at random";
    return absl::OkStatus();
  }
  const CacheView now = ViewBelow(table, order);
  const EntryIndex entries = EntriesBelow(table, order);
  const KeepSets keep = ChooseSurvivors(table, entries, order);
  for (int32_t h = 0; h < layout_.pages_per_block(); ++h) {
    outcome->counts.push_back(
        static_cast<int32_t>(keep.offsets[h + 1] - keep.offsets[h]));
  }
  RaggedRegion next = RaggedRegion::LayOut(
      layout_, now,
      std::span(plan.destinations)
          .subspan(order.destination_begin, order.num_destinations),
      outcome->counts, order.cut);
  BM_RETURN_IF_ERROR(CheckShards(next));
  outcome->layout_checksum = LayoutChecksum(layout_, next.layout());
  CompactionPlan compaction = PlanCompaction(layout_, entries, keep, next);
  // What is moved is no better than it was; fresh blocks may be all of it.
  const bool was_damaged = IsDamaged(table);
  for (const BlockId block : next.blocks()) {
    if (was_damaged) {
      lost_.insert(block);
    } else {
      lost_.erase(block);
    }
  }
  Move(std::move(compaction.moves), table.history + 1);
  Replace(order, std::move(next), std::move(compaction.positions), &table);
  table.history = Extend(Extend(table.history, order.length), order.cut);
  for (const int32_t rank : keep.ranks) {
    table.history = Extend(table.history, rank);
  }
  return Keep(plan, order);
}

}  // namespace blockmgr
