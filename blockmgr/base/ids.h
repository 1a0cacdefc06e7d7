// Ids, as types that do not mix.
//
//   page           page_size tokens of K and V of one KV head of one layer
//   block          one page for every (layer, head) of one layer group: the
//                  same page_size tokens through all layers of the group (of
//                  the model, if it has one group). The pool hands out blocks.
//   slot           the place of one token in a page:
//                  PageId * page_size + offset (SlotIndex)
//   host block     room for one block in the host tier, which holds the KV of
//                  preempted sequences
//   sequence slot  the row of a sequence in the tables of manager and engine.
//                  The row is reused after the sequence is released.
#ifndef BLOCKMGR_BASE_IDS_H_
#define BLOCKMGR_BASE_IDS_H_

#include <cstdint>
#include <type_traits>

namespace blockmgr {

enum class BlockId : int32_t {};
enum class PageId : int32_t {};
enum class HostBlockId : int32_t {};
enum class SequenceSlot : int32_t {};
enum class RequestId : uint64_t {};
enum class StepId : uint64_t {};
enum class RegionId : uint64_t {};
enum class SwapId : uint64_t {};

// 64 bits, because PageId * page_size exceeds 2^31 in large pools.
using SlotIndex = int64_t;

// Block 0 is never handed out. A table entry of 0 points nowhere.
inline constexpr BlockId kNullBlock{0};
inline constexpr SequenceSlot kNoSequenceSlot{-1};
inline constexpr RegionId kNoRegion{0};
inline constexpr SwapId kNoSwap{0};

// Returns the number inside an id, for indexing and arithmetic.
template <typename Id>
requires std::is_enum_v<Id>
constexpr std::underlying_type_t<Id> Index(Id id) {
  return static_cast<std::underlying_type_t<Id>>(id);
}

}  // namespace blockmgr

#endif  // BLOCKMGR_BASE_IDS_H_
