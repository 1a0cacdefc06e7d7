// Regions under tensor parallelism: what a rank lays out and moves in its own
// memory is what the whole model's region says of its heads.

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "blockmgr/base/bits.h"
#include "blockmgr/compaction.h"
#include "blockmgr/ragged_region.h"
#include "tests/blockmgr/naive_layout.h"
#include "tests/blockmgr/region_history.h"
#include "tests/testing/case_count.h"

namespace blockmgr {
namespace {

constexpr int32_t kNumRankEvictions =
    20'000 / (kCaseDivisor * (kCaseDivisor > 1 ? 5 : 1));

// What one rank has: its own layout, region, positions and memory. A slot of
// its memory says which (head of the whole model, position) it holds.
class Rank {
 public:
  Rank(const ModelLayout& whole, int32_t shard)
      : whole_(whole),
        shard_(shard),
        num_heads_(whole.num_heads / whole.num_shards),
        layout_(whole) {
    layout_.num_heads = num_heads_;
    layout_.num_q_heads = num_heads_;
    layout_.num_shards = 1;
  }

  const ModelLayout& layout() const { return layout_; }
  const RaggedRegion* region() const {
    return region_.has_value() ? &*region_ : nullptr;
  }
  // The head of the whole model's that is the rank's i-th.
  int32_t HeadOf(int32_t i) const {
    return shard_ * num_heads_ + i % num_heads_;
  }
  int32_t WholeIndex(int32_t i) const {
    return i / num_heads_ * whole_.num_heads + HeadOf(i);
  }

  void Write(BlockId block, int32_t begin) {
    for (int32_t i = 0; i < layout_.num_layers * num_heads_; ++i) {
      const PageId page =
          layout_.page_id(i / num_heads_, block, i % num_heads_);
      for (int32_t offset = 0; offset < layout_.page_size; ++offset) {
        memory_[layout_.slot(page, offset)] = {WholeIndex(i), begin + offset};
      }
    }
  }

  // Carries out an eviction of the tail's first blocks and the region.
  void Evict(const RandomEviction& eviction, std::span<const BlockId> tail) {
    KeepSets keep;
    keep.offsets.push_back(0);
    std::vector<int32_t> counts;
    for (int32_t i = 0; i < layout_.num_layers * num_heads_; ++i) {
      const auto first =
          eviction.keep.ranks.begin() + eviction.keep.offsets[WholeIndex(i)];
      const auto last = eviction.keep.ranks.begin() +
                        eviction.keep.offsets[WholeIndex(i) + 1];
      keep.ranks.insert(keep.ranks.end(), first, last);
      keep.offsets.push_back(std::ssize(keep.ranks));
      counts.push_back(static_cast<int32_t>(last - first));
    }
    const CacheView now{.region = region(), .tail_blocks = tail};
    RaggedRegion next = RaggedRegion::LayOut(
        layout_, now, eviction.destinations, counts, eviction.cut);
    const EntryIndex entries =
        IndexEntries(layout_, now, positions_, eviction.cut);
    CompactionPlan plan = PlanCompaction(layout_, entries, keep, next);
    size_t begin = 0;
    for (const int64_t end : plan.moves.group_ends) {
      const auto before = memory_;
      for (; begin < static_cast<size_t>(end); ++begin) {
        const SlotMove& move = plan.moves.moves[begin];
        memory_[move.destination] = before.at(move.source);
      }
    }
    region_ = std::move(next);
    positions_ = std::move(plan.positions);
  }

  // Every slot of the region holds what it says.
  void ExpectContent(const RandomEviction& eviction) const {
    size_t place = 0;
    for (int32_t i = 0; i < layout_.num_layers * num_heads_; ++i) {
      std::vector<int32_t> found;
      for (int32_t j = 0; j < region_->kept()[i]; ++j) {
        const SlotIndex slot = layout_.slot(
            region_->pages(i)[j / layout_.page_size], j % layout_.page_size);
        const std::pair<int32_t, int32_t> expected(WholeIndex(i),
                                                   positions_[place++]);
        EXPECT_EQ(memory_.at(slot), expected);
        found.push_back(expected.second);
      }
      std::ranges::sort(found);
      EXPECT_EQ(found, eviction.kept_positions.at({i / num_heads_, HeadOf(i)}));
    }
  }

