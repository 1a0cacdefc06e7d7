#include "tests/testing/cache_reader.h"

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

#include <absl/strings/str_cat.h>

namespace blockmgr {
namespace {

// Of all that is before the end of `content`, from the first position on.
void AppendContent(const RegionContent* content, std::vector<int32_t>* tokens,
                   std::vector<MediaItem>* media) {
  if (content == nullptr) return;
  AppendContent(content->before.get(), tokens, media);
  tokens->insert(tokens->end(), content->tokens.begin(), content->tokens.end());
  for (MediaItem& item : DecodeMedia(content->media)) {
    item.begin += content->begin;
    // An item that crosses from one part into the next is in both.
    if (media->empty() || media->back() != item) {
      media->push_back(std::move(item));
    }
  }
}

// Blocks and regions of linked groups, of which nobody is told.
std::set<int32_t> LinkedEntries(const PrefixCache& cache) {
  std::set<int32_t> entries;
  for (int32_t i = 0; i < cache.entry_limit(); ++i) {
    if (cache.serial(i) == kNoSerial) continue;
    const CachedRegion* region = cache.region(i);
    if (region == nullptr) {
      for (int32_t group = 1; group < cache.num_groups(); ++group) {
        entries.insert(Index(cache.LinkedBlock(i, group)));
      }
      continue;
    }
    if (region->is_linked) entries.insert(i);
    for (size_t j = 0; j < region->linked_blocks.size(); ++j) {
      entries.insert(Index(cache.LinkedBlock(*region, j)));
    }
  }
  entries.erase(Index(kNullBlock));
  return entries;
}

}  // namespace

bool CacheReader::Read(const PrefixCache& cache, int32_t max_blocks) {
  const PrefixCacheDelta delta = cache.Read(&position_, max_blocks);
  Apply(delta, std::numeric_limits<int64_t>::max());
  may_repeat_ = may_repeat_ && !delta.current;
  return delta.current;
}

void CacheReader::ReadInPart(const PrefixCache& cache, int32_t max_blocks,
                             int64_t num_entries) {
  PrefixCachePosition position = position_;
  Apply(cache.Read(&position, max_blocks), num_entries);
  may_repeat_ = true;
}

void CacheReader::Apply(const PrefixCacheDelta& delta, int64_t num_entries) {
  if (delta.reset) {
    ++num_resets_;
    scopes_.clear();
    blocks_.clear();
    regions_.clear();
  }
  for (const EntrySerial serial : delta.removed) {
    num_removed_ +=
        static_cast<int64_t>(blocks_.erase(serial) + regions_.erase(serial));
    scopes_.erase(serial);
  }
  for (const auto& [serial, root] : delta.scopes) {
    scopes_[serial] = DecodeRoot(root);
  }
  for (size_t i = 0; i < delta.blocks.size(); ++i) {
    if (num_entries-- <= 0) return;
    const PrefixCacheDelta::Block& told = delta.blocks[i];
    const std::span<const int32_t> tokens = delta.TokensOf(i);
    const bool is_new =
        blocks_
            .try_emplace(told.serial, Block{told.parent,
                                            {tokens.begin(), tokens.end()},
                                            DecodeMedia(told.media)})
            .second;
    num_repeated_ += is_new || may_repeat_ ? 0 : 1;
  }
  for (const PrefixCacheDelta::Region& told : delta.regions) {
    if (num_entries-- <= 0) return;
    Region region = {.scope = told.scope, .tail = told.tail, .plan = told.plan};
    AppendContent(told.content.get(), &region.tokens, &region.media);
    const bool is_new =
        regions_.try_emplace(told.serial, std::move(region)).second;
    num_repeated_ += is_new || may_repeat_ ? 0 : 1;
  }
}

BlockKey CacheReader::KeyOf(const Region& region) const {
  ContentScope scope = scopes_.at(region.scope);
  scope.media = region.media;
  BlockChain chain(scope);
  chain.Extend(region.tokens, page_size_);
  return chain.RegionKey(
      static_cast<int32_t>(region.tokens.size()) / page_size_, region.plan);
}

std::optional<BlockKey> CacheReader::KeyOf(EntrySerial serial) const {
  const auto region = regions_.find(serial);
  if (region != regions_.end()) return KeyOf(region->second);
  const auto found = blocks_.find(serial);
  if (found == blocks_.end()) return std::nullopt;
  const Block& block = found->second;
  ContentScope scope;
  const auto first = scopes_.find(block.parent);
  if (first != scopes_.end()) scope = first->second;
  scope.media = block.media;
  BlockChain chain(scope);
  if (first != scopes_.end()) {
    chain.Extend(block.tokens, page_size_);
    return chain.keys().front();
  }
  const std::optional<BlockKey> parent = KeyOf(block.parent);
  if (!parent.has_value()) return std::nullopt;
  return chain.KeyAfter(*parent, block.tokens, 0, page_size_);
}

std::string CacheReader::Difference(const PrefixCache& cache) const {
  const std::set<int32_t> hidden = LinkedEntries(cache);
  size_t num_entries = 0;
  for (int32_t i = 0; i < cache.entry_limit(); ++i) {
    const EntrySerial serial = cache.serial(i);
    if (serial == kNoSerial || hidden.contains(i)) continue;
    ++num_entries;
    const CachedRegion* const cached = cache.region(i);
    if (cached == nullptr ? !blocks_.contains(serial)
                          : !regions_.contains(serial)) {
      return absl::StrCat("entry ", i, " with serial ", serial,
                          " was not told");
    }
    const std::optional<BlockKey> key = KeyOf(serial);
    if (key.has_value() && *key != cache.key(i)) {
      return absl::StrCat("entry ", i, " with serial ", serial,
                          " was told with other content");
    }
    if (cached == nullptr) continue;
    const Region& region = regions_.at(serial);
    if (region.tail != cached->tail_serial ||
        std::ssize(region.tokens) != cached->length()) {
      return absl::StrCat("region ", serial,
                          " was told with another tail or length");
    }
  }
  if (num_entries != blocks_.size() + regions_.size()) {
    return absl::StrCat("of ", blocks_.size() + regions_.size(),
                        " entries told there are ", num_entries);
  }
  return "";
}

int32_t CacheReader::MatchBlocks(const ContentScope& scope,
                                 std::span<const int32_t> tokens) const {
  const auto is_scope = [&](const auto& known) {
    return known.second.tenant == scope.tenant &&
           known.second.lora == scope.lora &&
           known.second.cache_salt == scope.cache_salt;
  };
  int32_t longest = 0;
  // One that is gone may be known still, with nothing after it.
  for (const auto& [root, name] : scopes_) {
    if (!is_scope(std::pair(root, name))) continue;
    EntrySerial parent = root;
    int32_t num_pages = 0;
    const auto follows = [&](const auto& known) {
      const auto own =
          tokens.subspan(static_cast<size_t>(num_pages) * page_size_,
                         static_cast<size_t>(page_size_));
      return known.second.parent == parent &&
             std::ranges::equal(known.second.tokens, own);
    };
    while (int64_t{page_size_} * (num_pages + 1) <= std::ssize(tokens)) {
      const auto next = std::ranges::find_if(blocks_, follows);
      if (next == blocks_.end()) break;
      parent = next->first;
      ++num_pages;
    }
    longest = std::max(longest, num_pages);
  }
  return longest;
}

}  // namespace blockmgr
