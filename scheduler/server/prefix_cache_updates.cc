#include "scheduler/server/prefix_cache_updates.h"

#include <algorithm>
#include <span>
#include <utility>

namespace blockmgr {
namespace {

// The most bytes on the wire: of an id, of a token, and of the tags and numbers
// of a message.
constexpr int64_t kIdBytes = 10;
constexpr int64_t kTokenBytes = 5;
constexpr int64_t kFieldsBytes = 60;
// A long region is told in pieces of at most this size.
constexpr int32_t kMaxPieceTokens = 1 << 16;
constexpr int32_t kMaxPieceMedia = 1 << 11;

// Adds the item. The item's place is moved by `begin`.
int64_t AddMedia(const MediaItem& item, int32_t begin,
                 google::protobuf::RepeatedPtrField<v1::MediaItem>* media) {
  v1::MediaItem* const added = media->Add();
  added->set_begin(begin + item.begin);
  added->set_length(item.length);
  added->set_hash(item.hash);
  return kFieldsBytes + std::ssize(item.hash);
}

int64_t AddTokens(std::span<const int32_t> tokens,
                  google::protobuf::RepeatedField<uint32_t>* ids) {
  ids->Reserve(static_cast<int>(tokens.size()));
  for (const int32_t token : tokens) ids->Add(static_cast<uint32_t>(token));
  return kTokenBytes * std::ssize(tokens);
}

}  // namespace

v1::PrefixCachePosition ToProto(const PrefixCacheCursor& cursor) {
  v1::PrefixCachePosition proto;
  proto.set_epoch(cursor.epoch);
  proto.set_cache(cursor.cache);
  proto.set_change(cursor.position.change);
  proto.set_entry(cursor.position.entry);
  return proto;
}

PrefixCacheCursor FromProto(const v1::PrefixCachePosition& proto) {
  return {.epoch = proto.epoch(),
          .cache = proto.cache(),
          .position = {.change = proto.change(), .entry = proto.entry()}};
}

PrefixCacheUpdates::PrefixCacheUpdates(PrefixCacheReading reading)
    : reading_(std::move(reading)), has_head_(true) {}

bool PrefixCacheUpdates::Next(int64_t max_bytes,
                              v1::PrefixCacheUpdate* update) {
  update->Clear();
  const PrefixCacheDelta& delta = reading_.delta;
  const auto is_done = [&] {
    return !has_head_ && block_ == delta.blocks.size() &&
           region_ == delta.regions.size();
  };
  if (is_done()) return false;
  update->set_page_size(reading_.page_size);
  for (int64_t bytes = 0; bytes < max_bytes && !is_done();) {
    if (has_head_) {
      bytes += AddHead(update);
    } else if (block_ < delta.blocks.size()) {
      bytes += AddBlock(update);
    } else {
      bytes += AddPiece(update);
    }
  }
  if (!is_done()) return true;
  *update->mutable_position() = ToProto(reading_.cursor);
  update->set_current(delta.current);
  return true;
}

int64_t PrefixCacheUpdates::AddHead(v1::PrefixCacheUpdate* update) {
  has_head_ = false;
  const PrefixCacheDelta& delta = reading_.delta;
  update->set_reset(delta.reset);
  update->mutable_removed()->Add(delta.removed.begin(), delta.removed.end());
  int64_t bytes = kFieldsBytes + kIdBytes * std::ssize(delta.removed);
  for (const auto& [serial, root] : delta.scopes) {
    ContentScope scope = DecodeRoot(root);
    v1::CachedScope* const added = update->add_scopes();
    added->set_id(serial);
    added->set_tenant(std::move(scope.tenant));
    added->set_lora(std::move(scope.lora));
    added->set_cache_salt(std::move(scope.cache_salt));
    bytes += kFieldsBytes + std::ssize(root);
  }
  return bytes;
}

int64_t PrefixCacheUpdates::AddBlock(v1::PrefixCacheUpdate* update) {
  const size_t i = block_++;
  const PrefixCacheDelta::Block& block = reading_.delta.blocks[i];
  v1::CachedBlock* const added = update->add_blocks();
  added->set_id(block.serial);
  added->set_parent_id(block.parent);
  int64_t bytes = kFieldsBytes + AddTokens(reading_.delta.TokensOf(i),
                                           added->mutable_token_ids());
  for (const MediaItem& item : DecodeMedia(block.media)) {
    bytes += AddMedia(item, 0, added->mutable_media());
  }
  return bytes;
}

int64_t PrefixCacheUpdates::AddPiece(v1::PrefixCacheUpdate* update) {
  const PrefixCacheDelta::Region& region = reading_.delta.regions[region_];
  const auto begin_part = [this] {
    token_ = 0;
    media_ = DecodeMedia(parts_.back()->media);
    // An item that crosses from one part into the next is in both.
    std::erase_if(media_, [this](const MediaItem& item) {
      return parts_.back()->begin > 0 && item.begin < 0;
    });
    std::ranges::reverse(media_);
  };
  if (parts_.empty()) {
    for (const RegionContent* part = region.content.get(); part != nullptr;
         part = part->before.get()) {
      parts_.push_back(part);
    }
    begin_part();
  }
  const RegionContent& part = *parts_.back();
  v1::CachedRegion* const piece = update->add_regions();
  piece->set_id(region.serial);
  piece->set_scope_id(region.scope);
  piece->set_tail_id(region.tail);
  piece->set_length(region.length);
  piece->set_plan(region.plan);
  piece->set_first_token(part.begin + token_);
  const auto left = std::span(part.tokens).subspan(static_cast<size_t>(token_));
  const auto tokens =
      left.first(std::min(left.size(), size_t{kMaxPieceTokens}));
  token_ += static_cast<int32_t>(tokens.size());
  int64_t bytes = kFieldsBytes + std::ssize(region.plan) +
                  AddTokens(tokens, piece->mutable_token_ids());
  for (int32_t i = 0; i < kMaxPieceMedia && !media_.empty(); ++i) {
    bytes += AddMedia(media_.back(), part.begin, piece->mutable_media());
    media_.pop_back();
  }
  if (tokens.size() < left.size() || !media_.empty()) return bytes;
  parts_.pop_back();
  if (parts_.empty()) {
    piece->set_last(true);
    ++region_;
  } else {
    begin_part();
  }
  return bytes;
}

}  // namespace blockmgr
