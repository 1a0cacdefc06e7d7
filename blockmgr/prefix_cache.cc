#include "blockmgr/prefix_cache.h"

#include <algorithm>
#include <utility>

#include "blockmgr/base/bits.h"
#include "blockmgr/base/check.h"
#include "blockmgr/base/heap_bytes.h"

namespace blockmgr {

PrefixCache::PrefixCache(int32_t num_blocks, int32_t page_size,
                         int32_t num_groups)
    : page_size_(page_size),
      num_blocks_(num_blocks),
      num_groups_(num_groups),
      linked_blocks_(static_cast<size_t>(num_blocks) * (num_groups - 1),
                     kNullBlock),
      links_(num_groups == 1 ? 0 : num_blocks),
      entries_(num_blocks),
      order_(num_blocks),
      tokens_(static_cast<size_t>(num_blocks) * page_size),
      log_(num_blocks) {
  // Has room for more items than there can be. A hash table that is full grows
  // after enough erasures and insertions, even if its size stays the same.
  index_.reserve(num_blocks + num_blocks / 8);
  starts_.reserve(num_blocks + num_blocks / 8);
  orphans_.reserve(num_groups - 1);
}

int32_t PrefixCache::FindRegion(RegionId id) const {
  const auto found = region_entries_.find(id);
  return found == region_entries_.end() ? kNone : found->second;
}

int32_t PrefixCache::FindRegion(const BlockChain& chain, EntrySerial root,
                                std::span<const int32_t> tokens,
                                absl::string_view plan,
                                absl::string_view history,
                                Histories histories) const {
  const auto length = static_cast<int32_t>(tokens.size());
  const auto found =
      region_index_.find(chain.RegionKey(length / page_size_, plan));
  int32_t entry = found == region_index_.end() ? kNone : found->second;
  for (; entry != kNone; entry = entries_[entry].next_same_key) {
    const CachedRegion& cached = *region(entry);
    const RegionContent& content = *cached.content;
    const bool any = histories == Histories::kAny;
    // A match with more tokens may not need what the region links.
    if (histories == Histories::kEqual &&
        (content.history_size() != history.size() || !HasLinked(cached))) {
      continue;
    }
    // A region is of no use without its tail block, which may have been
    // reclaimed.
    if (cached.root == root && cached.plan == plan &&
        cached.length() == length &&
        serial(Index(cached.tail)) == cached.tail_serial &&
        content.Begins(tokens, any ? nullptr : &history, chain)) {
      return entry;
    }
  }
  return kNone;
}

int32_t PrefixCache::FindRegion(const RegionName& name, const BlockChain& chain,
                                EntrySerial root,
                                std::span<const int32_t> tokens) const {
  return FindRegion(chain, root, tokens.first(name.length), name.plan,
                    name.history, Histories::kEqual);
}

EntrySerial PrefixCache::AcquireRoot(absl::string_view root) {
  const auto [found, is_new] = roots_.try_emplace(root);
  if (is_new) {
    found->second.serial = next_serial_++;
    root_names_.emplace(found->second.serial, &found->first);
  }
  ++found->second.num_users;
  return found->second.serial;
}

void PrefixCache::AddRootUser(EntrySerial root) {
  const auto name = root_names_.find(root);
  BM_CHECK(name != root_names_.end());
  ++roots_.at(*name->second).num_users;
}

void PrefixCache::ReleaseRoot(EntrySerial root) {
  const auto name = root_names_.find(root);
  BM_CHECK(name != root_names_.end());
  const auto found = roots_.find(*name->second);
  BM_CHECK(found->second.num_users > 0);
  if (--found->second.num_users > 0) return;
  if (found->second.has_led) {
    log_.Append({.serial = root, .entry = kNone, .removed = true});
  }
  root_names_.erase(name);
  roots_.erase(found);
}

void PrefixCache::Match(const BlockChain& chain, size_t num_blocks,
                        std::span<const int32_t> tokens,
                        std::vector<BlockId>* blocks) const {
  BM_CHECK(chain.keys().size() >= num_blocks);
  const auto root = roots_.find(chain.root());
  if (root == roots_.end()) return;
  EntrySerial parent = root->second.serial;
  for (size_t i = 0; i < num_blocks; ++i) {
    const auto begin = static_cast<int32_t>(i) * page_size_;
    const int32_t block = Find(chain.keys()[i], parent, chain, tokens, begin);
    if (block == kNone) return;
    blocks->push_back(BlockId{block});
    parent = entries_[block].serial;
  }
}

int32_t PrefixCache::MatchRegion(const BlockChain& chain,
                                 std::span<const int32_t> tokens,
                                 const RegionQuery& query,
                                 int64_t* num_looks) const {
  const auto root = roots_.find(chain.root());
  if (root == roots_.end()) return kNone;
  const auto plan = root->second.plans.find(query.plan);
  if (plan == root->second.plans.end()) return kNone;
  const int32_t named = static_cast<int32_t>(chain.keys().size()) * page_size_;
  const std::map<int32_t, int32_t>& lengths = plan->second;
  auto i = lengths.upper_bound(std::min(named, query.max_length));
  for (int32_t tried = 0; i != lengths.begin() && tried < kMaxRegionLooks;
       ++tried) {
    --i;
    ++*num_looks;
    if (i->first > query.max_tokens_over(i->first)) continue;
    const int32_t entry =
        FindRegion(chain, root->second.serial, tokens.first(i->first),
                   query.plan, query.history,
                   query.any_history ? Histories::kAny : Histories::kPrefix);
    if (entry == kNone) continue;
    *num_looks += i->first / page_size_;
    return entry;
  }
  return kNone;
}

void PrefixCache::MatchOver(int32_t region_entry, const BlockChain& chain,
                            std::span<const int32_t> tokens, int32_t max_tokens,
                            std::vector<BlockId>* blocks) const {
  const CachedRegion& cached = *region(region_entry);
  blocks->push_back(cached.tail);
  int32_t before = region_entry;
  for (int32_t begin = cached.length(); begin + page_size_ <= max_tokens;
       begin += page_size_) {
    const BlockKey key =
        chain.KeyAfter(entries_[before].key, tokens, begin, page_size_);
    const int32_t block =
        Find(key, entries_[before].serial, chain, tokens, begin);
    if (block == kNone) return;
    blocks->push_back(BlockId{block});
    before = block;
  }
}

int32_t PrefixCache::Insert(BlockId block, const BlockKey& key,
                            const BlockChain& chain, EntrySerial parent,
                            std::span<const int32_t> tokens, int32_t begin,
                            bool* inserted) {
  BM_CHECK(!Contains(block));
  BM_CHECK(parent != kNoSerial);
  const std::span<const int32_t> own = tokens.subspan(begin, page_size_);
  const int32_t existing = Find(key, parent, chain, tokens, begin);
  *inserted = existing == kNone;
  if (existing != kNone) return existing;
  AddBlock(block, key, parent, own, chain.Media(begin, begin + page_size_));
  return Index(block);
}

void PrefixCache::InsertTail(BlockId block, const BlockKey& key,
                             const BlockChain& chain,
                             std::span<const int32_t> tokens, int32_t begin) {
  BM_CHECK(!Contains(block));
  // No entry has this serial, so no chain leads to the block.
  const EntrySerial parent = next_serial_++;
  AddBlock(block, key, parent, tokens.subspan(begin, page_size_),
           chain.Media(begin, begin + page_size_));
}

int32_t PrefixCache::InsertRegion(std::shared_ptr<const RegionRecord> record,
                                  const RegionName& name,
                                  const BlockChain& chain, EntrySerial root,
                                  std::span<const int32_t> tokens, BlockId tail,
                                  std::shared_ptr<const RegionContent> before,
                                  LinkedMemory linked) {
  BM_CHECK(record->id != kNoRegion);
  BM_CHECK(name.length == record->cut + page_size_);
  BM_CHECK(Contains(tail));
  BM_CHECK(FindRegion(name, chain, root, tokens) == kNone);
  tokens = tokens.first(name.length);
  auto cached = std::make_unique<CachedRegion>();
  // Add gives the entry the next serial.
  cached->groups = {{{std::move(record), name.length}, next_serial_}};
  cached->plan = name.plan;
  cached->content =
      RegionContent::Make(std::move(before), tokens, name.history, chain);
  cached->root = root;
  cached->tail = tail;
  cached->tail_serial = serial(Index(tail));
  Link(std::move(linked), cached.get());
  ++roots_.at(*root_names_.at(root)).plans[name.plan][name.length];
  const int32_t entry = AddRegion(std::move(cached));
  Add(entry, chain.RegionKey(name.length / page_size_, name.plan), root);
  return entry;
}

std::vector<int32_t> PrefixCache::FindLost(
    const absl::flat_hash_set<BlockId>& lost,
    absl::flat_hash_set<EntrySerial>* gone) const {
  absl::flat_hash_set<int32_t> sound_tails;
  std::vector<std::pair<EntrySerial, int32_t>> in_order;
  for (int32_t i = 0; i < entry_limit(); ++i) {
    if (serial(i) == kNoSerial) continue;
    in_order.emplace_back(serial(i), i);
    const CachedRegion* cached = region(i);
    if (cached == nullptr) {
      if (lost.contains(BlockId{i})) gone->insert(serial(i));
      continue;
    }
    const bool has_lost = std::ranges::any_of(
        cached->record().blocks,
        [&lost](BlockId block) { return lost.contains(block); });
    if (has_lost || lost.contains(cached->tail)) {
      gone->insert(serial(i));
    } else if (!cached->is_linked &&
               serial(Index(cached->tail)) == cached->tail_serial) {
      sound_tails.insert(Index(cached->tail));
    }
  }
  // A parent's serial is lower than its children's.
  std::ranges::sort(in_order);
  std::vector<int32_t> entries;
  for (const auto& [serial, entry] : in_order) {
    const bool follows = gone->contains(entries_[entry].parent);
    if (follows) gone->insert(serial);
    const bool stays = follows && sound_tails.contains(entry) &&
                       !lost.contains(BlockId{entry});
    if (gone->contains(serial) && !stays) entries.push_back(entry);
  }
  return entries;
}

void PrefixCache::Remove(int32_t entry) {
  Entry& own = entries_[entry];
  BM_CHECK(own.serial != kNoSerial);
  ++num_removed_;
  order_.Forget(entry);
  num_blocks_held_ -= num_blocks(entry);
  if (IsLinked(entry)) {
    own = Entry{};
    return entry < num_blocks_ ? RemoveLinkedBlock(entry) : RemoveRegion(entry);
  }
  log_.Append({.serial = own.serial, .entry = entry, .removed = true});
  RemoveFromIndex(entry);
  if (own.has_media) media_.erase(entry);
  if (entry < num_blocks_) {
    RemoveStart(entry);
  } else {
    ForgetLength(*regions_[entry - num_blocks_]);
  }
  if (own.follows_root) ReleaseRoot(own.parent);
  own = Entry{};
  if (entry >= num_blocks_) RemoveRegion(entry);
}

int64_t PrefixCache::metadata_bytes(
    absl::flat_hash_set<const RegionContent*>* contents,
    absl::flat_hash_set<const RegionRecord*>* records) const {
  int64_t bytes = HeapBytes(entries_) + order_.metadata_bytes() +
                  HeapBytes(linked_blocks_) + HeapBytes(links_) +
                  HeapBytes(orphans_) + HeapBytes(tokens_) + HeapBytes(index_) +
                  HeapBytes(starts_) + HeapBytes(media_) + HeapBytes(roots_) +
                  HeapBytes(root_names_) + HeapBytes(regions_) +
                  HeapBytes(free_regions_) + HeapBytes(num_links_) +
                  HeapBytes(region_index_) + HeapBytes(region_entries_) +
                  log_.metadata_bytes();
  for (const auto& [block, media] : media_) bytes += HeapBytes(media);
  for (const auto& [name, root] : roots_) {
    bytes += HeapBytes(name) + HeapBytes(root.plans);
    for (const auto& [plan, lengths] : root.plans) {
      bytes += HeapBytes(plan) + HeapBytes(lengths);
    }
  }
  for (const auto& cached : regions_) {
    if (cached == nullptr) continue;
    bytes += static_cast<int64_t>(sizeof(CachedRegion)) +
             HeapBytes(cached->plan) + HeapBytes(cached->groups) +
             HeapBytes(cached->linked_blocks) +
             HeapBytes(cached->linked_serials) +
             RegionContent::CountBytes(cached->content.get(), contents);
    for (const CachedGroup& group : cached->groups) {
      // A link owns the record, also after the linked region was reclaimed.
      bytes += RegionRecord::CountBytes(group.region.get(), records);
    }
  }
  return bytes;
}

uint64_t PrefixCache::StateHash() const {
  uint64_t hash = order_.StateHash();
  for (size_t i = 0; i < entries_.size(); ++i) {
    if (entries_[i].serial == kNoSerial) continue;
    hash += SplitMix64(SplitMix64(i) ^ entries_[i].key.low ^
                       SplitMix64(entries_[i].serial));
  }
  return hash + roots_.size();
}

void PrefixCache::CheckInvariants() const {
  order_.CheckInvariants();
  int32_t num_held = 0;
  int32_t num_listed = 0;
  size_t num_media = 0;
  size_t num_regions = 0;
  size_t num_starts = 0;
  absl::flat_hash_map<EntrySerial, int32_t> users;
  for (int32_t i = 0; i < entry_limit(); ++i) {
    const Entry& entry = entries_[i];
    BM_CHECK(entry.has_media == media_.contains(i));
    num_media += entry.has_media ? 1 : 0;
    if (entry.serial == kNoSerial) {
      BM_CHECK(!IsReclaimable(i));
      continue;
    }
    num_held += num_blocks(i);
    num_listed += IsReclaimable(i) ? num_blocks(i) : 0;
    if (i >= num_blocks_) {
      ++num_regions;
      BM_CHECK(FindRegion(region(i)->record().id) == i);
    }
    // CheckLinks checks linked entries.
    if (IsLinked(i)) continue;
    const KeyIndex& index = i < num_blocks_ ? index_ : region_index_;
    const auto found = index.find(entry.key);
    BM_CHECK(found != index.end());
    int32_t same = found->second;
    while (same != i) {
      BM_CHECK(same != kNone);
      same = entries_[same].next_same_key;
    }
    BM_CHECK(entry.parent < entry.serial);
    if (i < num_blocks_ && CheckStart(i)) ++num_starts;
    if (entry.follows_root) ++users[entry.parent];
    if (i < num_blocks_) continue;
    const Root& root = roots_.at(*root_names_.at(region(i)->root));
    BM_CHECK(root.plans.at(region(i)->plan).contains(region(i)->length()));
  }
  CheckLinks();
  BM_CHECK(num_held == num_blocks_held_);
  BM_CHECK(num_listed == num_reclaimable_);
  BM_CHECK(num_media == media_.size());
  BM_CHECK(num_starts == starts_.size());
  BM_CHECK(num_regions == region_entries_.size());
  BM_CHECK(num_regions + free_regions_.size() == regions_.size());
  BM_CHECK(roots_.size() == root_names_.size());
  for (const auto& [name, root] : roots_) {
    BM_CHECK(*root_names_.at(root.serial) == name);
    BM_CHECK(root.num_users >= users[root.serial]);
    users.erase(root.serial);
  }
  BM_CHECK(users.empty());
}

void PrefixCache::AddBlock(BlockId block, const BlockKey& key,
                           EntrySerial parent, std::span<const int32_t> tokens,
                           absl::string_view media) {
  Add(Index(block), key, parent);
  std::ranges::copy(
      tokens,
      tokens_.begin() + static_cast<int64_t>(Index(block)) * page_size_);
  AddStart(Index(block));
  if (media.empty()) return;
  entries_[Index(block)].has_media = true;
  media_.emplace(Index(block), media);
}

int32_t PrefixCache::AddRegion(std::unique_ptr<const CachedRegion> cached) {
  int32_t entry = entry_limit();
  if (free_regions_.empty()) {
    entries_.emplace_back();
    regions_.emplace_back();
    num_links_.emplace_back();
    free_regions_.reserve(regions_.capacity());
    order_.Grow(entry_limit());
  } else {
    entry = free_regions_.back();
    free_regions_.pop_back();
  }
  region_entries_.emplace(cached->record().id, entry);
  regions_[entry - num_blocks_] = std::move(cached);
  return entry;
}

void PrefixCache::RemoveRegion(int32_t entry) {
  std::unique_ptr<const CachedRegion>& cached = regions_[entry - num_blocks_];
  region_entries_.erase(cached->record().id);
  num_links_[entry - num_blocks_] = 0;
  cached.reset();
  free_regions_.push_back(entry);
}

void PrefixCache::Add(int32_t entry, const BlockKey& key, EntrySerial parent) {
  Entry& own = entries_[entry];
  BM_CHECK(own.serial == kNoSerial);
  own.key = key;
  own.serial = next_serial_++;
  own.parent = parent;
  log_.Append({.serial = own.serial, .entry = entry});
  const auto [first, is_new] = IndexOf(entry)->try_emplace(key, entry);
  if (!is_new) {
    own.next_same_key = first->second;
    first->second = entry;
  }
  const auto root = root_names_.find(parent);
  own.follows_root = root != root_names_.end();
  if (own.follows_root) {
    Root& leads = roots_.at(*root->second);
    ++leads.num_users;
    leads.has_led = true;
  }
  num_blocks_held_ += num_blocks(entry);
}

void PrefixCache::RemoveFromIndex(int32_t entry) {
  const Entry& own = entries_[entry];
  KeyIndex* index = IndexOf(entry);
  const auto first = index->find(own.key);
  BM_CHECK(first != index->end());
  if (first->second == entry) {
    if (own.next_same_key == kNone) {
      index->erase(first);
    } else {
      first->second = own.next_same_key;
    }
    return;
  }
  int32_t before = first->second;
  while (entries_[before].next_same_key != entry) {
    before = entries_[before].next_same_key;
    BM_CHECK(before != kNone);
  }
  entries_[before].next_same_key = own.next_same_key;
}

void PrefixCache::ForgetLength(const CachedRegion& cached) {
  Root& root = roots_.at(*root_names_.at(cached.root));
  const auto plan = root.plans.find(cached.plan);
  const auto length = plan->second.find(cached.length());
  if (--length->second == 0) plan->second.erase(length);
  if (plan->second.empty()) root.plans.erase(plan);
}

int32_t PrefixCache::Find(const BlockKey& key, EntrySerial parent,
                          const BlockChain& chain,
                          std::span<const int32_t> tokens,
                          int32_t begin) const {
  const std::span<const int32_t> own = tokens.subspan(begin, page_size_);
  const auto found = index_.find(key);
  int32_t block = found == index_.end() ? kNone : found->second;
  for (; block != kNone; block = entries_[block].next_same_key) {
    const Entry& entry = entries_[block];
    if (entry.parent != parent || !std::ranges::equal(TokensOf(block), own)) {
      continue;
    }
    const absl::string_view media =
        entry.has_media ? media_.at(block) : absl::string_view();
    if (chain.HasMedia(begin, begin + page_size_, media)) return block;
  }
  return kNone;
}

}  // namespace blockmgr