 private:
  const ModelLayout whole_;
  const int32_t shard_;
  const int32_t num_heads_;
  ModelLayout layout_;
  std::optional<RaggedRegion> region_;
  std::vector<int32_t> positions_;
  std::map<SlotIndex, std::pair<int32_t, int32_t>> memory_;
};

// The rank's lists are those of the whole model's region, page for page.
void ExpectSameLists(const ModelLayout& whole, const RaggedRegion& region,
                     const Rank& rank) {
  const ModelLayout& own = rank.layout();
  for (int32_t i = 0; i < own.pages_per_block(); ++i) {
    const std::span<const PageId> of_all = region.pages(rank.WholeIndex(i));
    const std::span<const PageId> of_rank = rank.region()->pages(i);
    ASSERT_EQ(of_all.size(), of_rank.size());
    EXPECT_EQ(region.held_pages()[rank.WholeIndex(i)],
              rank.region()->held_pages()[i]);
    for (size_t j = 0; j < of_all.size(); ++j) {
      EXPECT_EQ(whole.page_layer(of_all[j]), own.page_layer(of_rank[j]));
      EXPECT_EQ(whole.page_block(of_all[j]), own.page_block(of_rank[j]));
      EXPECT_EQ(whole.page_head(of_all[j]),
                rank.HeadOf(own.page_head(of_rank[j])));
    }
  }
}

TEST(ShardRegionTest, RanksLayOutAndMoveAloneWhatTheWholeModelSays) {
  const auto num_wanted = static_cast<int32_t>(CountCases(kNumRankEvictions));
  int32_t num_evictions = 0;
  // Blocks that one shard has no use for and another has.
  int32_t num_partly_used = 0;
  for (uint64_t seed = 1; num_evictions < num_wanted; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    RegionHistory history(random, RandomInt(random, 1, 6));
    const ModelLayout& layout = history.layout();
    if (layout.num_shards == 1) continue;
    std::vector<Rank> ranks;
    ranks.reserve(layout.num_shards);
    for (int32_t shard = 0; shard < layout.num_shards; ++shard) {
      ranks.emplace_back(layout, shard);
    }
    const int32_t rounds = RandomInt(random, 1, 4);
    int32_t num_written = 0;  // blocks, ever
    int32_t cut = 0;
    for (int32_t round = 0; round < rounds; ++round) {
      const RandomEviction eviction = history.NextEviction(random);
      const CacheView whole_now = history.view(eviction, true);
      for (size_t i = num_written - cut / layout.page_size;
           i < whole_now.tail_blocks.size(); ++i, ++num_written) {
        for (Rank& rank : ranks) {
          rank.Write(whole_now.tail_blocks[i],
                     cut + static_cast<int32_t>(i) * layout.page_size);
        }
      }
      const CacheView now = history.view(eviction, false);
      RaggedRegion region = RaggedRegion::LayOut(
          layout, now, eviction.destinations, eviction.kept, eviction.cut);
      std::set<BlockId> used;
      for (Rank& rank : ranks) {
        rank.Evict(eviction, now.tail_blocks);
        ExpectSameLists(layout, region, rank);
        rank.ExpectContent(eviction);
        used.insert(rank.region()->blocks().begin(),
                    rank.region()->blocks().end());
      }
      // A block stays as long as any shard has a page of it.
      EXPECT_EQ(
          std::set<BlockId>(region.blocks().begin(), region.blocks().end()),
          used);
      for (const Rank& rank : ranks) {
        num_partly_used += rank.region()->blocks().size() < used.size() ? 1 : 0;
      }
      ASSERT_FALSE(HasFailure());
      ++num_evictions;
      cut = eviction.cut;
      // In list order, the whole model's positions are the ranks' own.
      std::vector<int32_t> positions;
      for (const NaiveHead& head : history.heads()) {
        const std::vector<int32_t>& kept = eviction.kept_positions.at(head);
        positions.insert(positions.end(), kept.begin(), kept.end());
      }
      history.Advance(eviction, std::move(region), std::move(positions));
      history.Grow(RandomInt(random, 1, 3));
    }
  }
  EXPECT_GT(num_partly_used, 0);
}

}  // namespace
}  // namespace blockmgr
