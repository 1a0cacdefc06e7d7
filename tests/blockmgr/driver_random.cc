#include "tests/blockmgr/driver_random.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <tuple>

#include "blockmgr/base/bits.h"
#include "tests/testing/random.h"

namespace blockmgr {

int32_t DriverRandom::Int(int32_t low, int32_t high) {
  return RandomInt(numbers_, low, high);
}

bool DriverRandom::Chance(double probability) {
  return RandomChance(numbers_, probability);
}

SequenceSlot DriverRandom::AnySlot() {
  const auto& sequences = model_.sequences();
  const int32_t i = Int(0, static_cast<int32_t>(sequences.size()) - 1);
  return std::next(sequences.begin(), i)->first;
}

SequenceSlot DriverRandom::SlotToCompress() {
  const SequenceSlot any = AnySlot();
  for (const auto& [slot, sequence] : model_.sequences()) {
    if (IsReady(sequence) && Chance(0.7)) return slot;
  }
  return any;
}

bool DriverRandom::IsReady(const NaiveSequence& sequence) const {
  const int32_t page_size = layout_.page_size;
  return layout_.has_windows() &&
         sequence.num_settled == sequence.num_reserved &&
         sequence.num_settled % page_size == 0 &&
         sequence.num_settled > sequence.cut() + page_size;
}

void DriverRandom::AppendTokens(std::vector<int32_t>* tokens, int32_t count) {
  // There are only two kinds of pages, so that many prompts begin alike.
  for (int32_t i = 0; i < count; ++i) {
    const bool begins = std::ssize(*tokens) % layout_.page_size == 0;
    tokens->push_back(begins ? Int(0, 1) : tokens->back());
  }
}

std::string DriverRandom::History() {
  // Equal regions matter most with windows, so there are few names.
  const bool few = layout_.has_windows();
  std::string history(1, Chance(few ? 0.9 : 0.5) ? 'a' : 'b');
  if (Chance(few ? 0.1 : 0.3)) history += 'c';
  return history;
}

std::vector<RetentionRange> DriverRandom::Wishes() {
  std::vector<RetentionRange> wishes(Int(1, 3));
  for (RetentionRange& wish : wishes) {
    wish.begin = Int(0, layout_.page_size * 4);
    wish.end = wish.begin + Int(1, layout_.page_size * 4);
    wish.retention.priority = static_cast<uint8_t>(Int(0, kMaxPriority));
    if (Chance(0.5)) wish.retention.expires_ms = state_.now_ms + Int(0, 20);
  }
  return wishes;
}

NaiveSequence DriverRandom::Sequence() {
  const int32_t page_size = layout_.page_size;
  NaiveSequence sequence;
  sequence.scope = Chance(0.2) ? 1 : 0;
  const bool has_windows = layout_.has_windows();
  const auto& compressed = state_.compressed;
  const bool again = !compressed.empty() && Chance(has_windows ? 0.5 : 0.3);
  if (again) {
    // A conversation that was compressed goes on.
    const auto last = static_cast<int32_t>(compressed.size()) - 1;
    std::tie(sequence.scope, sequence.tokens) =
        compressed[static_cast<size_t>(Int(std::max(0, last - 3), last))];
  }
  const int32_t num_more = again         ? Int(0, page_size)
                           : Chance(0.5) ? Int(0, page_size * 6)
                                         : Int(0, 6) * page_size;
  const bool same = again && has_windows && Chance(0.7);
  if (!same) AppendTokens(&sequence.tokens, num_more);
  if (Chance(0.3)) sequence.wishes = Wishes();
  state_.SetNames(&sequence);
  return sequence;
}

std::vector<TokenDemand> DriverRandom::Demands() {
  std::vector<TokenDemand> demands;
  for (const auto& [slot, sequence] : model_.sequences()) {
    // A sequence with an order on its way rarely grows: a region can be
    // published only if nothing was added since the order.
    const double haste = layout_.has_windows() ? 0.02 : 0.1;
    const bool has_order = sequence.groups[0].pending.has_value();
    if (!Chance(has_order ? haste : 0.5)) continue;
    if (state_.HasOrderAtLength(slot)) continue;
    if (IsReady(sequence) && Chance(0.7)) continue;
    const int32_t page_size = layout_.page_size;
    const int32_t missing =
        static_cast<int32_t>(sequence.tokens.size()) - sequence.num_reserved;
    int32_t num_tokens = Int(0, 3 * page_size);
    if (state_.HasMovingRegion(sequence) && Chance(0.7)) {
      // At the end of this page, group 0 can be compressed again while the
      // window still has its region.
      num_tokens = page_size - sequence.num_reserved % page_size;
    } else if (Chance(0.3)) {
      num_tokens = CeilDiv(sequence.num_reserved, page_size) * page_size -
                   sequence.num_reserved;
    } else if (missing > 0 && Chance(0.5)) {
      num_tokens = missing;
    }
    demands.push_back({slot, num_tokens});
  }
  return demands;
}

int32_t DriverRandom::Cut(const NaiveSequence& sequence, int32_t group) {
  const int32_t page_size = layout_.page_size;
  // Nothing is evicted if all layers have a window.
  if (layout_.window > 0) return 0;
  if (layout_.window_of(group) > 0) {
    const int32_t cut = page_size * Int(0, sequence.num_reserved / page_size);
    if (!Chance(0.7)) return cut;
    return (sequence.num_reserved - 1) / page_size * page_size;
  }
  const int32_t begin = sequence.groups[group].region.cut;
  const int32_t num_full = (sequence.num_reserved - begin) / page_size;
  if (num_full == 0) return begin;
  const int32_t num_cut = Int(1, num_full);
  const bool leaves_one =
      Chance(layout_.has_windows() ? 0.8 : 0.5) && num_full > 1;
  return begin + page_size * (leaves_one ? num_full - 1 : num_cut);
}

int64_t DriverRandom::PageTotal(SequenceSlot slot, int32_t group,
                                const BookOrder& order) {
  const NaiveSequence& sequence = model_.at(slot);
  const int32_t per_block = state_.config.PagesPerShard();
  if (layout_.window_of(group) == 0) {
    const int32_t num_full =
        (sequence.num_reserved - sequence.groups[group].region.cut) /
        layout_.page_size;
    return Int(1, per_block * Int(1, 1 + num_full));
  }
  const BookCover covered =
      model_.CoveredBy(slot, group, order.cut, order.length);
  const int64_t page_total =
      Int(1, per_block * (1 + static_cast<int32_t>(covered.pages.size())));
  const auto num_own =
      std::ssize(model_.OwnBlocks(slot, group, order.cut, order.length));
  // With as many pages as it has own blocks for, the group can evict in place.
  // Its old region then leaves the cache.
  if (num_own > 0 && Chance(0.3)) return per_block * num_own;
  return page_total;
}

std::vector<int32_t> DriverRandom::Counts(SequenceSlot slot, int32_t group) {
  const BookOrder& order = *model_.at(slot).groups[group].pending;
  const std::vector<int32_t> held = model_.EntriesCovered(slot, group);
  const int32_t num_heads = layout_.pages_per_block();
  const int32_t page_size = layout_.page_size;
  std::vector<int64_t> pages_left = order.page_totals;
  std::vector<int32_t> counts(num_heads, 0);
  std::vector<int32_t> heads(num_heads);
  for (int32_t i = 0; i < num_heads; ++i) heads[i] = i;
  std::ranges::shuffle(heads, numbers_);
  const bool greedy = Chance(0.5);
  for (const int32_t i : heads) {
    int64_t& left = pages_left[state_.config.ShardOf(i)];
    const auto most =
        static_cast<int32_t>(std::min<int64_t>(held[i], left * page_size));
    counts[i] = greedy && Chance(0.7) ? most : Int(0, most);
    left -= CeilDiv(counts[i], page_size);
  }
  return counts;
}

}  // namespace blockmgr
