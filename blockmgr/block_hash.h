// Content keys of full blocks, for the prefix cache.
//
// A key names the tokens of a block and of everything before it: it is the hash
// of a tagged, length-prefixed encoding of (parent key, tokens). The hash only
// finds candidates; a hit is verified against the tokens, so a collision is a
// miss, never a wrong answer.
#ifndef BLOCKMGR_BLOCK_HASH_H_
#define BLOCKMGR_BLOCK_HASH_H_

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

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

// The parent of a first block.
BlockKey RootBlockKey();

// XXH3-128 over the encoding. O(tokens).
BlockKey HashBlock(const BlockKey& parent, std::span<const int32_t> tokens);

// Appends the keys of the full blocks of `tokens` that `keys` does not have
// yet.
void ExtendBlockKeys(std::span<const int32_t> tokens, int32_t page_size,
                     std::vector<BlockKey>* keys);

}  // namespace blockmgr

#endif  // BLOCKMGR_BLOCK_HASH_H_
