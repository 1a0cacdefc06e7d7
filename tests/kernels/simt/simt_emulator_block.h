// One thread block on the emulator: its fibers, warps, barriers and shared
// memory. For the emulator's own sources.
#ifndef TESTS_KERNELS_SIMT_SIMT_EMULATOR_BLOCK_H_
#define TESTS_KERNELS_SIMT_SIMT_EMULATOR_BLOCK_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <boost/context/fiber.hpp>

#include "tests/kernels/simt/simt_emulator.h"
#include "tests/kernels/simt/simt_shadow.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#include <sanitizer/asan_interface.h>
#endif
#endif

namespace blockmgr::simt::emulator {

// "what at file:line".
std::string Name(const char* what, Site site);

inline bool SamePlace(Site a, Site b) {
  return a.line == b.line &&
         (a.file == b.file || std::strcmp(a.file, b.file) == 0);
}

// A fiber that was left in the middle has not unpoisoned its frames.
inline void UnpoisonStack([[maybe_unused]] char* stack,
                          [[maybe_unused]] size_t bytes) {
#ifdef ASAN_UNPOISON_MEMORY_REGION
  ASAN_UNPOISON_MEMORY_REGION(stack, bytes);
#endif
}

// One asynchronous copy of 16 bytes, done when it is waited for.
struct Copy {
  char* shared;
  const void* global;
  bool valid;
  Site site;
};

struct Thread {
  enum class State : uint8_t { kReady, kAtBarrier, kAtCollective, kDone };

  Thread() {}
  // The fiber is not destroyed: one that was left in the middle of a launch
  // that failed would be unwound.
  ~Thread() {}
  Thread(const Thread&) = delete;
  Thread& operator=(const Thread&) = delete;

  union {
    boost::context::fiber fiber;
  };
  State state = State::kDone;
  ThreadPlace place = {};
  const char* what = "";  // where it waits
  Site site = {};
  // Of copies: those committed, oldest first, then those not committed yet.
  std::vector<std::vector<Copy>> groups;
};

struct Warp {
  uint32_t epoch = 1;
  uint32_t num_arrived = 0;  // at the present collective
  uint32_t num_done = 0;     // lanes that have ended
  const char* what = "";
  Site site = {};
  // What lanes deposit at a collective, and what they take away.
  alignas(16) std::array<std::array<char, 64>, kWarpThreads> inputs = {};
  alignas(16) std::array<std::array<char, 64>, kWarpThreads> outputs = {};

  template <typename T>
  const T& Input(uint32_t lane) const {
    static_assert(sizeof(T) <= 64);
    return *reinterpret_cast<const T*>(inputs[lane].data());
  }
  template <typename T>
  T& Output(uint32_t lane) {
    static_assert(sizeof(T) <= 64);
    return *reinterpret_cast<T*>(outputs[lane].data());
  }
};

// Stacks of fibers, kept from launch to launch.
class StackPool {
 public:
  static StackPool& OfThisThread();
  char* Get(uint32_t thread);

 private:
  std::vector<std::unique_ptr<char[]>> stacks_;
};

// BlockRun runs the blocks of one launch, one after another.
class BlockRun {
 public:
  // `report` gets the first breach of a rule.
  BlockRun(const LaunchShape& shape, const Schedule& schedule,
           LaunchReport* report);

  void Run(const Grid& block, const std::function<void()>& body);

  // From inside a fiber.
  static BlockRun& Current();
  Thread& current() { return *current_; }
  Warp& current_warp() { return warps_[current_->place.thread / kWarpThreads]; }
  char* shared() { return shared_; }
  size_t shared_bytes() const { return shape_.shared_bytes; }
  SharedShadow& shadow() { return shadow_; }
  uint32_t block_epoch() const { return block_epoch_; }
  LaunchReport& report() { return *report_; }

  [[noreturn]] void Fail(const std::string& what, Site site);
  bool Barrier(const char* what, bool value, Site site);
  // Deposits `input`, waits for all lanes, and takes the output away. `compute`
  // is called once, by the lane that arrives last.
  void Collective(const char* what, const void* input, size_t bytes,
                  void* output, size_t output_bytes,
                  void (*compute)(BlockRun&, Warp&), Site site);

 private:
  struct BlockBarrierState {
    uint32_t num_arrived = 0;
    bool any = false;
    bool result = false;  // of the last one completed
    const char* what = "";
    Site site = {};
  };
  static constexpr size_t kSharedAlignment = 128;

  void Start(const std::function<void()>& body);
  void Yield();
  void EndThread(Thread* thread);
  void ReleaseBarrier();
  // Resumes each ready lane once. Returns whether there was one.
  bool RunLanes(uint32_t warp);
  void FailDeadlock();
  void CheckStacks();

  const LaunchShape shape_;
  const Schedule schedule_;
  std::mt19937_64 rng_;
  LaunchReport* report_;
  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  std::unique_ptr<char[]> shared_storage_;
  char* shared_ = nullptr;  // [shape_.shared_bytes]
  SharedShadow shadow_;
  BlockBarrierState barrier_;
  uint32_t block_epoch_ = 0;
  uint32_t num_live_ = 0;
  Grid block_;
  Thread* current_ = nullptr;
  boost::context::fiber scheduler_;
};

}  // namespace blockmgr::simt::emulator

#endif  // TESTS_KERNELS_SIMT_SIMT_EMULATOR_BLOCK_H_
