// Who touched which shared memory last: finds accesses that no barrier orders.
#ifndef TESTS_KERNELS_SIMT_SIMT_SHADOW_H_
#define TESTS_KERNELS_SIMT_SIMT_SHADOW_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace blockmgr::simt::emulator {

// SharedShadow keeps, for every 2 bytes of a block's shared memory, the last
// writers and the readers since.
//
// Time is counted in barriers: every block barrier starts a new block epoch,
// every barrier of a warp (block barriers included) a new epoch of the warp.
// Two accesses of different warps are ordered if a block barrier is between
// them, two of different lanes of a warp if a warp barrier is, those of one
// lane always. Of accesses that are not ordered, either none may write or all
// must be atomic.
//
// Epochs go on counting from block to block of a launch, so a new block costs
// nothing: what was written before its first epoch counts as never written.
class SharedShadow {
 public:
  // Who accesses, and when.
  struct Access {
    uint32_t warp = 0;
    uint32_t lane = 0;
    uint32_t warp_epoch = 0;
    uint32_t block_epoch = 0;
    int line = 0;  // in the source
    // Executed for all lanes at once (LoadMatrix): not ordered after what the
    // same lane did without a barrier.
    bool whole_warp = false;
  };

  explicit SharedShadow(size_t bytes);

  void BeginBlock(uint32_t block_epoch) { first_epoch_ = block_epoch; }

  // Each checks one access to [offset, offset + bytes) and records it. The
  // result is empty, or what is wrong.
  std::string Read(size_t offset, size_t bytes, const Access& access);
  std::string Write(size_t offset, size_t bytes, const Access& access);
  std::string Atomic(size_t offset, size_t bytes, const Access& access);
  // An asynchronous copy is issued: a write, and until it is delivered nobody
  // may touch the bytes.
  std::string Issue(size_t offset, size_t bytes, const Access& access);
  // It arrives, when its lane waits for it: a write of that moment.
  void Deliver(size_t offset, size_t bytes, const Access& access);

 private:
  // Accesses of one kind that later ones must be ordered after: all those of
  // the latest block epoch with any.
  struct Record {
    uint32_t block_epoch = 0;  // 0: none
    uint32_t warps = 0;        // mask of warps
    // Of the only warp, while it is one: the lane (kLanes: several) and when.
    uint32_t lane = 0;
    uint32_t warp_epoch = 0;
    int line = 0;
  };
  struct Granule {
    Record write;
    Record read;           // since the last write
    Record atomics;        // since the last write; unordered among themselves
    bool pending = false;  // a copy is under way
  };
  static constexpr size_t kGranuleBytes = 2;
  static constexpr uint32_t kLanes = 32;

  static bool Ordered(const Record& record, const Access& access);
  static void Add(const Access& access, Record* record);
  // What stands against a write, or "".
  std::string CheckWrite(const Granule& granule, const Access& access) const;
  std::string WriteAs(size_t offset, size_t bytes, const Access& access,
                      bool pending);

  std::vector<Granule> granules_;
  uint32_t first_epoch_ = 1;
};

}  // namespace blockmgr::simt::emulator

#endif  // TESTS_KERNELS_SIMT_SIMT_SHADOW_H_
