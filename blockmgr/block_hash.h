// Content keys of full blocks, for the prefix cache.
//
// A key names the tokens of a block, everything before it, and what else its K
// and V depend on: it is the hash of a tagged, length-prefixed (so injective)
// encoding of (parent key, tokens, media), rooted in the tenant, adapter and
// salt. The hash only finds candidates; a hit is verified against what was
// hashed, so a collision is a miss, never a wrong answer.
#ifndef BLOCKMGR_BLOCK_HASH_H_
#define BLOCKMGR_BLOCK_HASH_H_

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <absl/status/status.h>
#include <absl/strings/string_view.h>

#include "blockmgr/reclaim_order.h"

namespace blockmgr {

struct BlockKey {
  uint64_t low = 0;
  uint64_t high = 0;
  friend bool operator==(const BlockKey&, const BlockKey&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const BlockKey& key) {
    return H::combine(std::move(h), key.low);
  }
};

// An input that is not text: tokens [begin, begin + length) stand for it.
struct MediaItem {
  int32_t begin = 0;
  int32_t length = 0;
  std::string hash = {};  // of the input, any bytes, 1..64

  friend bool operator==(const MediaItem&, const MediaItem&) = default;
};

// What a sequence's K and V depend on besides its tokens. Sequences share
// blocks only where all of this is equal.
struct ContentScope {
  std::string tenant = {};
  std::string lora = {};              // adapter; empty: none
  std::string cache_salt = {};        // known to those who may share
  std::vector<MediaItem> media = {};  // ascending, disjoint
};

// What BlockChain::root() and Media() encode. Begins of media are relative to
// where the encoded positions begin, so below 0 for an item that began before.
// REQUIRE: they have encoded it.
ContentScope DecodeRoot(absl::string_view root);
std::vector<MediaItem> DecodeMedia(absl::string_view media);

// A wish for the blocks that tokens [begin, end) are in.
struct RetentionRange {
  int32_t begin = 0;
  int32_t end = std::numeric_limits<int32_t>::max();
  Retention retention;
};

// Names up to 256 bytes, media ordered and within the prompt; names the field.
absl::Status ValidateScope(const ContentScope& scope, int64_t num_tokens);

// The names of one sequence's full blocks, extended as its tokens are known.
// Thread-compatible.
class BlockChain {
 public:
  BlockChain() : BlockChain(ContentScope{}) {}
  // Fewer key bits make keys collide, for tests.
  // REQUIRES: ValidateScope(), 1 <= key_bits.
  explicit BlockChain(const ContentScope& scope, int32_t key_bits = 128);

  // Names the full blocks of `tokens` (the sequence from position 0) that have
  // no name yet. XXH3-128, O(new tokens).
  void Extend(std::span<const int32_t> tokens, int32_t page_size);
  // Makes room for so many names.
  void Reserve(int64_t num_blocks) {
    keys_.reserve(static_cast<size_t>(num_blocks));
  }

  std::span<const BlockKey> keys() const { return keys_; }
  // Of what a compression by `plan` made of the first num_blocks blocks.
  // REQUIRES: those have keys.
  BlockKey RegionKey(int32_t num_blocks, absl::string_view plan) const;
  // Of the block with positions [begin, begin + page_size) of `tokens`, when
  // what it follows is not the block before it but a region, or a block that
  // follows one.
  BlockKey KeyAfter(const BlockKey& parent, std::span<const int32_t> tokens,
                    int32_t begin, int32_t page_size) const;
  // Tenant, adapter and salt, encoded: what the first block follows.
  const std::string& root() const { return root_; }
  // The media in positions [begin, end), encoded; empty without any.
  // O(1) without media, else O(log media + items found).
  std::string Media(int32_t begin, int32_t end) const;
  // Whether `encoded` is what that returns, and whether that is empty: nothing
  // is allocated.
  bool HasMedia(int32_t begin, int32_t end, absl::string_view encoded) const;
  bool HasNoMedia(int32_t begin, int32_t end) const {
    return HasMedia(begin, end, {});
  }
  int64_t num_media() const { return std::ssize(media_); }
  // Whether both have the same media before `end`. O(those).
  bool HasMediaOf(const BlockChain& other, int32_t end) const;

  // Wishes of this sequence for its blocks, not part of their names. Where
  // ranges overlap, the highest priority holds.
  void SetRetention(std::vector<RetentionRange> ranges);
  // Of the block with positions [begin, end); null: nothing is wished.
  // O(ranges).
  const Retention* RetentionOf(int32_t begin, int32_t end) const;
  // Of a region that stands for positions [0, cut): only a wish for all of them
  // counts, or a wish for the first few would keep every prompt that has them.
  const Retention* RetentionOfRegion(int32_t cut) const;
  // Of the block [cut, end) after it, without which it is of no use.
  const Retention* RetentionOfTail(int32_t cut, int32_t end) const;

 private:
  // Calls visit(bytes) with what Media() is made of, in order, until it returns
  // false; returns whether it never did.
  template <typename Visit>
  bool VisitMedia(int32_t begin, int32_t end, const Visit& visit) const;
  BlockKey Mask(const BlockKey& key) const {
    return {key.low & key_mask_.low, key.high & key_mask_.high};
  }

  std::string root_;
  BlockKey key_mask_;
  BlockKey root_key_;
  std::vector<MediaItem> media_;
  std::vector<RetentionRange> retention_;  // highest priority first
  std::vector<BlockKey> keys_;
};

}  // namespace blockmgr

#endif  // BLOCKMGR_BLOCK_HASH_H_
