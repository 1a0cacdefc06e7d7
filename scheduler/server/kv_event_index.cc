#include "scheduler/server/kv_event_index.h"

#include <algorithm>
#include <utility>

// xxHash is used as headers only, as in block_hash.cc.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "blockmgr/base/bits.h"
#include "blockmgr/region_content.h"

namespace blockmgr {
namespace {

// Returns the parts of a content, the first one first.
std::vector<const RegionContent*> PartsOf(const RegionContent* last) {
  std::vector<const RegionContent*> parts;
  for (; last != nullptr; last = last->before.get()) parts.push_back(last);
  std::ranges::reverse(parts);
  return parts;
}

// Returns the media of all parts. Begins count from the first token.
std::vector<MediaItem> MediaOf(const std::vector<const RegionContent*>& parts) {
  std::vector<MediaItem> media;
  for (const RegionContent* part : parts) {
    for (MediaItem& item : DecodeMedia(part->media)) {
      // An item that crosses from one part into the next is in both.
      if (part->begin > 0 && item.begin < 0) continue;
      item.begin += part->begin;
      media.push_back(std::move(item));
    }
  }
  return media;
}

// The bytes of an integer, little-endian.
void AppendNumber(uint64_t number, std::string* bytes) {
  for (int shift = 0; shift < 64; shift += 8) {
    bytes->push_back(static_cast<char>(number >> shift & 0xFF));
  }
}

uint64_t HashOf(const ContentScope& scope) {
  std::string bytes;
  for (const std::string* part :
       {&scope.tenant, &scope.lora, &scope.cache_salt}) {
    AppendNumber(part->size(), &bytes);
    bytes += *part;
  }
  return XXH3_64bits(bytes.data(), bytes.size());
}

uint64_t HashOf(uint64_t parent, const std::vector<int32_t>& tokens,
                const std::vector<MediaItem>& media) {
  const uint64_t hash = XXH3_64bits_withSeed(
      tokens.data(), tokens.size() * sizeof(int32_t), parent);
  if (media.empty()) return hash;
  std::string bytes;
  for (const MediaItem& item : media) {
    AppendNumber(static_cast<uint64_t>(item.begin), &bytes);
    AppendNumber(static_cast<uint64_t>(item.length), &bytes);
    AppendNumber(item.hash.size(), &bytes);
    bytes += item.hash;
  }
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), hash);
}

void AddRemoved(std::vector<uint64_t>* hashes, std::vector<KvEvent>* events) {
  if (hashes->empty()) return;
  events->push_back(
      {.kind = KvEvent::Kind::kRemoved, .hashes = std::exchange(*hashes, {})});
}

}  // namespace

KvEventLists KvEventIndex::Apply(const PrefixCacheReading& reading) {
  const PrefixCacheDelta& delta = reading.delta;
  events_ = {};
  if (delta.reset) Reset(reading.cursor);
  for (const EntrySerial serial : delta.removed) Remove(serial);
  AddRemoved(&removed_, &events_.blocks);
  AddRemoved(&removed_prefixes_, &events_.prefixes);
  for (const auto& [serial, root] : delta.scopes) {
    scopes_.try_emplace(serial,
                        std::make_shared<ContentScope>(DecodeRoot(root)));
  }
  for (size_t i = 0; i < delta.blocks.size(); ++i) {
    AddBlock(delta.blocks[i], delta.TokensOf(i));
  }
  for (const PrefixCacheDelta::Region& region : delta.regions) {
    AddRegion(region);
  }
  return std::move(events_);
}

void KvEventIndex::Reset(const PrefixCacheCursor& cursor) {
  // Another cache or another daemon may have equal serials. Hashes of regions
  // must differ, because some consumers have one table for all daemons.
  region_seed_ = SplitMix64(cursor.epoch ^ SplitMix64(cursor.cache));
  scopes_.clear();
  items_.clear();
  first_child_.clear();
  waiting_.clear();
  regions_.clear();
  regions_of_tail_.clear();
  if (has_told_ || !has_begun_) {
    events_.blocks.push_back({.kind = KvEvent::Kind::kCleared});
    events_.prefixes.push_back({.kind = KvEvent::Kind::kCleared});
  }
  has_begun_ = true;
  has_told_ = false;
}

void KvEventIndex::Remove(EntrySerial serial) {
  // If this was a scope, no block or region of it is left.
  scopes_.erase(serial);
  const auto found = items_.find(serial);
  if (found == items_.end()) return;
  Withdraw(serial);
  // A region is of no use without its tail block.
  if (const auto tail = regions_of_tail_.extract(serial)) {
    for (const EntrySerial region : tail.mapped()) Withdraw(region);
  }
  if (const auto region = regions_.extract(serial)) {
    const auto tail = regions_of_tail_.find(region.mapped().told.tail);
    if (tail != regions_of_tail_.end()) std::erase(tail->second, serial);
    if (tail != regions_of_tail_.end() && tail->second.empty()) {
      regions_of_tail_.erase(tail);
    }
  }
  Unlink(found->second);
  items_.erase(found);
}

void KvEventIndex::AddBlock(const PrefixCacheDelta::Block& block,
                            std::span<const int32_t> tokens) {
  // A delta may tell a known item again.
  if (items_.contains(block.serial)) return;
  Add(block.serial, block.parent);
  waiting_[block.serial] = {.tokens = {tokens.begin(), tokens.end()},
                            .media = DecodeMedia(block.media)};
  Tell(block.serial);
  const auto tail = regions_of_tail_.find(block.serial);
  if (tail == regions_of_tail_.end()) return;
  for (const EntrySerial region : tail->second) Tell(region);
}

