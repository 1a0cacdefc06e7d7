#include "blockmgr/block_hash.h"

#include <cstring>

#include <absl/container/inlined_vector.h>

// Header-only, so that an installed blockmgr needs no xxHash to link.
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace blockmgr {
namespace {

// First word of every encoding; a new kind of content gets a new tag.
constexpr uint32_t kTokensTag = 0x544F4B31;  // "TOK1"
constexpr uint32_t kRootTag = 0x524F4F54;    // "ROOT"

struct EncodingHeader {
  uint32_t tag;
  uint32_t num_tokens;
  BlockKey parent;
};

BlockKey ToKey(XXH128_hash_t hash) { return {hash.low64, hash.high64}; }

}  // namespace

BlockKey RootBlockKey() {
  return ToKey(XXH3_128bits(&kRootTag, sizeof(kRootTag)));
}

BlockKey HashBlock(const BlockKey& parent, std::span<const int32_t> tokens) {
  const EncodingHeader header{kTokensTag, static_cast<uint32_t>(tokens.size()),
                              parent};
  absl::InlinedVector<unsigned char, 256> bytes(sizeof(header) +
                                                tokens.size_bytes());
  std::memcpy(bytes.data(), &header, sizeof(header));
  std::memcpy(bytes.data() + sizeof(header), tokens.data(),
              tokens.size_bytes());
  return ToKey(XXH3_128bits(bytes.data(), bytes.size()));
}

void ExtendBlockKeys(std::span<const int32_t> tokens, int32_t page_size,
                     std::vector<BlockKey>* keys) {
  const size_t num_full = tokens.size() / page_size;
  if (keys->size() >= num_full) return;
  keys->reserve(num_full);
  BlockKey parent = keys->empty() ? RootBlockKey() : keys->back();
  for (size_t i = keys->size(); i < num_full; ++i) {
    parent = HashBlock(parent, tokens.subspan(i * page_size, page_size));
    keys->push_back(parent);
  }
}

}  // namespace blockmgr
