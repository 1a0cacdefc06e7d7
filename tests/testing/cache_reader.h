// CacheReader: somebody who knows of a prefix cache what its deltas told, as a
// router does, and says where that is wrong.
#ifndef TESTS_TESTING_CACHE_READER_H_
#define TESTS_TESTING_CACHE_READER_H_

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "blockmgr/block_hash.h"
#include "blockmgr/prefix_cache.h"

namespace blockmgr {

class CacheReader {
 public:
  explicit CacheReader(int32_t page_size) : page_size_(page_size) {}

  // Reads once. Whether it knows all that is cached now.
  bool Read(const PrefixCache& cache, int32_t max_blocks);
  // Gets no more than the first num_entries of what it would read: it will go
  // on from where it was.
  void ReadInPart(const PrefixCache& cache, int32_t max_blocks,
                  int64_t num_entries);

  // The first thing in which `cache` differs from what is known; empty: none.
  // What an entry holds is compared by its key, which is computed anew from
  // what was told of it and of all before it. REQUIRES: it knows all.
  std::string Difference(const PrefixCache& cache) const;

  // How many pages of `tokens` the blocks known can begin.
  int32_t MatchBlocks(const ContentScope& scope,
                      std::span<const int32_t> tokens) const;

  const std::map<EntrySerial, ContentScope>& scopes() const { return scopes_; }
  int64_t num_blocks() const { return std::ssize(blocks_); }
  int64_t num_regions() const { return std::ssize(regions_); }
  int64_t num_resets() const { return num_resets_; }
  // Of entries, those that were told once and are removed.
  int64_t num_removed() const { return num_removed_; }
  // Told twice without a reset between, not counting what was read in part.
  int64_t num_repeated() const { return num_repeated_; }

 private:
  struct Block {
    EntrySerial parent = kNoSerial;
    std::vector<int32_t> tokens;
    std::vector<MediaItem> media;
  };
  struct Region {
    EntrySerial scope = kNoSerial;
    EntrySerial tail = kNoSerial;
    std::string plan = {};
    std::vector<int32_t> tokens = {};
    std::vector<MediaItem> media = {};
  };

  // Without what comes after the first num_entries.
  void Apply(const PrefixCacheDelta& delta, int64_t num_entries);
  // None: something before it is not known.
  std::optional<BlockKey> KeyOf(EntrySerial serial) const;
  BlockKey KeyOf(const Region& region) const;

  int32_t page_size_;
  PrefixCachePosition position_;
  bool may_repeat_ = false;  // since something was read in part
  std::map<EntrySerial, ContentScope> scopes_;
  std::map<EntrySerial, Block> blocks_;
  std::map<EntrySerial, Region> regions_;
  int64_t num_resets_ = 0;
  int64_t num_removed_ = 0;
  int64_t num_repeated_ = 0;
};

}  // namespace blockmgr

#endif  // TESTS_TESTING_CACHE_READER_H_
