// BytePairs merges the tokens of a word by the rules of byte-pair encoding.
//
// A rule joins two neighbours to one token. Its rank is its index. As long as a
// rule applies, the rule of the lowest rank is applied, at its leftmost place:
//
//   rules   0: l o -> lo   1: lo w -> low   2: e r -> er
//   word    l o w e r  ->  lo w e r  ->  low e r  ->  low er
//
// Thread-safe: a call changes only its arguments.
#ifndef ENGINE_TOKENIZER_BYTE_PAIRS_H_
#define ENGINE_TOKENIZER_BYTE_PAIRS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <absl/container/flat_hash_map.h>

namespace blockmgr {

struct PairRule {
  int32_t left;
  int32_t right;
  int32_t merged;
};

class BytePairs {
 public:
  // The memory of Merge. A caller passes the same one for many words, so that
  // few words allocate.
  class Scratch {
   private:
    friend class BytePairs;
    struct Node {
      int32_t token;
      uint32_t rank;  // of the pair of this node and the next
      int32_t previous;
      int32_t next;
    };
    std::vector<Node> nodes_;
    // Pairs that had a rule when they were added: the rank in the upper half,
    // the index of the left node in the lower half. A min-heap.
    std::vector<uint64_t> heap_;
  };

  // If two rules have the same pair, the latter counts. REQUIRES: fewer than
  // 2^32 - 1 rules.
  explicit BytePairs(std::span<const PairRule> rules);

  // Appends the tokens that the word is merged to. Cost: O(n log n).
  // REQUIRES: word.size() < 2^31.
  void Merge(std::span<const int32_t> word, Scratch* scratch,
             std::vector<int32_t>* tokens) const;

 private:
  // Returns the rank of the rule of the pair, or kNoRule.
  uint32_t RankOf(int32_t left, int32_t right) const;
  // Fills the nodes and the heap.
  void Start(std::span<const int32_t> word, Scratch* scratch) const;
  // Looks up the pair that begins at the node, and adds it to the heap.
  void AddPair(int32_t left, Scratch* scratch) const;

  absl::flat_hash_map<uint64_t, uint32_t> ranks_;  // by pair
  std::vector<int32_t> merged_;                    // by rank
};

}  // namespace blockmgr

#endif  // ENGINE_TOKENIZER_BYTE_PAIRS_H_
