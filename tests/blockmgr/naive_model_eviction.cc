// The eviction half of NaiveModel.

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <utility>

#include <gtest/gtest.h>

#include "blockmgr/base/bits.h"
#include "tests/blockmgr/naive_model.h"

namespace blockmgr {

std::vector<BlockId> NaiveModel::Below(const NaiveSequence& sequence,
                                       int32_t cut) const {
  std::vector<BlockId> blocks = sequence.region_blocks;
  int32_t position = sequence.cut;
  for (const BlockId block : sequence.tail) {
    if (position < cut && block != kNullBlock) blocks.push_back(block);
    position += layout_.page_size;
  }
  return blocks;
}

std::vector<BlockId> NaiveModel::OwnBlocks(SequenceSlot slot,
                                           int32_t cut) const {
  const std::vector<int32_t> holders = Holders();
  std::vector<BlockId> own;
  for (const BlockId block : Below(at(slot), cut)) {
    if (holders[Index(block)] == 1) own.push_back(block);
  }
  return own;
}

int32_t NaiveModel::NumOwnBlocks(SequenceSlot slot, int32_t cut) const {
  const NaiveSequence& sequence = at(slot);
  const int32_t end =
      sequence.cut +
      static_cast<int32_t>(sequence.tail.size()) * layout_.page_size;
  const std::vector<BlockId> parts = PartBlocks(sequence);
  const bool leaves = !parts.empty() && !IsWriter(slot, parts.front()) &&
                      cut >= end && Holders()[Index(parts.front())] > 1;
  return static_cast<int32_t>(OwnBlocks(slot, cut).size()) + (leaves ? 1 : 0) +
         std::max(0, cut - end) / layout_.page_size;
}

int32_t NaiveModel::NumReleasable(SequenceSlot slot) const {
  const std::vector<int32_t> holders = Holders();
  const NaiveSequence& sequence = at(slot);
  std::vector<BlockId> held = Held(sequence);
  for (const NaiveSequence::Order& order : Orders(sequence)) {
    held.insert(held.end(), order.fresh.begin(), order.fresh.end());
  }
  for (const CopyOnWrite& copy : copies_) {
    if (copy.slot == slot) held.push_back(copy.blocks.source);
  }
  return static_cast<int32_t>(std::ranges::count_if(
      held, [&](BlockId block) { return holders[Index(block)] == 1; }));
}

int32_t NaiveModel::ReserveEviction(SequenceSlot slot,
                                    NaiveSequence::Order order) {
  const std::vector<BlockId> candidates =
      order.group == 0
          ? OwnBlocks(slot, order.cut)
          : OwnInWindow(slot, order.group, order.cut, order.length);
  int32_t num_uncached = 0;
  for (const BlockId block : candidates) {
    num_uncached += IsCached(block) ? 0 : 1;
  }
  // A region and its tail go last.
  const std::vector<BlockId>& region_blocks =
      RegionBlocksOf(at(slot), order.group);
  const uint64_t region =
      region_blocks.empty() ? 0 : RegionWith(region_blocks[0]);
  const auto is_region = [&](BlockId block) {
    if (region == 0) return false;
    const auto entry = cached_.find(block);
    const bool is_tail = regions_.at(region).tail == block &&
                         entry != cached_.end() &&
                         entry->second.id == regions_.at(region).tail_id;
    return is_tail || RegionWith(block) == region;
  };
  const auto num_others = static_cast<int32_t>(
      std::ranges::count_if(candidates, std::not_fn(is_region)));
  EXPECT_EQ(std::ranges::count_if(order.own, is_region),
            std::max(0, static_cast<int32_t>(order.own.size()) - num_others));
  // Own blocks: a subsequence of the candidates, hence distinct, unshared and
  // in table order.
  auto next = candidates.begin();
  int32_t num_dropped = 0;
  std::set<uint64_t> dropped_regions;
  for (const BlockId block : order.own) {
    next = std::find(next, candidates.end(), block);
    EXPECT_NE(next, candidates.end()) << "no block of its own, or misplaced";
    if (next == candidates.end()) break;
    ++next;
    if (!IsCached(block)) continue;
    ++num_dropped;
    if (cached_.contains(block)) {
      Uncache(block);
    } else {
      dropped_regions.insert(RegionWith(block));
    }
  }
  for (const uint64_t id : dropped_regions) DropRegion(id);
  EXPECT_EQ(num_dropped,
            std::max<int32_t>(
                0, static_cast<int32_t>(order.own.size()) - num_uncached))
      << "a cached block is taken only when there is no other";
  if (order.group == 0) {
    EXPECT_FALSE(at(slot).pending.has_value());
    at(slot).pending = std::move(order);
  } else {
    const int32_t group = order.group;
    EXPECT_TRUE(
        at(slot).window_pending.emplace(group, std::move(order)).second);
  }
  return num_dropped;
}

void NaiveModel::AbortEviction(SequenceSlot slot, int32_t group) {
  NaiveSequence::Order order;
  if (group == 0) {
    order = *std::move(at(slot).pending);
    at(slot).pending.reset();
  } else {
    order = std::move(at(slot).window_pending.at(group));
    at(slot).window_pending.erase(group);
  }
  for (const BlockId block : order.fresh) Released(block);
}

EvictionReceipt NaiveModel::Rebuild(const NaiveSequence::Order& order,
                                    const std::vector<BlockId>& tail,
                                    const std::vector<int32_t>& counts,
                                    NaiveRegion* region) {
  std::vector<BlockId> involved = region->blocks;
  involved.insert(involved.end(), tail.begin(), tail.end());
  EvictionReceipt receipt;
  receipt.freed_blocks = static_cast<int32_t>(involved.size());
  involved.insert(involved.end(), order.fresh.begin(), order.fresh.end());
  std::vector<BlockId> destination_blocks = order.own;
  destination_blocks.insert(destination_blocks.end(), order.fresh.begin(),
                            order.fresh.end());
  std::vector<int32_t> destinations(destination_blocks.size());
  std::ranges::transform(destination_blocks, destinations.begin(),
                         [](BlockId block) { return Index(block); });
  NaivePages lists;
  std::map<NaiveHead, int32_t> wanted;
  for (int32_t i = 0; i < layout_.pages_per_block(); ++i) {
    const NaiveHead head{i / layout_.num_heads, i % layout_.num_heads};
    if (!region->kept.empty()) lists[head] = region->pages.at(head);
    for (const BlockId block : tail) {
      lists[head].push_back({head.first, Index(block), head.second});
    }
    wanted[head] = CeilDiv(counts[i], layout_.page_size);
    const int32_t held = static_cast<int32_t>(tail.size()) * layout_.page_size +
                         (region->kept.empty() ? 0 : region->kept[i]);
    receipt.evicted_entries += held - counts[i];
  }
  region->pages =
      NaiveLayout({layout_.num_layers, layout_.num_heads, layout_.num_shards},
                  destinations, lists, wanted);

  std::set<int32_t> used;
  for (const auto& [head, pages] : region->pages) {
    for (const NaivePage& page : pages) used.insert(page[1]);
  }
  region->blocks.clear();
  for (const BlockId block : destination_blocks) {
    if (used.contains(Index(block))) region->blocks.push_back(block);
    written_.erase(block);
    for (int32_t i = 0; i < layout_.page_size; ++i) rows_.erase({block, i});
  }
  receipt.freed_blocks -= static_cast<int32_t>(region->blocks.size());
  region->cut = order.cut;
  region->length = order.length;
  region->kept = counts;
  // The end of the table first.
  for (auto block = involved.rbegin(); block != involved.rend(); ++block) {
    if (!used.contains(Index(*block))) Released(*block);
  }
  return receipt;
}

EvictionReceipt NaiveModel::CommitEviction(SequenceSlot slot,
                                           const std::vector<int32_t>& counts,
                                           const RegionName* name) {
  NaiveSequence& sequence = at(slot);
  const NaiveSequence::Order order = *std::move(sequence.pending);
  sequence.pending.reset();
  const int32_t num_tail = (order.cut - sequence.cut) / layout_.page_size;
  const std::vector<BlockId> tail(sequence.tail.begin(),
                                  sequence.tail.begin() + num_tail);
  const int32_t cut_before = sequence.cut;
  const uint64_t region_before = sequence.region_blocks.empty()
                                     ? 0
                                     : RegionWith(sequence.region_blocks[0]);
  NaiveRegion region{.cut = sequence.cut,
                     .length = sequence.length,
                     .blocks = sequence.region_blocks,
                     .kept = sequence.kept,
                     .pages = sequence.pages};
  EvictionReceipt receipt = Rebuild(order, tail, counts, &region);
  sequence.region_blocks = region.blocks;
  sequence.pages = region.pages;
  sequence.lineage = next_lineage_++;
  sequence.tail.erase(sequence.tail.begin(), sequence.tail.begin() + num_tail);
  sequence.cut = order.cut;
  sequence.kept = counts;
  PublishOrBreak(slot, name, &receipt);
  for (int32_t i = num_tail; receipt.cached && i-- > 0;) {
    if (cut_before + i * layout_.page_size >= sequence.num_found) {
      Supersede(tail[static_cast<size_t>(i)]);
    }
  }
  if (receipt.cached && sequence.num_found <= cut_before) {
    SupersedeRegion(region_before);
  }
  return receipt;
}

void NaiveModel::PublishOrBreak(SequenceSlot slot, const RegionName* name,
                                EvictionReceipt* receipt) {
  NaiveSequence& sequence = at(slot);
  sequence.length = sequence.num_settled;
  receipt->published = caching_ && name != nullptr &&
                       sequence.window_pending.empty() &&
                       PublishRegion(&sequence, *name, &receipt->cached);
  if (!receipt->published) BreakChain(&sequence);
}

void NaiveModel::BreakChain(NaiveSequence* sequence) {
  sequence->chain = 0;
  // Nobody else's, unless a region stands for it again.
  sequence->context = "private " + std::to_string(next_entry_++);
}

bool NaiveModel::PublishRegion(NaiveSequence* sequence, const RegionName& name,
                               bool* is_new) {
  if (sequence->region_blocks.empty() || sequence->num_settled != name.length) {
    return false;
  }
  const std::vector<int32_t> tokens =
      Prefix(sequence->tokens, name.length / layout_.page_size);
  uint64_t id = 0;
  for (const auto& [other, region] : regions_) {
    const auto tail_entry = cached_.find(region.tail);
    const bool usable =
        tail_entry != cached_.end() && tail_entry->second.id == region.tail_id;
    const bool equal =
        region.group == 0 && usable && region.scope == sequence->scope &&
        region.tokens == tokens && region.name.plan == name.plan &&
        name.history == region.name.history;
    if (!equal) continue;
    if (IsComplete(region)) {
      id = other;
    } else {
      ++tally_->replaced_regions;
    }
  }
  if (id == 0 && !HasWindows(*sequence)) {
    ++tally_->unpublished_regions;
    return false;
  }
  *is_new = id == 0;
  if (id == 0) {
    // The block after the region, in the cache already or not.
    const BlockId tail = sequence->tail.front();
    if (!cached_.contains(tail)) {
      Entry entry;
      entry.prefix = tokens;
      entry.scope = sequence->scope;
      entry.parent = next_entry_++;  // no other block's
      entry.id = next_entry_++;
      by_content_[ContentOf(entry)] = tail;
      cached_[tail] = std::move(entry);
    }
    ApplyWishes(*sequence, {tail, 0}, sequence->cut, name.length,
                sequence->cut);
    PublishWindows(*sequence, sequence->cut / layout_.page_size,
                   cached_.at(tail).id, sequence->cut);
    Region region;
    region.scope = sequence->scope;
    region.name = name;
    region.tokens = tokens;
    region.blocks = sequence->region_blocks;
    region.kept = sequence->kept;
    region.pages = sequence->pages;
    region.tail = tail;
    region.tail_id = cached_.at(tail).id;
    region.lineage = sequence->lineage;
    LinkWindows(*sequence, name.length, &region);
    id = next_entry_++;
    regions_[id] = std::move(region);
    ApplyWishes(*sequence, {kNullBlock, id}, 0, 0, sequence->cut);
  }
  sequence->chain = id;
  sequence->num_offered = name.length / layout_.page_size;
  sequence->context = ContextOf(regions_.at(id).name);
  return true;
}

std::string NaiveModel::ContextOf(const RegionName& name) {
  return name.plan + "/" + name.history + "/" + std::to_string(name.length);
}

int32_t NaiveModel::num_cached_regions() const {
  return static_cast<int32_t>(std::ranges::count_if(
      regions_, [](const auto& region) { return region.second.group == 0; }));
}

int32_t NaiveModel::num_cached_blocks() const {
  size_t count = cached_.size();
  for (const auto& [id, region] : regions_) count += region.blocks.size();
  return static_cast<int32_t>(count);
}

uint64_t NaiveModel::RegionWith(BlockId block) const {
  for (const auto& [id, region] : regions_) {
    if (std::ranges::count(region.blocks, block) > 0) return id;
  }
  return 0;
}

void NaiveModel::Supersede(BlockId block) {
  const auto found = cached_.find(block);
  if (found == cached_.end() || Holders()[Index(block)] > 0) return;
  Entry& entry = found->second;
  if (entry.superseded || !(entry.retention == Retention{})) return;
  entry.superseded = true;
  entry.retention.priority = kDefaultPriority - 1;
  // The last of those that go first, some of which were wished to.
  if (line_.contains({block, 0})) line_[{block, 0}] = next_in_line_++;
  if (released_[Index(block)] <= acknowledged_) left_[block] = next_left_++;
}

void NaiveModel::SupersedeRegion(uint64_t id) {
  if (id == 0) return;
  Region& region = regions_.at(id);
  if (Holders()[Index(region.blocks.front())] > 0) return;
  if (region.superseded || !(region.retention == Retention{})) return;
  region.superseded = true;
  region.retention.priority = kDefaultPriority - 1;
  if (line_.contains({kNullBlock, id})) {
    line_[{kNullBlock, id}] = next_in_line_++;
  }
  const BlockId first = region.blocks.front();
  if (released_[Index(first)] <= acknowledged_) left_[first] = next_left_++;
}

void NaiveModel::DropRegion(uint64_t id) {
  const Region region = std::move(regions_.at(id));
  regions_.erase(id);
  if (line_.erase({kNullBlock, id}) > 0) {
    num_freed_ += static_cast<int32_t>(region.blocks.size());
  }
  for (const std::map<int32_t, Link>& window : region.windows) {
    for (const auto& [page, link] : window) {
      if (!IsAlive(link) || cached_.at(link.first).of != 0) continue;
      if (!IsLinked(link.first)) DropOrphan(link.first);
    }
  }
  for (const auto& [window, linked] : region.window_regions) {
    if (regions_.contains(linked) && !IsLinked(linked)) {
      DropOrphanRegion(linked);
    }
  }
}

}  // namespace blockmgr
