// Who used each word of a block's shared memory since the last barrier. A word
// is 4 bytes: no kernel has smaller values there that lanes share words of.
#ifndef TESTS_KERNELS_PTX_PTX_HAZARDS_H_
#define TESTS_KERNELS_PTX_PTX_HAZARDS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace blockmgr::ptx {

enum class Access : uint8_t { kRead, kWrite, kAtomic };

// Two accesses to one word conflict where one of them writes, not both are
// atomic, they are of different lanes, and no barrier is between them: one of
// the block, or of the warp where both lanes are of one.
class Hazards {
 public:
  // For a block of its own.
  void Begin(std::size_t shared_bytes);
  // False where there is a conflict.
  bool Note(std::size_t offset, std::size_t bytes, uint32_t warp, uint32_t lane,
            Access access);
  void PassBarrier();
  void PassWarpBarrier(uint32_t warp) { ++warp_epochs_[warp]; }
  const std::string& last_conflict() const { return last_conflict_; }

 private:
  static constexpr uint32_t kNobody = 0;
  static constexpr uint32_t kMany = ~0u;
  static constexpr uint32_t kMaxWarps = 32;

  // Who used a word last, by a kind of access. Threads count from 1.
  struct Use {
    uint32_t thread = kNobody;  // or kMany: of warp `warp`, or of kMany warps
    uint32_t warp = 0;
    uint32_t epoch = 0;  // of the warp
  };
  struct Word {
    Use written;
    Use read;
    uint32_t barrier = 0;  // before these
    bool atomically = false;
  };

  bool NoteWord(Word& word, uint32_t warp, uint32_t thread, Access access);
  // Whether somebody else's use is not behind a barrier.
  bool Conflicts(const Use& use, uint32_t warp, uint32_t thread) const {
    if (use.thread == kNobody || use.thread == thread) return false;
    return use.warp != warp || use.epoch == warp_epochs_[warp];
  }

  std::vector<Word> words_;
  std::array<uint32_t, kMaxWarps> warp_epochs_ = {};
  uint32_t barrier_ = 1;
  std::string last_conflict_;
};

}  // namespace blockmgr::ptx

#endif  // TESTS_KERNELS_PTX_PTX_HAZARDS_H_
