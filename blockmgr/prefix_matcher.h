// PrefixMatcher: the beginning of a sequence that blocks and regions of the
// prefix cache stand for.
//
// PrefixCache::Match finds and verifies the blocks. This class adds regions,
// linked groups and partial hits.
//
// A query without state: it looks at the cache and changes nothing. In a model
// with several layer groups, a prefix is of use as far as every group has the
// pages that the next token attends to. Thread-compatible.
#ifndef BLOCKMGR_PREFIX_MATCHER_H_
#define BLOCKMGR_PREFIX_MATCHER_H_

#include <cstdint>
#include <span>

#include "blockmgr/base/ids.h"
#include "blockmgr/base/model_layout.h"
#include "blockmgr/block_hash.h"
#include "blockmgr/cached_pool.h"
#include "blockmgr/prefix_cache.h"
#include "blockmgr/prefix_match.h"

namespace blockmgr {

class PrefixMatcher {
 public:
  // Borrows both arguments, which must outlive this object.
  PrefixMatcher(const ModelLayout& layout, const CachedPool& blocks)
      : layout_(layout), blocks_(blocks) {}

  // See BlockManager::Match and MatchPart. `memory` is never null.
  PrefixMatch Match(const BlockChain& chain, std::span<const int32_t> tokens,
                    int32_t max_tokens, const RegionQuery* query,
                    MatchMemory* memory) const;
  void MatchPart(const BlockChain& chain, std::span<const int32_t> tokens,
                 int32_t max_tokens, PrefixMatch* match) const;
  // Counts the blocks of a match that no sequence uses: num_reclaimable and
  // num_cooling.
  void CountUnused(PrefixMatch* match) const;

 private:
  // Returns the longest match that begins with a cached region, in the memory
  // given. Adds the number of entries that it looked at to `num_looks`.
  PrefixMatch MatchOver(const BlockChain& chain,
                        std::span<const int32_t> tokens, RegionQuery query,
                        MatchMemory* memory, int64_t* num_looks) const;
  // Returns the largest number of pages of the match, at least num_least, for
  // which every group has its span. Returns -1 if there is none.
  int32_t CountPagesInSpans(const PrefixMatch& match, int32_t num_least) const;
  // Shortens a match, which has the blocks of the index group, to that number
  // of pages, and names what it has in each group. Returns false if nothing is
  // left of the match.
  bool FitSpans(PrefixMatch* match) const;
  // Returns the match's block of this page in a linked group, or null.
  BlockId LinkedBlock(const PrefixMatch& match, int32_t page,
                      int32_t group) const;

  const ModelLayout& layout_;
  const CachedPool& blocks_;
};

}  // namespace blockmgr

#endif  // BLOCKMGR_PREFIX_MATCHER_H_
