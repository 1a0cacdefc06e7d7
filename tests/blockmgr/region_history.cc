#include "tests/blockmgr/region_history.h"

#include <algorithm>
#include <array>
#include <utility>

#include "blockmgr/base/bits.h"

namespace blockmgr {
namespace {

// Of the pool, for every block of the first tail: more than are ever taken.
constexpr int32_t kBlocksPerBlock = 12;

}  // namespace

RegionHistory::RegionHistory(std::mt19937_64& random, int32_t num_blocks) {
  constexpr std::array<int32_t, 4> kPageSizes = {1, 2, 4, 16};
  layout_ = {.num_layers = RandomInt(random, 1, 3),
             .num_heads = RandomInt(random, 1, 4),
             .num_q_heads = 0,
             .head_dim = 8,
             .page_size = kPageSizes[std::min(RandomInt(random, 0, 9) / 3, 3)],
             .dtype = DType::kFloat32,
             .num_blocks = 128 + kBlocksPerBlock * num_blocks};
  if (RandomChance(random, 0.5)) {
    layout_.num_shards = RandomInt(random, 1, 3);
    layout_.num_heads = layout_.num_shards * RandomInt(random, 1, 2);
  }
  layout_.num_q_heads = layout_.num_heads;
  Grow(num_blocks);
}

std::vector<NaiveHead> RegionHistory::heads() const {
  std::vector<NaiveHead> heads;
  for (int32_t layer = 0; layer < layout_.num_layers; ++layer) {
    for (int32_t head = 0; head < layout_.num_heads; ++head) {
      heads.emplace_back(layer, head);
    }
  }
  return heads;
}

SlotIndex RegionHistory::slot_index(const NaiveSlot& slot) const {
  const auto& [page, offset] = slot;
  return layout_.slot(layout_.page_id(page[0], BlockId{page[1]}, page[2]),
                      offset);
}

CacheView RegionHistory::view(const RandomEviction& eviction,
                              bool whole_tail) const {
  CacheView view;
  if (region_.has_value()) view.region = &*region_;
  view.tail_blocks = tail_;
  if (!whole_tail) {
    view.tail_blocks = view.tail_blocks.first(eviction.num_tail_blocks);
  }
  return view;
}

void RegionHistory::Grow(int32_t num_blocks) {
  for (int32_t i = 0; i < num_blocks; ++i) {
    const int32_t begin = length();
    const BlockId block = NewBlock();
    tail_.push_back(block);
    for (const NaiveHead& head : heads()) {
      for (int32_t offset = 0; offset < layout_.page_size; ++offset) {
        held_[head].push_back(
            {{{head.first, Index(block), head.second}, offset},
             begin + offset});
      }
    }
  }
}

std::vector<RegionHistory::HeldSlot> RegionHistory::HeldBelow(
    const NaiveHead& head, int32_t cut) const {
  std::vector<HeldSlot> below;
  for (const HeldSlot& held : held_.at(head)) {
    if (held.position < cut) below.push_back(held);
  }
  return below;
}

RandomEviction RegionHistory::NextEviction(std::mt19937_64& random) {
  RandomEviction eviction;
  // Mostly everything, as the cut of a real order is near the end.
  const auto num_tail = static_cast<int32_t>(tail_.size());
  eviction.num_tail_blocks =
      RandomChance(random, 0.5) ? num_tail : RandomInt(random, 1, num_tail);
  eviction.cut = cut_ + eviction.num_tail_blocks * layout_.page_size;

  constexpr std::array<double, 5> kRates = {0.0, 0.1, 0.4, 0.8, 1.0};
  std::vector<int32_t> num_pages(layout_.num_shards);
  eviction.keep.offsets.push_back(0);
  std::set<int32_t> blocks;
  for (const NaiveHead& head : heads()) {
    const double rate = kRates[RandomInt(random, 0, 4)];
    std::vector<int32_t> positions;
    for (const HeldSlot& held : HeldBelow(head, eviction.cut)) {
      positions.push_back(held.position);
      blocks.insert(held.slot.first[1]);
    }
    std::ranges::sort(positions);
    std::vector<int32_t>& kept = eviction.kept_positions[head];
    for (size_t rank = 0; rank < positions.size(); ++rank) {
      if (!RandomChance(random, rate)) continue;
      kept.push_back(positions[rank]);
      eviction.keep.ranks.push_back(static_cast<int32_t>(rank));
    }
    eviction.keep.offsets.push_back(std::ssize(eviction.keep.ranks));
    eviction.kept.push_back(static_cast<int32_t>(kept.size()));
    num_pages[head.second * layout_.num_shards / layout_.num_heads] +=
        CeilDiv(eviction.kept.back(), layout_.page_size);
  }

  std::vector<int32_t> own;  // the others are shared: never a destination
  for (const int32_t block : blocks) {
    if (RandomChance(random, 0.7)) own.push_back(block);
  }
  std::ranges::shuffle(own, random);
  const int32_t need = CeilDiv(std::ranges::max(num_pages),
                               layout_.pages_per_block() / layout_.num_shards) +
                       RandomInt(random, 0, 1);
  own.resize(
      RandomInt(random, 0, std::min(need, static_cast<int32_t>(own.size()))));
  const bool in_order = RandomChance(random, 0.5);  // as a manager has them
  if (in_order) std::ranges::sort(own);
  for (const int32_t block : own) {
    eviction.destinations.push_back(BlockId{block});
  }
  while (std::ssize(eviction.destinations) < need) {
    eviction.destinations.push_back(NewBlock());
  }
  if (!in_order) std::ranges::shuffle(eviction.destinations, random);
  for (const BlockId block : eviction.destinations) {
    eviction.writable.insert(Index(block));
  }
  return eviction;
}

NaivePages RegionHistory::NaiveNext(const RandomEviction& eviction) const {
  NaivePages lists;
  std::map<NaiveHead, int32_t> counts;
  for (const NaiveHead& head : heads()) {
    std::vector<NaiveSlot> slots;
    for (const HeldSlot& held : HeldBelow(head, eviction.cut)) {
      slots.push_back(held.slot);
    }
    lists[head] = PagesOf(slots);
    counts[head] =
        CeilDiv(static_cast<int32_t>(eviction.kept_positions.at(head).size()),
                layout_.page_size);
  }
  std::vector<int32_t> destinations;
  for (const BlockId block : eviction.destinations) {
    destinations.push_back(Index(block));
  }
  return NaiveLayout(
      {layout_.num_layers, layout_.num_heads, layout_.num_shards}, destinations,
      lists, counts);
}

void RegionHistory::Advance(const RandomEviction& eviction, RaggedRegion next,
                            std::vector<int32_t> positions) {
  const NaivePages pages = NaiveNext(eviction);
  size_t i = 0;
  for (const NaiveHead& head : heads()) {
    std::vector<HeldSlot> held;
    const auto kept =
        static_cast<int32_t>(eviction.kept_positions.at(head).size());
    held.reserve(held_[head].size());
    for (int32_t place = 0; place < kept; ++place) {
      held.push_back({{pages.at(head)[place / layout_.page_size],
                       place % layout_.page_size},
                      positions[i++]});
    }
    for (const HeldSlot& later : held_[head]) {
      if (later.position >= eviction.cut) held.push_back(later);
    }
    held_[head] = std::move(held);
  }
  region_ = std::move(next);
  region_positions_ = std::move(positions);
  tail_.erase(tail_.begin(), tail_.begin() + eviction.num_tail_blocks);
  cut_ = eviction.cut;
}

}  // namespace blockmgr
