// The eviction half of NaiveModel.

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <utility>

#include <gtest/gtest.h>

#include "tests/blockmgr/naive_model.h"

namespace blockmgr {

std::vector<BlockId> NaiveModel::OwnBlocks(SequenceSlot slot, int32_t cut,
                                           int32_t group,
                                           int32_t length) const {
  const std::vector<int32_t> holders = Holders();
  std::vector<BlockId> own = CoveredBy(slot, group, cut, length).Blocks();
  std::erase_if(own, [&](BlockId block) { return holders[Index(block)] != 1; });
  return own;
}

int32_t NaiveModel::NumOwnBlocks(SequenceSlot slot, int32_t cut) const {
  const NaiveSequence& sequence = at(slot);
  const int32_t end =
      static_cast<int32_t>(sequence.groups[0].pages.size()) * layout_.page_size;
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
      OwnBlocks(slot, order.cut, order.group, order.length);
  int32_t num_uncached = 0;
  for (const BlockId block : candidates) {
    num_uncached += IsCached(block) ? 0 : 1;
  }
  // A region and its tail go last.
  const std::vector<BlockId>& region_blocks =
      at(slot).groups[order.group].region.blocks;
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
                                    const std::vector<int32_t>& counts,
                                    NaiveSequence* sequence) {
  GroupBook& book = sequence->groups[order.group];
  std::vector<BlockId> destinations = order.own;
  destinations.insert(destinations.end(), order.fresh.begin(),
                      order.fresh.end());
  const BookCover covered =
      rules_.CoveredBy(book, order.group, order.cut, order.length);
  book.region =
      rules_.Rebuild(covered, destinations, counts, order.cut, order.length);
  for (const BlockId block : destinations) {
    written_.erase(block);
    for (int32_t i = 0; i < layout_.page_size; ++i) rows_.erase({block, i});
  }
  // The end of the table first.
  std::vector<BlockId> involved = covered.Blocks();
  involved.insert(involved.end(), order.fresh.begin(), order.fresh.end());
  for (auto block = involved.rbegin(); block != involved.rend(); ++block) {
    if (std::ranges::count(book.region.blocks, *block) == 0) Released(*block);
  }
  const BookReceipt made = rules_.ReceiptOf(covered, book.region);
  EvictionReceipt receipt;
  receipt.evicted_entries = made.evicted_entries;
  receipt.freed_blocks = made.freed_blocks;
  return receipt;
}

EvictionReceipt NaiveModel::CommitEviction(SequenceSlot slot,
                                           const std::vector<int32_t>& counts,
                                           const RegionName* name) {
  NaiveSequence& sequence = at(slot);
  const NaiveSequence::Order order = *std::move(sequence.pending);
  sequence.pending.reset();
  GroupBook& book = sequence.groups[0];
  const int32_t cut_before = sequence.cut();
  const std::vector<BlockId> tail =
      CoveredBy(slot, 0, order.cut, order.length).pages;
  const uint64_t region_before =
      book.region.blocks.empty() ? 0 : RegionWith(book.region.blocks[0]);
  EvictionReceipt receipt = Rebuild(order, counts, &sequence);
  std::fill_n(book.pages.begin(), order.cut / layout_.page_size, kNullBlock);
  sequence.lineage = next_lineage_++;
  PublishOrBreak(slot, name, &receipt);
  for (size_t i = tail.size(); receipt.cached && i-- > 0;) {
    const int32_t begin =
        cut_before + static_cast<int32_t>(i) * layout_.page_size;
    if (begin >= sequence.num_found) Supersede(tail[i]);
  }
  if (receipt.cached && sequence.num_found <= cut_before) {
    SupersedeRegion(region_before);
  }
  return receipt;
}

void NaiveModel::PublishOrBreak(SequenceSlot slot, const RegionName* name,
                                EvictionReceipt* receipt) {
  NaiveSequence& sequence = at(slot);
  sequence.groups[0].region.length = sequence.num_settled;
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
  const BookRegion& own = sequence->region();
  if (own.blocks.empty() || sequence->num_settled != name.length) return false;
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
    const int32_t page = own.cut / layout_.page_size;
    const BlockId tail = sequence->groups[0].pages[page];
    if (!cached_.contains(tail)) {
      Entry entry;
      entry.prefix = tokens;
      entry.scope = sequence->scope;
      entry.parent = next_entry_++;  // no other block's
      entry.id = next_entry_++;
      by_content_[ContentOf(entry)] = tail;
      cached_[tail] = std::move(entry);
    }
    ApplyWishes(*sequence, {tail, 0}, own.cut, name.length, own.cut);
    PublishWindows(*sequence, page, cached_.at(tail).id, own.cut);
    Region region;
    region.scope = sequence->scope;
    region.name = name;
    region.tokens = tokens;
    region.blocks = own.blocks;
    region.kept = own.kept;
    region.pages = own.pages;
    region.tail = tail;
    region.tail_id = cached_.at(tail).id;
    region.lineage = sequence->lineage;
    LinkWindows(*sequence, name.length, &region);
    id = next_entry_++;
    regions_[id] = std::move(region);
    ApplyWishes(*sequence, {kNullBlock, id}, 0, 0, own.cut);
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