void KvEventIndex::AddRegion(const PrefixCacheDelta::Region& region) {
  // A delta may tell a known item again.
  if (items_.contains(region.serial)) return;
  Add(region.serial, region.scope);
  PrefixCacheDelta::Region& told = regions_[region.serial].told;
  told = region;
  if (!tells_prefixes_) told.content.reset();
  regions_of_tail_[region.tail].push_back(region.serial);
  Tell(region.serial);
}

void KvEventIndex::Add(EntrySerial serial, EntrySerial parent) {
  Item item = {.parent = parent};
  EntrySerial& first = first_child_[parent];
  item.next = std::exchange(first, serial);
  if (item.next != kNoSerial) items_.at(item.next).previous = serial;
  items_.emplace(serial, item);
}

void KvEventIndex::Unlink(const Item& item) {
  if (item.next != kNoSerial) items_.at(item.next).previous = item.previous;
  if (item.previous != kNoSerial) {
    items_.at(item.previous).next = item.next;
  } else if (item.next != kNoSerial) {
    first_child_.at(item.parent) = item.next;
  } else {
    first_child_.erase(item.parent);
  }
}

void KvEventIndex::Tell(EntrySerial serial) {
  stack_.push_back(serial);
  while (!stack_.empty()) {
    const EntrySerial next = stack_.back();
    stack_.pop_back();
    if (!TellOne(next)) continue;
    const auto child = first_child_.find(next);
    if (child == first_child_.end()) continue;
    for (EntrySerial i = child->second; i != kNoSerial; i = items_.at(i).next) {
      stack_.push_back(i);
    }
  }
}

bool KvEventIndex::TellOne(EntrySerial serial) {
  Item& item = items_.at(serial);
  if (item.is_told) return false;
  if (const auto region = regions_.find(serial); region != regions_.end()) {
    Region& own = region->second;
    const bool is_usable =
        scopes_.contains(own.told.scope) && items_.contains(own.told.tail);
    if (!is_usable || !own.is_waiting) return false;
    item.scope = own.told.scope;
    item.is_told = item.in_prefix = true;
    item.hash = SplitMix64(serial ^ region_seed_);
    if (tells_prefixes_) TellRegion(own.told, item.hash);
    own.is_waiting = false;
    own.told.content.reset();
    return true;
  }
  const auto parent = items_.find(item.parent);
  const bool has_parent = parent != items_.end() && parent->second.is_told;
  if (!has_parent && !scopes_.contains(item.parent)) return false;
  auto waiting = waiting_.extract(serial);
  // A withdrawn item has nothing to tell.
  if (waiting.empty()) return false;
  TellBlock(has_parent ? &parent->second : nullptr, std::move(waiting.mapped()),
            &item);
  return true;
}

void KvEventIndex::TellBlock(const Item* parent, Block block, Item* item) {
  has_told_ = true;
  item->is_told = true;
  item->scope = parent == nullptr ? item->parent : parent->scope;
  item->in_prefix = parent != nullptr && parent->in_prefix;
  const std::shared_ptr<const ContentScope>& scope = scopes_.at(item->scope);
  item->hash = HashOf(parent == nullptr ? HashOf(*scope) : parent->hash,
                      block.tokens, block.media);
  std::vector<KvEvent>& events =
      item->in_prefix ? events_.prefixes : events_.blocks;
  const bool continues = parent != nullptr && !events.empty() &&
                         events.back().kind == KvEvent::Kind::kBlocks &&
                         events.back().hashes.back() == parent->hash &&
                         events.back().hashes.size() < kMaxRunBlocks;
  if (!continues) {
    events.push_back({.kind = KvEvent::Kind::kBlocks, .scope = scope});
    if (parent != nullptr) events.back().parent = parent->hash;
  }
  KvEvent& event = events.back();
  event.hashes.push_back(item->hash);
  event.tokens.insert(event.tokens.end(), block.tokens.begin(),
                      block.tokens.end());
  event.media.push_back(std::move(block.media));
}

void KvEventIndex::TellRegion(const PrefixCacheDelta::Region& region,
                              uint64_t hash) {
  has_told_ = true;
  const std::vector<const RegionContent*> parts = PartsOf(region.content.get());
  std::vector<MediaItem> media = MediaOf(parts);
  for (const RegionContent* part : parts) {
    for (size_t i = 0; i < part->tokens.size(); i += kMaxPieceTokens) {
      const std::span<const int32_t> left = std::span(part->tokens).subspan(i);
      const auto piece = left.first(std::min(left.size(), kMaxPieceTokens));
      events_.prefixes.push_back(
          {.kind = KvEvent::Kind::kPrefix,
           .hashes = {hash},
           .scope = scopes_.at(region.scope),
           .tokens = {piece.begin(), piece.end()},
           .media = {std::exchange(media, {})},
           .first_token = part->begin + static_cast<int32_t>(i),
           .length = region.length,
           .plan = region.plan});
    }
  }
}

void KvEventIndex::Withdraw(EntrySerial serial) {
  stack_.push_back(serial);
  while (!stack_.empty()) {
    const EntrySerial next = stack_.back();
    stack_.pop_back();
    Item& item = items_.at(next);
    waiting_.erase(next);
    if (const auto region = regions_.find(next); region != regions_.end()) {
      region->second.is_waiting = false;
      region->second.told.content.reset();
    }
    if (std::exchange(item.is_told, false)) {
      (item.in_prefix ? removed_prefixes_ : removed_).push_back(item.hash);
    }
    const auto child = first_child_.find(next);
    if (child == first_child_.end()) continue;
    for (EntrySerial i = child->second; i != kNoSerial; i = items_.at(i).next) {
      // If a child was withdrawn before, nothing behind the child is told.
      if (items_.at(i).is_told || waiting_.contains(i)) stack_.push_back(i);
    }
  }
}

}  // namespace blockmgr
