// The scheduler of the emulator, and barriers.
#include "tests/kernels/simt/simt_emulator.h"

#include <algorithm>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>

#include "tests/kernels/simt/simt_emulator_block.h"

namespace blockmgr::simt::emulator {
namespace {

thread_local BlockRun* current_block = nullptr;

// Room for a kernel's frames, unoptimised and under sanitizers too.
constexpr size_t kStackBytes = 256 << 10;
constexpr uint64_t kCanary = 0x5AFEC0DE5AFEC0DEu;

// Lends one stack to fibers one after another.
class PooledStack {
 public:
  explicit PooledStack(char* bytes) : bytes_(bytes) {}
  // The names are Boost's.
  boost::context::stack_context allocate() {
    boost::context::stack_context stack;
    stack.size = kStackBytes;
    stack.sp = bytes_ + kStackBytes;
    return stack;
  }
  void deallocate(boost::context::stack_context&) noexcept {}

 private:
  char* bytes_;
};

std::string At(const Grid& block) {
  return absl::StrCat("block (", block.x, ",", block.y, ",", block.z, ")");
}

// Not std::shuffle: the same order on every platform.
template <typename T>
void Shuffle(std::mt19937_64& rng, T* begin, size_t count) {
  for (size_t i = count; i > 1; --i) std::swap(begin[i - 1], begin[rng() % i]);
}

}  // namespace

std::string Name(const char* what, Site site) {
  const std::string path = site.file;
  return absl::StrCat(what, " at ", path.substr(path.rfind('/') + 1), ":",
                      site.line);
}

StackPool& StackPool::OfThisThread() {
  static thread_local StackPool pool;
  return pool;
}

char* StackPool::Get(uint32_t thread) {
  while (stacks_.size() <= thread) {
    stacks_.emplace_back(new char[kStackBytes]);
  }
  return stacks_[thread].get();
}

BlockRun& BlockRun::Current() { return *current_block; }

BlockRun::BlockRun(const LaunchShape& shape, const Schedule& schedule,
                   LaunchReport* report)
    : shape_(shape),
      schedule_(schedule),
      rng_(schedule.seed),
      report_(report),
      threads_(shape.threads),
      warps_(shape.threads / kWarpThreads),
      shadow_(shape.shared_bytes) {
  // 128-byte aligned, and nothing behind the end for a sanitizer to miss.
  shared_storage_.reset(new char[shape.shared_bytes + kSharedAlignment]);
  const auto address = reinterpret_cast<uintptr_t>(shared_storage_.get());
  shared_ = shared_storage_.get() +
            (kSharedAlignment - address % kSharedAlignment) % kSharedAlignment;
}

void BlockRun::Start(const std::function<void()>& body) {
  num_live_ = shape_.threads;
  barrier_ = {};
  ++block_epoch_;
  shadow_.BeginBlock(block_epoch_);
  std::memset(shared_, 0xFF, shape_.shared_bytes);
  for (Warp& warp : warps_) {
    warp = Warp{.epoch = warp.epoch + 1};
  }
  for (uint32_t i = 0; i < shape_.threads; ++i) {
    Thread& thread = threads_[i];
    thread.state = Thread::State::kReady;
    thread.place.thread = i;
    thread.place.block = block_;
    thread.place.num_blocks = shape_.grid;
    thread.place.num_threads = shape_.threads;
    thread.groups.assign(1, {});
    char* stack = StackPool::OfThisThread().Get(i);
    UnpoisonStack(stack, kStackBytes);
    std::memcpy(stack, &kCanary, sizeof(kCanary));
    new (&thread.fiber) boost::context::fiber(
        std::allocator_arg, PooledStack(stack),
        [this, &thread, &body](boost::context::fiber&& scheduler) {
          scheduler_ = std::move(scheduler);
          body();
          EndThread(&thread);
          return std::move(scheduler_);
        });
  }
}

void BlockRun::Yield() { scheduler_ = std::move(scheduler_).resume(); }

void BlockRun::Fail(const std::string& what, Site site) {
  if (report_->error.empty()) {
    report_->error =
        absl::StrCat(Name(what.c_str(), site), ", ", At(block_), " thread ",
                     current_ == nullptr ? 0u : current_->place.thread);
  }
  // Nobody resumes a launch that failed. The fiber is left as it is: kernels
  // own nothing that would have to be destroyed.
  while (true) Yield();
}

void BlockRun::EndThread(Thread* thread) {
  Warp& warp = warps_[thread->place.thread / kWarpThreads];
  thread->state = Thread::State::kDone;
  ++warp.num_done;
  --num_live_;
  if (warp.num_arrived > 0) {
    Fail(absl::StrCat("a lane ended while others wait in ",
                      Name(warp.what, warp.site)),
         warp.site);
  }
  if (num_live_ > 0 && barrier_.num_arrived == num_live_) ReleaseBarrier();
}

void BlockRun::ReleaseBarrier() {
  barrier_.result = barrier_.any;
  barrier_.num_arrived = 0;
  barrier_.any = false;
  ++block_epoch_;
  for (Warp& warp : warps_) ++warp.epoch;
  for (Thread& thread : threads_) {
    if (thread.state == Thread::State::kAtBarrier) {
      thread.state = Thread::State::kReady;
    }
  }
}

bool BlockRun::Barrier(const char* what, bool value, Site site) {
  if (barrier_.num_arrived > 0 && !SamePlace(barrier_.site, site)) {
    Fail(absl::StrCat("divergent barrier: others wait in ",
                      Name(barrier_.what, barrier_.site), ", this is ",
                      Name(what, site)),
         site);
  }
  barrier_.what = what;
  barrier_.site = site;
  barrier_.any = barrier_.any || value;
  current_->state = Thread::State::kAtBarrier;
  current_->what = what;
  current_->site = site;
  if (++barrier_.num_arrived == num_live_) ReleaseBarrier();
  if (current_->state == Thread::State::kAtBarrier) Yield();
  return barrier_.result;
}

void BlockRun::Collective(const char* what, const void* input, size_t bytes,
                          void* output, size_t output_bytes,
                          void (*compute)(BlockRun&, Warp&), Site site) {
  Warp& warp = warps_[current_->place.thread / kWarpThreads];
  const uint32_t lane = current_->place.thread % kWarpThreads;
  if (warp.num_done > 0) {
    Fail(absl::StrCat("a lane of the warp has ended before ", what), site);
  }
  if (warp.num_arrived > 0 &&
      (warp.what != what || !SamePlace(warp.site, site))) {
    Fail(absl::StrCat("divergent collective: others wait in ",
                      Name(warp.what, warp.site), ", this is ",
                      Name(what, site)),
         site);
  }
  warp.what = what;
  warp.site = site;
  std::memcpy(warp.inputs[lane].data(), input, bytes);
  if (++warp.num_arrived == kWarpThreads) {
    compute(*this, warp);
    warp.num_arrived = 0;
    Thread* threads = &threads_[current_->place.thread - lane];
    for (uint32_t i = 0; i < kWarpThreads; ++i) {
      threads[i].state = Thread::State::kReady;
    }
  } else {
    current_->state = Thread::State::kAtCollective;
    current_->what = what;
    current_->site = site;
    Yield();
  }
  std::memcpy(output, warp.outputs[lane].data(), output_bytes);
}

bool BlockRun::RunLanes(uint32_t warp) {
  std::array<uint8_t, kWarpThreads> order;
  for (uint32_t i = 0; i < kWarpThreads; ++i) {
    order[i] = static_cast<uint8_t>(schedule_.order == Schedule::Order::kReverse
                                        ? kWarpThreads - 1 - i
                                        : i);
  }
  if (schedule_.order == Schedule::Order::kRandom) {
    Shuffle(rng_, order.data(), order.size());
  }
  bool any = false;
  for (const uint8_t lane : order) {
    Thread& thread = threads_[warp * kWarpThreads + lane];
    if (thread.state != Thread::State::kReady) continue;
    any = true;
    current_ = &thread;
    thread.fiber = std::move(thread.fiber).resume();
    if (!report_->ok()) return false;
  }
  return any;
}

void BlockRun::FailDeadlock() {
  const Thread* first = nullptr;
  for (const Thread& thread : threads_) {
    if (thread.state == Thread::State::kDone) continue;
    if (first == nullptr) first = &thread;
    if (SamePlace(first->site, thread.site)) continue;
    report_->error = absl::StrCat(
        "deadlock: thread ", first->place.thread, " waits in ",
        Name(first->what, first->site), ", thread ", thread.place.thread,
        " in ", Name(thread.what, thread.site), ", ", At(block_));
    return;
  }
  report_->error = absl::StrCat("deadlock: thread ", first->place.thread,
                                " waits in ", Name(first->what, first->site),
                                ", which not all lanes reach, ", At(block_));
}

void BlockRun::Run(const Grid& block, const std::function<void()>& body) {
  block_ = block;
  current_block = this;
  Start(body);
  const bool random = schedule_.order == Schedule::Order::kRandom;
  std::vector<uint32_t> order(warps_.size());
  for (uint32_t i = 0; i < order.size(); ++i) {
    order[i] = schedule_.order == Schedule::Order::kReverse
                   ? static_cast<uint32_t>(order.size()) - 1 - i
                   : i;
  }
  while (num_live_ > 0 && report_->ok()) {
    if (random) Shuffle(rng_, order.data(), order.size());
    bool ran = false;
    for (const uint32_t warp : order) {
      // Short runs find bugs between neighbours, long ones a warp that is far
      // behind or ahead.
      int64_t num_passes = random ? int64_t{1} << (rng_() % 10) : INT64_MAX;
      while (num_passes-- > 0 && RunLanes(warp)) ran = true;
      if (ran || !report_->ok()) break;
    }
    if (!ran && report_->ok() && num_live_ > 0) FailDeadlock();
  }
  current_ = nullptr;
  current_block = nullptr;
  CheckStacks();
}

void BlockRun::CheckStacks() {
  StackPool& stacks = StackPool::OfThisThread();
  for (uint32_t i = 0; i < shape_.threads; ++i) {
    uint64_t canary = 0;
    std::memcpy(&canary, stacks.Get(i), sizeof(canary));
    if (canary == kCanary) continue;
    report_->error =
        absl::StrCat("stack overflow of thread ", i, ", more than ",
                     kStackBytes, " bytes, ", At(block_));
  }
}

LaunchReport RunGrid(const Schedule& schedule, const LaunchShape& shape,
                     const std::function<void()>& thread_body) {
  constexpr uint32_t kMaxThreads = 1024;
  constexpr size_t kMaxSharedBytes = 227 << 10;  // sm_90 and sm_100
  constexpr uint32_t kMaxBlocksYz = 65535;       // of every GPU
  LaunchReport report;
  if (shape.threads == 0 || shape.threads % kWarpThreads != 0 ||
      shape.threads > kMaxThreads) {
    report.error = absl::StrCat("threads: expected a multiple of 32 up to ",
                                kMaxThreads, ", got ", shape.threads);
    return report;
  }
  if (shape.shared_bytes > kMaxSharedBytes) {
    report.error = absl::StrCat("shared_bytes: expected at most ",
                                kMaxSharedBytes, ", got ", shape.shared_bytes);
    return report;
  }
  if (shape.grid.y > kMaxBlocksYz || shape.grid.z > kMaxBlocksYz) {
    report.error =
        absl::StrCat("grid: expected y and z of at most ", kMaxBlocksYz,
                     ", got ", shape.grid.y, " and ", shape.grid.z);
    return report;
  }
  const uint64_t per_layer = uint64_t{shape.grid.x} * shape.grid.y;
  std::vector<uint64_t> blocks(per_layer * shape.grid.z);
  for (uint64_t i = 0; i < blocks.size(); ++i) blocks[i] = i;
  if (schedule.order == Schedule::Order::kReverse) {
    std::reverse(blocks.begin(), blocks.end());
  } else if (schedule.order == Schedule::Order::kRandom) {
    std::mt19937_64 rng(~schedule.seed);
    Shuffle(rng, blocks.data(), blocks.size());
  }
  BlockRun run(shape, schedule, &report);
  for (const uint64_t block : blocks) {
    run.Run({.x = static_cast<uint32_t>(block % shape.grid.x),
             .y = static_cast<uint32_t>(block % per_layer / shape.grid.x),
             .z = static_cast<uint32_t>(block / per_layer)},
            thread_body);
    if (!report.ok()) break;
  }
  return report;
}

const ThreadPlace& Place() { return BlockRun::Current().current().place; }

void Fail(const std::string& what, Site site) {
  BlockRun::Current().Fail(what, site);
}

bool BlockBarrier(const char* what, bool value, Site site) {
  return BlockRun::Current().Barrier(what, value, site);
}

}  // namespace blockmgr::simt::emulator
