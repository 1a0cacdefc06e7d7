// RegionContent: what a region in the prefix cache stands for.
#ifndef BLOCKMGR_REGION_CONTENT_H_
#define BLOCKMGR_REGION_CONTENT_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <absl/container/flat_hash_set.h>
#include <absl/strings/string_view.h>

#include "blockmgr/base/heap_bytes.h"
#include "blockmgr/block_hash.h"

namespace blockmgr {

// The tokens and compressions since the region that it goes on from. Immutable,
// and may be shared between threads;
// regions of one prompt, and of those that go on from it, share their
// beginnings, so that together they take the memory of the longest.
struct RegionContent {
  RegionContent() = default;
  RegionContent(const RegionContent&) = delete;
  RegionContent& operator=(const RegionContent&) = delete;
  ~RegionContent();  // frees a long list without recursion

  std::shared_ptr<const RegionContent> before;  // null: the beginning
  int32_t begin = 0;                            // where that one ends
  std::vector<int32_t> tokens;                  // [begin, end())
  std::string media;                            // of those
  size_t history_begin = 0;                     // bytes that `before` has
  std::string history;                          // those after them

  // Of all of `tokens`, which `chain` names; `before` is shared if it is their
  // beginning, and may be null.
  static std::shared_ptr<const RegionContent> Make(
      std::shared_ptr<const RegionContent> before,
      std::span<const int32_t> tokens, absl::string_view history,
      const BlockChain& chain);

  int32_t end() const { return begin + static_cast<int32_t>(tokens.size()); }
  size_t history_size() const { return history_begin + history.size(); }
  // Whether `all_tokens`, which `chain` names, begin with its own, and the
  // history (unless null) with its own. O(tokens).
  bool Begins(std::span<const int32_t> all_tokens,
              const absl::string_view* whole_history,
              const BlockChain& chain) const;
  std::string WholeHistory() const;
  // Bytes of memory, this object included, those before it not.
  int64_t metadata_bytes() const {
    return static_cast<int64_t>(sizeof(RegionContent)) + HeapBytes(tokens) +
           HeapBytes(history) + HeapBytes(media);
  }
  // Of `last` (may be null) and those before it, but for those in `counted`,
  // where it adds them.
  static int64_t CountBytes(const RegionContent* last,
                            absl::flat_hash_set<const RegionContent*>* counted);
};

}  // namespace blockmgr

#endif  // BLOCKMGR_REGION_CONTENT_H_
