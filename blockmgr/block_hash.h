// Content keys of full blocks, for the prefix cache.
//
// The key of a block is a hash of everything that its K and V depend on:
//
//   key of block i = hash(key of block i - 1, tokens, media)
//   root key       = hash(tenant, adapter, salt), the parent of block 0's key
//
// The hashed bytes are tagged and length-prefixed, so two contents never have
// the same bytes. A key only finds candidates. The cache verifies each hit
// against the content, so a collision is a miss, never a wrong answer.
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

// An input that is not text. The tokens [begin, begin + length) stand for it.
struct MediaItem {
  int32_t begin = 0;
  int32_t length = 0;
  // The hash of the input: 1 to 64 bytes of any value.
  std::string hash = {};

  friend bool operator==(const MediaItem&, const MediaItem&) = default;
};

// Everything besides tokens that a sequence's K and V depend on. Sequences
// share blocks only if all of it is equal.
struct ContentScope {
  std::string tenant = {};
  // The name of the adapter. Empty if there is none.
  std::string lora = {};
  // Only sequences with an equal salt share blocks.
  std::string cache_salt = {};
  std::vector<MediaItem> media = {};  // ascending, disjoint
};

// Decode the bytes of BlockChain::root() and BlockChain::Media(). An item's
// `begin` is relative to the first encoded position. It is negative if the item
// begins before that position. REQUIRE: the bytes come from these functions.
ContentScope DecodeRoot(absl::string_view root);
std::vector<MediaItem> DecodeMedia(absl::string_view media);

// A retention wish for all blocks with a token in [begin, end).
struct RetentionRange {
  int32_t begin = 0;
  int32_t end = std::numeric_limits<int32_t>::max();
  Retention retention;
};

// Returns InvalidArgument, naming the field, unless names have at most 256
// bytes and media items are valid, in order, and within the prompt.
absl::Status ValidateScope(const ContentScope& scope, int64_t num_tokens);

// The keys of one sequence's full blocks, extended when its tokens become
// known. Thread-compatible.
class BlockChain {
 public:
  BlockChain() : BlockChain(ContentScope{}) {}
  // Only tests pass key_bits: keys with fewer bits collide more often.
  // REQUIRES: ValidateScope(scope) is ok; key_bits >= 1.
  explicit BlockChain(const ContentScope& scope, int32_t key_bits = 128);

  // Adds keys for the full blocks of `tokens` that have none. `tokens` is the
  // sequence from position 0 on. XXH3-128, O(new tokens).
  void Extend(std::span<const int32_t> tokens, int32_t page_size);
  void Reserve(int64_t num_blocks) {
    keys_.reserve(static_cast<size_t>(num_blocks));
  }

  std::span<const BlockKey> keys() const { return keys_; }
  // Returns the key of the region that a compression by `plan` made from the
  // first num_blocks blocks. REQUIRES: these blocks have keys.
  BlockKey RegionKey(int32_t num_blocks, absl::string_view plan) const;
  // Returns the key of the block with positions [begin, begin + page_size) of
  // `tokens` behind `parent`. For blocks computed over a region, whose keys are
  // not in keys().
  BlockKey KeyAfter(const BlockKey& parent, std::span<const int32_t> tokens,
                    int32_t begin, int32_t page_size) const;
  // Returns tenant, adapter and salt, encoded.
  const std::string& root() const { return root_; }
  // Returns the media in positions [begin, end), encoded. Empty if there are
  // none. O(log media + items found).
  std::string Media(int32_t begin, int32_t end) const;
  // Returns whether Media(begin, end) == encoded, without allocating.
  bool HasMedia(int32_t begin, int32_t end, absl::string_view encoded) const;
  bool HasNoMedia(int32_t begin, int32_t end) const {
    return HasMedia(begin, end, {});
  }
  int64_t num_media() const { return std::ssize(media_); }
  // Returns whether both chains have the same media items with a `begin` below
  // `end`. O(items compared).
  bool HasMediaOf(const BlockChain& other, int32_t end) const;

  // Sets the sequence's retention wishes for its blocks. They do not change
  // keys. Where ranges overlap, the highest priority wins.
  void SetRetention(std::vector<RetentionRange> ranges);
  // Returns the wish for the block [begin, end), or null. O(ranges).
  const Retention* RetentionOf(int32_t begin, int32_t end) const;
  // Returns the wish for a region that stands for positions [0, cut). Only a
  // wish for all of these positions counts. Otherwise a wish for a system
  // prompt would keep the regions of every prompt that begins with it.
  const Retention* RetentionOfRegion(int32_t cut) const;
  // Returns the wish for the block [cut, end) behind a region. A wish for the
  // region counts too, because the region is of no use without this block.
  const Retention* RetentionOfTail(int32_t cut, int32_t end) const;

 private:
  // Calls visit(bytes) with the parts of Media(begin, end), in order, until a
  // call returns false. Returns whether every call returned true.
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
