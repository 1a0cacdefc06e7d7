#include "kernels/cpu/thread_pool.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include <absl/strings/str_cat.h>

#include "blockmgr/base/check.h"

namespace blockmgr {
namespace {

constexpr uint64_t kInside = 1;
constexpr uint64_t kInsideMask = 0xffff;
constexpr uint64_t kOpen = 1 << 16;
constexpr uint64_t kStop = 1 << 17;
constexpr uint64_t kLoop = uint64_t{1} << 32;

// Looks at the state before a thread gives way to others: some 50 us, more than
// what lies between two matrix products.
constexpr int32_t kSpins = 2000;

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

int32_t ThreadPool::CountHardwareThreads(unsigned num_processors) {
  return static_cast<int32_t>(
      std::clamp<unsigned>(num_processors, 1, kMaxThreads));
}

// Delegates, so that an exception ends the helpers that there are.
ThreadPool::ThreadPool(int32_t num_threads) : ThreadPool() {
  BM_CHECK(num_threads >= 1 && num_threads <= kMaxThreads);
  try {
    for (int32_t i = 1; i < num_threads; ++i) {
      helpers_.emplace_back([this] { Help(); });
    }
  } catch (const std::system_error& error) {
    throw std::system_error(
        error.code(),
        absl::StrCat("threads: expected at most ", this->num_threads(),
                     ", as the system refuses more, got ", num_threads));
  }
}

ThreadPool::~ThreadPool() {
  state_.fetch_or(kStop);
  state_.notify_all();
  for (std::thread& helper : helpers_) helper.join();
}

void ThreadPool::ParallelFor(int32_t num_pieces,
                             absl::FunctionRef<void(int32_t)> piece) {
  if (helpers_.empty() || num_pieces <= 1) {
    for (int32_t i = 0; i < num_pieces; ++i) piece(i);
    return;
  }
  piece_ = &piece;
  num_pieces_ = num_pieces;
  next_piece_.store(0, std::memory_order_relaxed);
  state_.fetch_add(kLoop | kOpen);
  if (num_sleeping_.load() > 0) state_.notify_all();
  RunPieces();
  // A helper that has not entered by now is not needed. Those inside finish.
  state_.fetch_and(~kOpen);
  for (int32_t spin = 0; (state_.load() & kInsideMask) != 0; ++spin) {
    spin < kSpins ? Pause() : std::this_thread::yield();
  }
  if (!has_thrown_.exchange(false)) return;
  std::rethrow_exception(std::exchange(thrown_, nullptr));
}

void ThreadPool::RunPieces() {
  try {
    for (;;) {
      const int32_t i = next_piece_.fetch_add(1, std::memory_order_relaxed);
      if (i >= num_pieces_) return;
      (*piece_)(i);
    }
  } catch (...) {
    next_piece_.store(num_pieces_, std::memory_order_relaxed);
    if (!has_thrown_.exchange(true)) thrown_ = std::current_exception();
  }
}

void ThreadPool::Help() {
  uint64_t state = 0;
  while ((state & kStop) == 0) {
    if ((state & kOpen) == 0) {
      state = AwaitChange(state);
      continue;
    }
    if (!state_.compare_exchange_weak(state, state + kInside)) continue;
    RunPieces();
    // The loop has no piece left, so this helper waits for the next one even
    // if the loop is still open.
    const uint64_t loop = state / kLoop;
    state = state_.fetch_sub(kInside) - kInside;
    while (state / kLoop == loop && (state & kOpen) != 0) {
      state = AwaitChange(state);
    }
  }
}

uint64_t ThreadPool::AwaitChange(uint64_t seen) {
  for (int32_t spin = 0; spin < kSpins; ++spin) {
    const uint64_t state = state_.load();
    if (state != seen) return state;
    Pause();
  }
  num_sleeping_.fetch_add(1);
  state_.wait(seen);
  num_sleeping_.fetch_sub(1);
  return state_.load();
}

}  // namespace blockmgr
