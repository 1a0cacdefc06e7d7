#include "engine/tokenizer/byte_pairs.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <vector>

#include "blockmgr/base/check.h"

namespace blockmgr {
namespace {

constexpr uint32_t kNoRule = std::numeric_limits<uint32_t>::max();
constexpr int32_t kNoNode = -1;

uint64_t PairKey(int32_t left, int32_t right) {
  return (uint64_t{static_cast<uint32_t>(left)} << 32) |
         static_cast<uint32_t>(right);
}

uint64_t HeapKey(uint32_t rank, int32_t node) {
  return (uint64_t{rank} << 32) | static_cast<uint32_t>(node);
}

}  // namespace

BytePairs::BytePairs(std::span<const PairRule> rules) {
  BM_CHECK(rules.size() < kNoRule);
  ranks_.reserve(rules.size());
  merged_.reserve(rules.size());
  for (const PairRule& rule : rules) {
    ranks_.insert_or_assign(PairKey(rule.left, rule.right),
                            static_cast<uint32_t>(merged_.size()));
    merged_.push_back(rule.merged);
  }
}

uint32_t BytePairs::RankOf(int32_t left, int32_t right) const {
  const auto found = ranks_.find(PairKey(left, right));
  return found == ranks_.end() ? kNoRule : found->second;
}

void BytePairs::Start(std::span<const int32_t> word, Scratch* scratch) const {
  BM_CHECK(word.size() < std::numeric_limits<int32_t>::max());
  scratch->nodes_.clear();
  scratch->heap_.clear();
  const auto size = static_cast<int32_t>(word.size());
  for (int32_t i = 0; i < size; ++i) {
    uint32_t rank = kNoRule;
    if (i + 1 < size) {
      rank = RankOf(word[static_cast<size_t>(i)],
                    word[static_cast<size_t>(i) + 1]);
    }
    scratch->nodes_.push_back({.token = word[static_cast<size_t>(i)],
                               .rank = rank,
                               .previous = i - 1,
                               .next = i + 1 < size ? i + 1 : kNoNode});
    if (rank != kNoRule) scratch->heap_.push_back(HeapKey(rank, i));
  }
  std::make_heap(scratch->heap_.begin(), scratch->heap_.end(),
                 std::greater<>());
}

void BytePairs::AddPair(int32_t left, Scratch* scratch) const {
  std::vector<Scratch::Node>& nodes = scratch->nodes_;
  Scratch::Node& node = nodes[static_cast<size_t>(left)];
  node.rank =
      node.next == kNoNode
          ? kNoRule
          : RankOf(node.token, nodes[static_cast<size_t>(node.next)].token);
  if (node.rank == kNoRule) return;
  scratch->heap_.push_back(HeapKey(node.rank, left));
  std::push_heap(scratch->heap_.begin(), scratch->heap_.end(),
                 std::greater<>());
}

void BytePairs::Merge(std::span<const int32_t> word, Scratch* scratch,
                      std::vector<int32_t>* tokens) const {
  Start(word, scratch);
  std::vector<Scratch::Node>& nodes = scratch->nodes_;
  std::vector<uint64_t>& heap = scratch->heap_;
  while (!heap.empty()) {
    const uint64_t lowest = heap.front();
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    heap.pop_back();
    const auto rank = static_cast<uint32_t>(lowest >> 32);
    const auto left = static_cast<int32_t>(lowest & 0xFFFFFFFF);
    Scratch::Node& node = nodes[static_cast<size_t>(left)];
    // A pair has left the word if its rank is no longer the node's: ranks and
    // pairs correspond one to one.
    if (node.rank != rank) continue;
    Scratch::Node& absorbed = nodes[static_cast<size_t>(node.next)];
    absorbed.rank = kNoRule;
    node.token = merged_[rank];
    node.next = absorbed.next;
    if (node.next != kNoNode) {
      nodes[static_cast<size_t>(node.next)].previous = left;
    }
    AddPair(left, scratch);
    if (node.previous != kNoNode) AddPair(node.previous, scratch);
  }
  if (nodes.empty()) return;
  for (int32_t i = 0; i != kNoNode; i = nodes[static_cast<size_t>(i)].next) {
    tokens->push_back(nodes[static_cast<size_t>(i)].token);
  }
}

}  // namespace blockmgr
