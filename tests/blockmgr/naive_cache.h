// NaiveCache: the prefix cache of NaiveModel. Pages and regions, those that a
// prompt starts with, and those that are reclaimed first.
//
// Groups differ in one respect. A page of group 0 is found by its content: the
// tokens up to its end, and the entry before it. A page of another group is
// found by the page of group 0 that it is linked to, or by a region. Regions of
// other groups are found by the region of group 0 that was made with them. So
// group 0 is published first, and its entries are what chains consist of.
#ifndef TESTS_BLOCKMGR_NAIVE_CACHE_H_
#define TESTS_BLOCKMGR_NAIVE_CACHE_H_

#include <cstdint>
#include <limits>
#include <map>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "blockmgr/block_manager.h"
#include "tests/blockmgr/naive_books.h"

namespace blockmgr {

class NaiveCache {
 public:
  // An entry: a block, or a region by id.
  using EntryName = std::pair<BlockId, uint64_t>;

  explicit NaiveCache(NaiveBooks* books) : books_(*books) {}

  int32_t CountRegions() const;  // of group 0
  int32_t CountBlocks() const;
  // Blocks that regions have in other groups than 0, and nobody uses.
  std::vector<BlockId> IdleLinkedBlocks() const;
  // The region that has this block; 0: none.
  uint64_t RegionWith(BlockId block) const;
  bool Contains(BlockId block) const {
    return cached_.contains(block) || RegionWith(block) != 0;
  }
  // Whether the block is this region's, or its tail's.
  bool IsOfRegion(uint64_t id, BlockId block) const;
  // Returns the context of sequences that start with the region. Region 0 is
  // none.
  std::string ContextOf(uint64_t region) const;
  // The entry that precedes the next one of a sequence that was cut back to so
  // many full pages; 0: there is none.
  uint64_t ChainAt(const NaiveSequence& sequence, int32_t num_pages) const;

  // Blocks a prompt can start with, and how many only the cache holds.
  NaiveMatch Match(int32_t scope, const std::vector<int32_t>& tokens,
                   int32_t max_tokens, const RegionQuery* query) const;
  // Extends it by a part of a block.
  void MatchPart(int32_t scope, const std::vector<int32_t>& tokens,
                 int32_t max_tokens, NaiveMatch* match) const;
  void CountUnused(NaiveMatch* match) const;
  // The sequence starts with what was matched.
  void Open(const NaiveMatch& match, NaiveSequence* sequence);

  // Offers the settled pages.
  void Publish(NaiveSequence* sequence);
  // Offers the regions of all groups; false: others cannot start with them.
  bool PublishRegion(NaiveSequence* sequence, const RegionName& name,
                     bool* is_new);
  // A new region stands for this entry, which nobody uses or has found.
  void Supersede(const EntryName& entry);
  // Drops what goes first, until that many blocks are free. Returns how many
  // blocks have become free.
  int32_t Reclaim(int64_t num_wanted, int32_t num_free);
  // Drops the entries of these blocks. Returns how many of them had one.
  int32_t Take(std::span<const BlockId> blocks);
  // Drops what it has of lost blocks and can find only through them. Returns
  // the entries after which nothing can be found.
  std::set<uint64_t> LoseBlocks(const std::set<BlockId>& lost);
  void Reset();
  void SetTime(int64_t now_ms);
  // Gives blocks that have become reclaimable their place in the order. To be
  // called after every operation.
  void Line();

 private:
  // The wishes that decide when an entry is reclaimed.
  struct Wished {
    bool superseded = false;  // by a region; then the priority tells
    Retention retention;
    uint64_t wish = 0;  // in order of the wishes
  };
  // A page.
  struct Entry : Wished {
    uint64_t id = 0;
    int32_t group = 0;
    // Group 0 only.
    int32_t scope = 0;
    uint64_t parent = 0;
    std::vector<int32_t> prefix = {};  // all tokens up to the page's end
    // Other groups only: the entry that it is linked to. 0: only regions lead
    // to it.
    uint64_t of = 0;
  };
  // A block and its entry.
  using Link = std::pair<BlockId, uint64_t>;
  // The beginning of a sequence in one group: the group's region and its entry
  // (0: it has no block), and the pages behind that which the next token
  // attends to. In group 0 this is the region that leads to the others, and the
  // page at its end.
  struct Start {
    BookRegion region;
    uint64_t id = 0;
    std::map<int32_t, Link> pages;
  };
  struct Region : Wished {
    int32_t group = 0;
    std::vector<BlockId> blocks = {};
    // Group 0 only: it leads to the regions of other groups.
    int32_t scope = 0;
    RegionName name = {};
    std::vector<int32_t> tokens = {};  // [0, name.length)
    uint64_t lineage = 0;
    std::vector<Start> starts = {};  // by group
  };
  using Content = std::tuple<int32_t, uint64_t, std::vector<int32_t>>;
  static Content ContentOf(const Entry& entry) {
    return {entry.scope, entry.parent, entry.prefix};
  }

