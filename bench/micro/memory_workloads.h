// Workloads of the block manager's parts: pool, prefix cache, evictions.
//
// Bookkeeping alone: no K or V bytes are involved. Deterministic. Each checks
// that it did what it says.
#ifndef BENCH_MICRO_MEMORY_WORKLOADS_H_
#define BENCH_MICRO_MEMORY_WORKLOADS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "blockmgr/base/ids.h"
#include "blockmgr/base/model_layout.h"
#include "blockmgr/block_hash.h"
#include "blockmgr/block_manager.h"
#include "blockmgr/block_pool.h"

namespace blockmgr {

// The cache of Llama-3.1-8B: 32 layers of 8 heads, 2 MiB a block.
ModelLayout LlamaLayout(int32_t num_blocks);

// Prompt tokens of the figures that name a length.
inline constexpr int32_t kLongPromptTokens = 32 * 1024;

// Returns random tokens, which are equal for equal seeds.
std::vector<int32_t> RandomTokens(int32_t num_tokens, uint32_t seed);

// Takes slots for the next tokens. REQUIRES: there are blocks.
void ReserveTokens(BlockManager* manager, SequenceSlot slot,
                   int32_t num_tokens);

// Kept entries of every head after an eviction of [0, cut): whole pages,
// uneven, `keep_percent` in total.
std::vector<int32_t> UnevenCounts(const ModelLayout& layout, int32_t cut,
                                  int32_t keep_percent);

// Allocates all blocks of a pool at once, and releases them.
class AllocateWorkload {
 public:
  explicit AllocateWorkload(int32_t num_blocks);
  void Run();

 private:
  BlockPool pool_;
  std::vector<BlockId> blocks_;
};

// Names the blocks of a prompt and finds all of them in the cache.
class MatchWorkload {
 public:
  // REQUIRES: whole pages of 16 tokens.
  explicit MatchWorkload(int32_t num_tokens);
  int32_t num_blocks() const { return num_blocks_; }
  void Run();

 private:
  const int32_t num_blocks_;
  const std::vector<int32_t> prompt_;
  BlockManager manager_;
};

// One eviction of 256 heads, from its order to its commit.
//
// The first one of a sequence goes to fresh blocks and costs no page lists
// (whoever reads them derives them); one over an earlier region, in place,
// does.
class EvictionWorkload {
 public:
  struct Setting {
    int32_t num_tokens = kLongPromptTokens;  // whole pages
    int32_t keep_percent = 20;
    bool in_place = false;  // instead of into fresh blocks
    // A second time, over the region that the first has left, in place.
    bool again_in_place = false;
    // The blocks are in the prefix cache, as every new prompt's are; and the
    // region is published there.
    bool cached = false;
    bool published = false;
  };
  explicit EvictionWorkload(const Setting& setting);

  // Each in turn; the second is to be timed.
  void Prepare();
  void Run();
  void Finish();

  int64_t evicted_entries() const { return evicted_entries_; }  // by Run

 private:
  void Evict(std::span<const int32_t> counts, bool in_place);

  const Setting setting_;
  const std::vector<int32_t> counts_;
  const std::vector<int32_t> counts_again_;
  BlockManager manager_;
  uint32_t num_prepared_ = 0;
  SequenceSlot slot_ = kNoSequenceSlot;
  int32_t cut_ = 0;
  std::vector<int32_t> prompt_;
  BlockChain chain_;
  int64_t evicted_entries_ = 0;
};

// Takes blocks of a pool that is full of cached ones, which have to be
// reclaimed.
class ReclaimWorkload {
 public:
  // REQUIRES: a multiple of kNumTaken.
  explicit ReclaimWorkload(int32_t num_blocks);

  static constexpr int32_t kNumTaken = 1024;

  // Each in turn; the second is to be timed. The first leaves a prompt more in
  // the cache, for which the oldest has gone.
  void Prepare();
  void Run();
  void Finish();

 private:
  BlockManager manager_;
  uint32_t num_prompts_ = 0;
  SequenceSlot slot_ = kNoSequenceSlot;
};

// Tells a reader of the prefix cache all that is in it, as the daemon does.
class ReadCacheWorkload {
 public:
  // REQUIRES: whole prompts of kLongPromptTokens.
  explicit ReadCacheWorkload(int32_t num_blocks);
  // In readings of so many blocks. `walks`: by a reader that knows nothing;
  // otherwise by one that knows nothing of the last num_blocks changes.
  void Run(int32_t max_blocks, bool walks);

 private:
  const int32_t num_blocks_;
  BlockManager manager_;
};

// A pool full of sequences, for what the host must remember about it.
struct MetadataSetting {
  int32_t num_blocks = 22528;  // 44 GiB: what an 80 GB GPU has left
  int32_t num_tokens = 4096;   // of each sequence; whole pages
  // Every sequence is compressed to a fifth, and every other one once more, in
  // place: its page lists follow from nothing and are kept.
  bool with_regions = false;
};
struct MetadataBytes {
  double per_block = 0;
  double pool_fraction = 0;  // of the bytes of K and V
  int32_t num_regions = 0;
};
// Fills a pool until no further sequence fits; what they leave stays in the
// prefix cache. O(blocks).
MetadataBytes MeasureMetadata(const MetadataSetting& setting);

}  // namespace blockmgr

#endif  // BENCH_MICRO_MEMORY_WORKLOADS_H_
