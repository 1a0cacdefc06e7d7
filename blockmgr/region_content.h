// RegionContent: the tokens and compressions that a cached region stands for.
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

// A list of parts, from the last part to the first. A sequence that starts from
// a cached region and is compressed again adds a part. Regions with the same
// beginning share its parts, so together they take the memory of the longest.
//
//   |      before      | tokens, media, history |
//   0                  begin                    end()
//
// Immutable. Threads may share it.
struct RegionContent {
  RegionContent() = default;
  RegionContent(const RegionContent&) = delete;
  RegionContent& operator=(const RegionContent&) = delete;
  ~RegionContent();  // frees a long list without recursion

  // The parts before this one. Null if this is the first part.
  std::shared_ptr<const RegionContent> before;
  int32_t begin = 0;            // the end of `before`
  std::vector<int32_t> tokens;  // [begin, end())
  std::string media;            // encoded, of [begin, end())
  size_t history_begin = 0;     // bytes of history that come before
  std::string history;          // bytes from history_begin on

  // Returns the content of `tokens`, which `chain` names. Shares `before` if it
  // is the beginning of these tokens and of the history. `before` may be null.
  static std::shared_ptr<const RegionContent> Make(
      std::shared_ptr<const RegionContent> before,
      std::span<const int32_t> tokens, absl::string_view history,
      const BlockChain& chain);

  int32_t end() const { return begin + static_cast<int32_t>(tokens.size()); }
  size_t history_size() const { return history_begin + history.size(); }
  // Returns whether `all_tokens`, which `chain` names, and the history, unless
  // it is null, begin with this content. O(tokens).
  bool Begins(std::span<const int32_t> all_tokens,
              const absl::string_view* whole_history,
              const BlockChain& chain) const;
  std::string WholeHistory() const;
  // Returns the bytes of this part, with this object.
  int64_t metadata_bytes() const {
    return static_cast<int64_t>(sizeof(RegionContent)) + HeapBytes(tokens) +
           HeapBytes(history) + HeapBytes(media);
  }
  // Returns the bytes of `last` and of all parts before it. Leaves out parts
  // that are in `counted`, and adds the other parts to `counted`. `last` may be
  // null.
  static int64_t CountBytes(const RegionContent* last,
                            absl::flat_hash_set<const RegionContent*>* counted);
};

}  // namespace blockmgr

#endif  // BLOCKMGR_REGION_CONTENT_H_
