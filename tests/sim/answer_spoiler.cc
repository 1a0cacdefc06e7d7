#include "tests/sim/answer_spoiler.h"

#include <utility>

#include "blockmgr/base/bits.h"

namespace blockmgr::sim {
namespace {

// Moves what the first shard keeps to the last, which has no more pages in all
// for that. Returns false, with nothing changed, if the last has room for it.
bool OverfillShard(const SimOptions& options, const EvictionOrder& order,
                   std::vector<int32_t>* counts) {
  const int32_t num_heads = options.num_heads;
  const int32_t own_heads = num_heads / options.num_shards;
  std::vector<int32_t> moved = *counts;
  int64_t num_pages = 0;
  for (int32_t i = 0; i < options.num_layers * own_heads; ++i) {
    const int32_t from = i / own_heads * num_heads + i % own_heads;
    const int32_t to = from + num_heads - own_heads;
    moved[to] += moved[from];
    moved[from] = 0;
    num_pages += CeilDiv(moved[to], options.page_size);
  }
  if (num_pages <= order.page_total_of(options.num_shards - 1)) return false;
  *counts = std::move(moved);
  return true;
}

}  // namespace

void AnswerSpoiler::Draw() {
  // An answer with evictions is spoiled twice as often, since not every answer
  // has any.
  corruption_ = static_cast<Corruption>(random_.Between(1, 8));
  if (random_.OneIn(6)) corruption_ = Corruption::kLostBlock;
  if (random_.OneIn(6)) corruption_ = Corruption::kDrafts;
}

void AnswerSpoiler::Spoil(std::span<const EvictionOrder> orders,
                          StepResult* result) {
  const bool has_counts =
      !result->evictions.empty() && !result->evictions[0].counts.empty();
  const bool wants_counts =
      corruption_ == Corruption::kCounts || corruption_ == Corruption::kLayout;
  if (corruption_ == Corruption::kNone || (wants_counts && !has_counts)) return;
  const Corruption corruption = std::exchange(corruption_, Corruption::kNone);
  int32_t& token = result->sampled[random_.Next() % result->sampled.size()];
  switch (corruption) {
    case Corruption::kNone:
      return;
    case Corruption::kLaterStep:
      result->id = StepId{Index(result->id) + random_.Between(1, 3)};
      return;
    case Corruption::kEarlierStep:
      // The id is below those in flight. The answer to one of them may have
      // been lost, so its id would not be wrong.
      result->id = StepId{Index(result->id) - options_.max_steps_in_flight};
      return;
    case Corruption::kToken:
      token = token < 0 ? 1 : -1;
      return;
    case Corruption::kMoreTokens:
      result->sampled.push_back(1);
      return;
    case Corruption::kFewerTokens:
      result->sampled.pop_back();
      return;
    case Corruption::kMoreOutcomes:
      result->evictions.emplace_back();
      return;
    case Corruption::kLostBlock:
      return SpoilLostBlocks(result);
    case Corruption::kDrafts:
      return SpoilDrafts(result);
    case Corruption::kCounts:
    case Corruption::kLayout:
      break;
  }
  EvictionOutcome& outcome = result->evictions[0];
  std::vector<int32_t> counts = outcome.counts;
  SpoilCounts(orders[0], &counts);
  if (corruption == Corruption::kCounts) {
    outcome.counts = std::move(counts);
  } else {
    *outcome.layout_checksum ^= uint64_t{1} << Index(result->id) % 64;
  }
}

void AnswerSpoiler::SpoilDrafts(StepResult* result) {
  const size_t num_runs = result->sampled.size();
  const auto run = static_cast<size_t>(random_.Next() % num_runs);
  switch (random_.Between(0, 3)) {
    case 0:
      result->num_accepted.resize(num_runs);
      result->num_accepted[run] += random_.OneIn(2) ? 21 : -21;
      return;
    case 1:
      result->accepted.push_back(1);
      return;
    case 2:
      result->num_accepted.push_back(0);
      result->num_accepted.resize(num_runs + 1);
      return;
    default:
      result->num_drafts.assign(num_runs, 0);
      result->num_drafts[run] = result->sampled[run] < 0 ? 1 : -1;
      return;
  }
}

void AnswerSpoiler::SpoilLostBlocks(StepResult* result) {
  if (random_.OneIn(2)) {
    result->lost_host_blocks.push_back(
        HostBlockId{random_.OneIn(2) ? -1 : options_.num_host_blocks});
    return;
  }
  result->lost_blocks.push_back(
      BlockId{random_.OneIn(2) ? 0 : options_.num_blocks});
}

void AnswerSpoiler::SpoilCounts(const EvictionOrder& order,
                                std::vector<int32_t>* counts) {
  if (options_.num_shards > 1 && OverfillShard(options_, order, counts)) return;
  int32_t& count = (*counts)[random_.Next() % counts->size()];
  count = random_.OneIn(2) ? -1 : count + options_.page_size * 64;
  if (random_.OneIn(3)) counts->pop_back();
}

}  // namespace blockmgr::sim