  std::vector<EntryName> Entries() const;
  // The block that tells whether the entry is in use.
  BlockId FirstOf(const EntryName& entry) const;
  Wished& At(const EntryName& entry);
  bool IsAlive(const Link& link) const;
  bool IsComplete(const Region& region) const;
  // The page at the region's end, which others start with; null: it has none.
  Link TailOf(const Region& region) const;
  // Whether a region leads to the block, or to the region of a group.
  bool IsLinked(const EntryName& entry) const;

  // Matching (naive_cache_match.cc).
  // The region a sequence can start with; 0: none.
  uint64_t MatchRegion(int32_t scope, const std::vector<int32_t>& tokens,
                       const RegionQuery& query, int32_t max_length) const;
  // Returns the start of a group after so many tokens. Null: there is none, or
  // the window has left its region behind.
  const Start* StartOf(uint64_t region, int32_t group,
                       int32_t num_tokens) const;
  // The page of a group that a match leads to; null: none.
  BlockId PageOf(const NaiveMatch& match, int32_t group, int32_t page) const;
  // Whether every group can start with so many pages of a match.
  bool Fits(const NaiveMatch& match, int32_t num_pages) const;
  // Shortens the match until it fits, and names what every group starts with;
  // false: its region is not to be had.
  bool Fit(const std::vector<int32_t>& tokens, NaiveMatch* match) const;
  void OpenRegion(const NaiveMatch& match, int32_t group,
                  NaiveSequence* sequence);
  void OpenPages(const NaiveMatch& match, int32_t group,
                 NaiveSequence* sequence);

  // Publication (naive_cache_publish.cc).
  // Offers a page of all groups. Returns the entry of group 0's.
  uint64_t PublishPage(const NaiveSequence& sequence, int32_t page,
                       uint64_t parent, int32_t cut);
  // Offers it to be found by the entry `of`.
  void LinkPage(const NaiveSequence& sequence, int32_t group, int32_t page,
                uint64_t of, int32_t cut);
  // Returns the start in a group of a region of `length` tokens. Adds entries
  // that are missing.
  Start MakeStart(const NaiveSequence& sequence, int32_t group, int32_t length);
  void AddLinked(BlockId block, int32_t group, uint64_t of);

  // A sequence starts with the entry.
  void Use(const EntryName& entry);
  // Takes over the wishes for any of positions [begin, end), or for all of
  // [0, cut).
  void ApplyWishes(const NaiveSequence& sequence, const EntryName& entry,
                   int32_t begin, int32_t end, int32_t cut = 0);
  void Drop(const EntryName& entry);
  void DropPage(BlockId block);
  void DropRegion(uint64_t id);
  // Drops what nothing leads to any more.
  void DropOrphan(const EntryName& entry);
  // Entries that nobody uses and no step can touch, in the order in which they
  // are reclaimed.
  std::vector<EntryName> Reclaimable();

  NaiveBooks& books_;
  std::map<BlockId, Entry> cached_;
  std::map<Content, BlockId> by_content_;
  std::map<uint64_t, Region> regions_;
  std::map<EntryName, uint64_t> line_;  // of the reclaimable entries
  uint64_t next_in_line_ = 1;
  int32_t num_freed_ = 0;  // blocks of the line, since Line
  uint64_t next_wish_ = 1;
  int64_t now_ms_ = std::numeric_limits<int64_t>::min();  // as yet unknown
};

}  // namespace blockmgr

#endif  // TESTS_BLOCKMGR_NAIVE_CACHE_H_
