#include "scheduler/server/kv_event_packing.h"

#include <algorithm>

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/string_view.h>
#include <msgpack.hpp>

namespace blockmgr {
namespace {

// Lets msgpack append to a string.
struct StringBuffer {
  std::string* bytes;
  void write(const char* data, size_t size) { bytes->append(data, size); }
};

using Packer = msgpack::packer<StringBuffer>;

void PackBytes(const std::string& bytes, Packer* packer) {
  packer->pack_bin(static_cast<uint32_t>(bytes.size()));
  packer->pack_bin_body(bytes.data(), static_cast<uint32_t>(bytes.size()));
}

// Packs a text as consumers expect it. Bytes that are not UTF-8, which a hash
// may have, would make them drop the batch.
void PackText(const std::string& text, Packer* packer) {
  const bool is_ascii = std::ranges::all_of(
      text, [](char c) { return static_cast<unsigned char>(c) < 0x80; });
  if (is_ascii) {
    packer->pack(text);
  } else {
    PackBytes(text, packer);
  }
}

void PackName(const std::string& name, Packer* packer) {
  name.empty() ? packer->pack_nil() : packer->pack(name);
}

template <typename Item>
void PackArray(const std::vector<Item>& items, Packer* packer) {
  packer->pack_array(static_cast<uint32_t>(items.size()));
  for (const Item& item : items) packer->pack(item);
}

void PackTokens(const std::vector<int32_t>& tokens, Packer* packer) {
  packer->pack_array(static_cast<uint32_t>(tokens.size()));
  for (const int32_t token : tokens) {
    packer->pack(static_cast<uint32_t>(token));
  }
}

// Returns a text that is equal for two scopes only if their tenants are equal
// and their salts are equal. Without a tenant the text is the salt, except for
// salts that look like a tenant and a salt.
std::string SaltOf(const ContentScope& scope) {
  constexpr absl::string_view kTenant = "tenant=";
  if (scope.tenant.empty() && !absl::StartsWith(scope.cache_salt, kTenant)) {
    return scope.cache_salt;
  }
  return absl::StrCat(kTenant, scope.tenant.size(), ":", scope.tenant, ";",
                      scope.cache_salt);
}

// Packs, for each block, what its content depends on besides tokens.
void PackExtraKeys(const KvEvent& event, const std::string& salt,
                   Packer* packer) {
  const std::string& lora = event.scope->lora;
  packer->pack_array(static_cast<uint32_t>(event.hashes.size()));
  for (size_t i = 0; i < event.hashes.size(); ++i) {
    const std::vector<MediaItem>& media = event.media[i];
    // Consumers expect the salt at the first block of a prompt only. The later
    // blocks follow from the first one.
    const bool has_salt = i == 0 && !event.parent.has_value() && !salt.empty();
    const size_t num_keys =
        media.size() + (lora.empty() ? 0 : 1) + (has_salt ? 1 : 0);
    if (num_keys == 0) {
      packer->pack_nil();
      continue;
    }
    packer->pack_array(static_cast<uint32_t>(num_keys));
    if (!lora.empty()) packer->pack(lora);
    for (const MediaItem& item : media) {
      packer->pack_array(2);
      PackText(item.hash, packer);
      packer->pack(item.begin);
    }
    if (has_salt) packer->pack(salt);
  }
}

void PackBlocks(const KvEvent& event, int32_t page_size, Packer* packer) {
  const std::string salt = SaltOf(*event.scope);
  const bool has_keys = !event.scope->lora.empty() ||
                        (!salt.empty() && !event.parent.has_value()) ||
                        std::ranges::any_of(event.media, [](const auto& media) {
                          return !media.empty();
                        });
  packer->pack_map(8u + (has_keys ? 1 : 0) + (salt.empty() ? 0 : 1));
  packer->pack("type");
  packer->pack("BlockStored");
  packer->pack("block_hashes");
  PackArray(event.hashes, packer);
  packer->pack("parent_block_hash");
  event.parent.has_value() ? packer->pack(*event.parent) : packer->pack_nil();
  packer->pack("token_ids");
  PackTokens(event.tokens, packer);
  packer->pack("block_size");
  packer->pack(page_size);
  packer->pack("lora_id");
  packer->pack_nil();
  packer->pack("medium");
  packer->pack("GPU");
  packer->pack("lora_name");
  PackName(event.scope->lora, packer);
  if (has_keys) {
    packer->pack("extra_keys");
    PackExtraKeys(event, salt, packer);
  }
  if (salt.empty()) return;
  packer->pack("cache_salt");
  packer->pack(salt);
}

void PackPrefix(const KvEvent& event, int32_t page_size, Packer* packer) {
  const std::vector<MediaItem>& media = event.media[0];
  const std::string salt = SaltOf(*event.scope);
  packer->pack_map(9u + (media.empty() ? 0 : 1) + (salt.empty() ? 0 : 1));
  packer->pack("type");
  packer->pack("CompressedPrefixStored");
  packer->pack("block_hash");
  packer->pack(event.hashes[0]);
  packer->pack("token_ids");
  PackTokens(event.tokens, packer);
  packer->pack("first_token");
  packer->pack(event.first_token);
  packer->pack("length");
  packer->pack(event.length);
  packer->pack("plan");
  packer->pack(event.plan);
  packer->pack("block_size");
  packer->pack(page_size);
  packer->pack("medium");
  packer->pack("GPU");
  packer->pack("lora_name");
  PackName(event.scope->lora, packer);
  if (!media.empty()) {
    packer->pack("media");
    packer->pack_array(static_cast<uint32_t>(media.size()));
    for (const MediaItem& item : media) {
      packer->pack_array(3);
      PackText(item.hash, packer);
      packer->pack(item.begin);
      packer->pack(item.length);
    }
  }
  if (salt.empty()) return;
  packer->pack("cache_salt");
  packer->pack(salt);
}

void PackEvent(const KvEvent& event, int32_t page_size, Packer* packer) {
  switch (event.kind) {
    case KvEvent::Kind::kCleared:
      packer->pack_map(1);
      packer->pack("type");
      packer->pack("AllBlocksCleared");
      return;
    case KvEvent::Kind::kRemoved:
      packer->pack_map(3);
      packer->pack("type");
      packer->pack("BlockRemoved");
      packer->pack("block_hashes");
      PackArray(event.hashes, packer);
      packer->pack("medium");
      packer->pack("GPU");
      return;
    case KvEvent::Kind::kBlocks:
      return PackBlocks(event, page_size, packer);
    case KvEvent::Kind::kPrefix:
      return PackPrefix(event, page_size, packer);
  }
}

std::string PackBatch(const std::string& events, uint32_t num_events,
                      double seconds) {
  std::string batch;
  StringBuffer buffer = {&batch};
  Packer packer(buffer);
  packer.pack_array(3);
  packer.pack(seconds);
  packer.pack_array(num_events);
  batch += events;
  packer.pack_nil();  // the rank among data-parallel engines
  return batch;
}

}  // namespace

std::vector<std::string> PackKvEvents(std::span<const KvEvent> events,
                                      int32_t page_size, double seconds,
                                      int64_t max_bytes) {
  std::vector<std::string> batches;
  std::string packed;
  StringBuffer buffer = {&packed};
  Packer packer(buffer);
  uint32_t num_events = 0;
  for (const KvEvent& event : events) {
    PackEvent(event, page_size, &packer);
    ++num_events;
    if (std::ssize(packed) < max_bytes && &event != &events.back()) continue;
    batches.push_back(PackBatch(packed, num_events, seconds));
    packed.clear();
    num_events = 0;
  }
  return batches;
}

}  // namespace blockmgr
