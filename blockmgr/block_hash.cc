#include "blockmgr/block_hash.h"

#include <algorithm>
#include <cstring>
#include <functional>

#include <absl/container/inlined_vector.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/string_view.h>
#include <absl/strings/strip.h>

// Header-only, so that an installed blockmgr needs no xxHash to link.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "blockmgr/base/check.h"
#include "blockmgr/base/invalid.h"
#include "blockmgr/base/status_macros.h"

namespace blockmgr {
namespace {

constexpr size_t kMaxNameBytes = 256;
constexpr size_t kMaxHashBytes = 64;

// The first word of every encoding. A new kind of content gets a new tag.
constexpr uint32_t kTokensTag = 0x544F4B32;  // "TOK2"
constexpr uint32_t kRootTag = 0x524F4F32;    // "ROO2"
constexpr uint32_t kRegionTag = 0x52454731;  // "REG1"

struct EncodingHeader {
  uint32_t tag;
  uint32_t num_tokens;
  BlockKey parent;
};

BlockKey ToKey(XXH128_hash_t hash) { return {hash.low64, hash.high64}; }

void AppendInt(uint32_t value, std::string* bytes) {
  bytes->append(reinterpret_cast<const char*>(&value), sizeof(value));
}

void AppendText(absl::string_view text, std::string* bytes) {
  AppendInt(static_cast<uint32_t>(text.size()), bytes);
  bytes->append(text.data(), text.size());
}

uint32_t TakeInt(absl::string_view* bytes) {
  uint32_t value = 0;
  BM_CHECK(bytes->size() >= sizeof(value));
  std::memcpy(&value, bytes->data(), sizeof(value));
  bytes->remove_prefix(sizeof(value));
  return value;
}

std::string TakeText(size_t size, absl::string_view* bytes) {
  BM_CHECK(bytes->size() >= size);
  std::string text(bytes->substr(0, size));
  bytes->remove_prefix(size);
  return text;
}

absl::Status ValidateName(absl::string_view field, absl::string_view name) {
  if (name.size() <= kMaxNameBytes) return absl::OkStatus();
  return Invalid(field, ": expected at most ", kMaxNameBytes, " bytes, got ",
                 name.size());
}

}  // namespace

absl::Status ValidateScope(const ContentScope& scope, int64_t num_tokens) {
  BM_RETURN_IF_ERROR(ValidateName("tenant", scope.tenant));
  BM_RETURN_IF_ERROR(ValidateName("lora", scope.lora));
  BM_RETURN_IF_ERROR(ValidateName("cache_salt", scope.cache_salt));
  int64_t free = 0;
  for (size_t i = 0; i < scope.media.size(); ++i) {
    const MediaItem& item = scope.media[i];
    const auto field = [i](absl::string_view name) {
      return absl::StrCat("media[", i, "].", name, ": expected ");
    };
    if (item.begin < free || item.begin >= num_tokens) {
      return Invalid(field("begin"), free, " to ", num_tokens - 1,
                     " (after the item before it, in the prompt), got ",
                     item.begin);
    }
    if (item.length < 1 || item.length > num_tokens - item.begin) {
      return Invalid(field("length"), "1 to ", num_tokens - item.begin,
                     " tokens, got ", item.length);
    }
    if (item.hash.empty() || item.hash.size() > kMaxHashBytes) {
      return Invalid(field("hash"), "1 to ", kMaxHashBytes, " bytes, got ",
                     item.hash.size());
    }
    free = int64_t{item.begin} + item.length;
  }
  return absl::OkStatus();
}

ContentScope DecodeRoot(absl::string_view root) {
  BM_CHECK(TakeInt(&root) == kRootTag);
  ContentScope scope;
  for (std::string* name : {&scope.tenant, &scope.lora, &scope.cache_salt}) {
    *name = TakeText(TakeInt(&root), &root);
  }
  BM_CHECK(root.empty());
  return scope;
}

std::vector<MediaItem> DecodeMedia(absl::string_view media) {
  std::vector<MediaItem> items;
  while (!media.empty()) {
    MediaItem& item = items.emplace_back();
    item.begin = static_cast<int32_t>(TakeInt(&media));
    item.length = static_cast<int32_t>(TakeInt(&media));
    item.hash = TakeText(TakeInt(&media), &media);
  }
  return items;
}

BlockChain::BlockChain(const ContentScope& scope, int32_t key_bits)
    : media_(scope.media) {
  BM_CHECK(key_bits >= 1);
  const auto mask = [](int32_t bits) {
    if (bits <= 0) return uint64_t{0};
    return ~uint64_t{0} >> (64 - std::min(bits, 64));
  };
  key_mask_ = {mask(key_bits), mask(key_bits - 64)};
  AppendInt(kRootTag, &root_);
  AppendText(scope.tenant, &root_);
  AppendText(scope.lora, &root_);
  AppendText(scope.cache_salt, &root_);
  root_key_ = ToKey(XXH3_128bits(root_.data(), root_.size()));
}

template <typename Visit>
bool BlockChain::VisitMedia(int32_t begin, int32_t end,
                            const Visit& visit) const {
  if (media_.empty()) return true;
  auto item = std::ranges::partition_point(
      media_, [begin](const auto& m) { return m.begin + m.length <= begin; });
  for (; item != media_.end() && item->begin < end; ++item) {
    // The item's begin counts from `begin`. It is negative if the item begins
    // before.
    const int32_t numbers[] = {item->begin - begin, item->length,
                               static_cast<int32_t>(item->hash.size())};
    char bytes[sizeof numbers];
    std::memcpy(bytes, numbers, sizeof numbers);
    if (!visit(absl::string_view(bytes, sizeof bytes))) return false;
    if (!visit(absl::string_view(item->hash))) return false;
  }
  return true;
}

std::string BlockChain::Media(int32_t begin, int32_t end) const {
  std::string bytes;
  VisitMedia(begin, end, [&](absl::string_view part) {
    absl::StrAppend(&bytes, part);
    return true;
  });
  return bytes;
}

bool BlockChain::HasMedia(int32_t begin, int32_t end,
                          absl::string_view encoded) const {
  const bool all = VisitMedia(begin, end, [&](absl::string_view part) {
    return absl::ConsumePrefix(&encoded, part);
  });
  return all && encoded.empty();
}

bool BlockChain::HasMediaOf(const BlockChain& other, int32_t end) const {
  const auto before = [end](const std::vector<MediaItem>& media) {
    const auto last = std::ranges::partition_point(
        media, [end](const MediaItem& item) { return item.begin < end; });
    return std::span(media.begin(), last);
  };
  return std::ranges::equal(before(media_), before(other.media_));
}

void BlockChain::SetRetention(std::vector<RetentionRange> ranges) {
  retention_ = std::move(ranges);
  std::ranges::stable_sort(retention_, std::greater<>(), [](const auto& range) {
    return range.retention.priority;
  });
}

const Retention* BlockChain::RetentionOf(int32_t begin, int32_t end) const {
  for (const RetentionRange& range : retention_) {
    if (range.begin < end && begin < range.end) return &range.retention;
  }
  return nullptr;
}

const Retention* BlockChain::RetentionOfRegion(int32_t cut) const {
  for (const RetentionRange& range : retention_) {
    if (range.begin <= 0 && cut <= range.end) return &range.retention;
  }
  return nullptr;
}

const Retention* BlockChain::RetentionOfTail(int32_t cut, int32_t end) const {
  for (const RetentionRange& range : retention_) {
    const bool is_for_it = range.begin < end && cut < range.end;
    const bool is_for_region = range.begin <= 0 && cut <= range.end;
    if (is_for_it || is_for_region) return &range.retention;
  }
  return nullptr;
}

BlockKey BlockChain::RegionKey(int32_t num_blocks,
                               absl::string_view plan) const {
  BM_CHECK(num_blocks >= 1 && num_blocks <= std::ssize(keys_));
  const BlockKey& key = keys_[num_blocks - 1];
  const auto size = static_cast<uint32_t>(plan.size());
  XXH3_state_t state;
  XXH3_128bits_reset(&state);
  XXH3_128bits_update(&state, &kRegionTag, sizeof(kRegionTag));
  XXH3_128bits_update(&state, &key, sizeof(key));
  XXH3_128bits_update(&state, &size, sizeof(size));
  XXH3_128bits_update(&state, plan.data(), plan.size());
  return Mask(ToKey(XXH3_128bits_digest(&state)));
}

BlockKey BlockChain::KeyAfter(const BlockKey& parent,
                              std::span<const int32_t> tokens, int32_t begin,
                              int32_t page_size) const {
  const EncodingHeader header{kTokensTag, static_cast<uint32_t>(page_size),
                              parent};
  const std::span<const int32_t> own = tokens.subspan(begin, page_size);
  absl::InlinedVector<char, 256> bytes(sizeof(header) + own.size_bytes());
  std::memcpy(bytes.data(), &header, sizeof(header));
  std::memcpy(bytes.data() + sizeof(header), own.data(), own.size_bytes());
  // The media need no length, because nothing follows them.
  VisitMedia(begin, begin + page_size, [&](absl::string_view part) {
    bytes.insert(bytes.end(), part.begin(), part.end());
    return true;
  });
  return Mask(ToKey(XXH3_128bits(bytes.data(), bytes.size())));
}

void BlockChain::Extend(std::span<const int32_t> tokens, int32_t page_size) {
  const size_t num_full = tokens.size() / page_size;
  if (keys_.size() >= num_full) return;
  // Doubles the capacity, so that a long decode does not copy all keys per
  // block.
  if (keys_.capacity() < num_full) {
    keys_.reserve(std::max(num_full, 2 * keys_.capacity()));
  }
  BlockKey parent = keys_.empty() ? root_key_ : keys_.back();
  for (size_t i = keys_.size(); i < num_full; ++i) {
    const auto begin = static_cast<int32_t>(i) * page_size;
    parent = KeyAfter(parent, tokens, begin, page_size);
    keys_.push_back(parent);
  }
}

}  // namespace blockmgr
