// KvEventIndex: turns readings of the prefix cache into the events that vLLM's
// consumers understand, on ZeroMQ (kv_event_publisher.h) and in streams of gRPC
// (kv_event_batches.h).
//
// A reading tells items in no particular order, and tells of items that no
// prompt can begin with. Consumers of events drop a block whose parent they do
// not know, and think that a block is usable until its removal is told. So the
// index knows every cached item and tells
//
//   * a block after its parent, which may come in a later reading;
//   * the removal of everything behind an item together with its removal. A
//     block that is cached again has a new serial, and nothing follows it yet.
//
// Two lists of events come out of a reading, because consumers of blocks know
// no compressed prefixes:
//
//   scope --- block --- block --- block          blocks
//     \------ region (+ tail block) --- block    prefixes
//
// A region is told when its tail block is cached, too.
//
// The hash of a block follows from its content and that of all before it, as in
// vLLM: consumers expect that a block that is computed again has its old hash.
//
// Cost: O(items of the reading and those that become usable or useless with
// them), and some 100 bytes of memory per cached block. Thread-compatible.
#ifndef SCHEDULER_SERVER_KV_EVENT_INDEX_H_
#define SCHEDULER_SERVER_KV_EVENT_INDEX_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <absl/container/flat_hash_map.h>

#include "blockmgr/block_hash.h"
#include "blockmgr/prefix_cache_delta.h"
#include "blockmgr/prefix_cache_log.h"
#include "scheduler/server/commands.h"

namespace blockmgr {

struct KvEvent {
  enum class Kind {
    kCleared,  // nothing is cached
    kRemoved,  // the items `hashes` are removed
    kBlocks,   // the blocks `hashes` are cached, each behind the one before
    kPrefix,   // a piece of the compressed prefix hashes[0] is cached
  };

  Kind kind = Kind::kCleared;
  std::vector<uint64_t> hashes = {};
  // For kBlocks and kPrefix. `parent` is the hash of the item before hashes[0].
  // Without a parent, hashes[0] begins a prompt.
  std::optional<uint64_t> parent = {};
  std::shared_ptr<const ContentScope> scope = {};
  std::vector<int32_t> tokens = {};
  // The media items. A kBlocks event has one list per block, whose begins count
  // from the first token of the block. A kPrefix event has one list. The list
  // of the first piece has all items of the prefix, and the lists of the other
  // pieces are empty.
  std::vector<std::vector<MediaItem>> media = {};
  // For kPrefix, see PrefixCacheDelta::Region. first_token is the place of
  // tokens[0] in the prefix.
  int32_t first_token = 0;
  int32_t length = 0;
  std::string plan = {};
};

struct KvEventLists {
  std::vector<KvEvent> blocks;
  std::vector<KvEvent> prefixes;
};

class KvEventIndex {
 public:
  // The most blocks of an event, and the most tokens of a piece.
  static constexpr size_t kMaxRunBlocks = 128;
  static constexpr size_t kMaxPieceTokens = 4096;

  // If `tells_prefixes` is false, KvEventLists::prefixes has blocks behind
  // compressed prefixes only, and nothing of a prefix is copied or kept.
  explicit KvEventIndex(bool tells_prefixes = true)
      : tells_prefixes_(tells_prefixes) {}

  // Returns the events that follow from a reading. REQUIRES: `reading` begins
  // where the last one ended, or has `reset`.
  KvEventLists Apply(const PrefixCacheReading& reading);

  // Counts the blocks and regions that are cached, told or not.
  int64_t num_items() const { return std::ssize(items_); }

 private:
  struct Item {
    // Items with one parent are a list.
    EntrySerial parent = kNoSerial;
    EntrySerial next = kNoSerial;
    EntrySerial previous = kNoSerial;
    // The following members are set when the item is told.
    EntrySerial scope = kNoSerial;
    uint64_t hash = 0;
    bool is_told = false;
    bool in_prefix = false;  // a region, or behind a region
  };
  // The content of a block that is not told yet.
  struct Block {
    std::vector<int32_t> tokens;
    std::vector<MediaItem> media;
  };
  struct Region {
    PrefixCacheDelta::Region told;
    bool is_waiting = true;
  };

  void Reset(const PrefixCacheCursor& cursor);
  void Remove(EntrySerial serial);
  void AddBlock(const PrefixCacheDelta::Block& block,
                std::span<const int32_t> tokens);
  void AddRegion(const PrefixCacheDelta::Region& region);
  // Enter an item into the list of its parent, and take it out.
  void Add(EntrySerial serial, EntrySerial parent);
  void Unlink(const Item& item);
  // Tells the item if all that it needs is there, and then everything that
  // waits for it.
  void Tell(EntrySerial serial);
  // Returns whether the item became usable.
  bool TellOne(EntrySerial serial);
  // `parent` is null if the block follows its scope.
  void TellBlock(const Item* parent, Block block, Item* item);
  void TellRegion(const PrefixCacheDelta::Region& region, uint64_t hash);
  // Takes back what was told of the item and of everything behind it, none of
  // which can become usable again.
  void Withdraw(EntrySerial serial);

  const bool tells_prefixes_;
  bool has_begun_ = false;
  // An event was told since the last kCleared.
  bool has_told_ = false;
  uint64_t region_seed_ = 0;
  absl::flat_hash_map<EntrySerial, std::shared_ptr<const ContentScope>> scopes_;
  absl::flat_hash_map<EntrySerial, Item> items_;
  // The first item behind a scope or an item, cached or not.
  absl::flat_hash_map<EntrySerial, EntrySerial> first_child_;
  absl::flat_hash_map<EntrySerial, Block> waiting_;
  absl::flat_hash_map<EntrySerial, Region> regions_;
  // The regions of a tail block.
  absl::flat_hash_map<EntrySerial, std::vector<EntrySerial>> regions_of_tail_;

  // The results of the reading that Apply works on, and scratch memory.
  KvEventLists events_;
  std::vector<uint64_t> removed_;  // the blocks to remove
  // The compressed prefixes to remove, with the blocks behind them.
  std::vector<uint64_t> removed_prefixes_;
  std::vector<EntrySerial> stack_;
};

}  // namespace blockmgr

#endif  // SCHEDULER_SERVER_KV_EVENT_INDEX_H_
