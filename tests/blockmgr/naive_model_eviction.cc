// The eviction half of NaiveModel.

#include <algorithm>
#include <functional>
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
  for (const CopyOnWrite& copy : copies_) {
    if (copy.slot == slot) held.push_back(copy.blocks.source);
  }
  return static_cast<int32_t>(std::ranges::count_if(
      held, [&](BlockId block) { return holders[Index(block)] == 1; }));
}

int32_t NaiveModel::ReserveEviction(SequenceSlot slot, int32_t group,
                                    BookOrder order) {
  const std::vector<BlockId> candidates =
      OwnBlocks(slot, order.cut, group, order.length);
  int32_t num_uncached = 0;
  for (const BlockId block : candidates) {
    num_uncached += IsCached(block) ? 0 : 1;
  }
  // A region and its tail go last.
  const std::vector<BlockId>& region_blocks =
      at(slot).groups[group].region.blocks;
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
  std::set<EntryName> dropped;
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
      dropped.insert({kNullBlock, RegionWith(block)});
    }
  }
  for (const EntryName& entry : dropped) Drop(entry);
  EXPECT_EQ(num_dropped,
            std::max<int32_t>(
                0, static_cast<int32_t>(order.own.size()) - num_uncached))
      << "a cached block is taken only when there is no other";
  EXPECT_FALSE(at(slot).groups[group].pending.has_value());
  at(slot).groups[group].pending = std::move(order);
  return num_dropped;
}

void NaiveModel::AbortEviction(SequenceSlot slot, int32_t group) {
  std::optional<BookOrder>& pending = at(slot).groups[group].pending;
  if (!pending.has_value()) return;
  for (const BlockId block : pending->Fresh()) Released(block);
  pending.reset();
}

EvictionReceipt NaiveModel::CommitEviction(SequenceSlot slot, int32_t group,
                                           const std::vector<int32_t>& counts,
                                           const RegionName* name) {
  NaiveSequence& sequence = at(slot);
  GroupBook& book = sequence.groups[group];
  const BookOrder order = *book.pending;
  const BookRegion before = book.region;
  const uint64_t known =
      before.blocks.empty() ? 0 : RegionWith(before.blocks.front());
  const BookCover covered = CoveredBy(slot, group, order.cut, order.length);
  if (group > 0) {
    EXPECT_EQ(sequence.num_settled, order.length);
    tally_->window_regions_again += covered.region.cut > 0 ? 1 : 0;
    ++tally_->window_regions;
    sequence.was_evicted_in_windows = true;
  }
  std::vector<BlockId> gone;
  const BookReceipt made = rules_.Commit(group, counts, &book, &gone);
  for (const BlockId block : gone) Released(block);
  for (const BlockId block : order.destinations) {
    written_.erase(block);
    for (int32_t i = 0; i < layout_.page_size; ++i) rows_.erase({block, i});
  }
  book.region.length = sequence.num_settled;
  sequence.lineage = next_lineage_++;
  EvictionReceipt receipt;
  receipt.evicted_entries = made.evicted_entries;
  receipt.freed_blocks = made.freed_blocks;
  receipt.published = group == 0 && caching_ && name != nullptr &&
                      !sequence.has_pending() &&
                      PublishRegion(&sequence, *name, &receipt.cached);
  if (!receipt.published) BreakChain(&sequence);
  if (!receipt.cached) return receipt;
  for (size_t i = covered.pages.size(); i-- > 0;) {
    const int32_t begin =
        before.cut + static_cast<int32_t>(i) * layout_.page_size;
    if (begin >= sequence.num_found) Supersede({covered.pages[i], 0});
  }
  if (sequence.num_found <= before.cut) Supersede({kNullBlock, known});
  return receipt;
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
    region.book = own;
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
  for (const auto& [id, region] : regions_) count += region.book.blocks.size();
  return static_cast<int32_t>(count);
}

uint64_t NaiveModel::RegionWith(BlockId block) const {
  for (const auto& [id, region] : regions_) {
    if (std::ranges::count(region.book.blocks, block) > 0) return id;
  }
  return 0;
}

void NaiveModel::Supersede(const EntryName& name) {
  if (!cached_.contains(name.first) && !regions_.contains(name.second)) return;
  const BlockId first = FirstOf(name);
  Wished& entry = At(name);
  if (Holders()[Index(first)] > 0) return;
  if (entry.superseded || !(entry.retention == Retention{})) return;
  entry.superseded = true;
  entry.retention.priority = kDefaultPriority - 1;
  // The last of those that go first, some of which were wished to.
  if (line_.contains(name)) line_[name] = next_in_line_++;
  if (released_[Index(first)] <= acknowledged_) left_[first] = next_left_++;
}

void NaiveModel::DropRegion(uint64_t id) {
  const Region region = std::move(regions_.at(id));
  regions_.erase(id);
  if (line_.erase({kNullBlock, id}) > 0) {
    num_freed_ += static_cast<int32_t>(region.book.blocks.size());
  }
  for (const auto& [group, window] : region.windows) {
    for (const auto& [page, link] : window.pages) {
      if (!IsAlive(link) || cached_.at(link.first).of != 0) continue;
      if (!IsLinked(link.first)) DropOrphan({link.first, 0});
    }
  }
  for (const auto& [group, window] : region.windows) {
    if (regions_.contains(window.id) && !IsLinked(window.id)) {
      DropOrphan({kNullBlock, window.id});
    }
  }
}

void NaiveModel::DropOrphan(const EntryName& entry) {
  const BlockId block = FirstOf(entry);
  const bool used = Holders()[Index(block)] > 0;
  const bool waits = !used && released_[Index(block)] > acknowledged_;
  fences_are_bounds_ |= waits;
  if (entry.second == 0) {
    ++tally_->orphans;
    tally_->orphans_in_use += used ? 1 : 0;
    tally_->orphans_in_fence += waits ? 1 : 0;
  } else {
    ++tally_->dropped_window_regions;
  }
  Drop(entry);
}

}  // namespace blockmgr
