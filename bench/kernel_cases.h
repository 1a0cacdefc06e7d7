// A problem on a device, and every kernel that can be launched on it.
#ifndef BENCH_KERNEL_CASES_H_
#define BENCH_KERNEL_CASES_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include "bench/kernel_device.h"
#include "bench/kernel_problem.h"
#include "bench/kernel_report.h"
#include "kernels/cuda/attention/decode_attention.h"
#include "kernels/cuda/attention_lists.h"
#include "kernels/cuda/rows/row_mover.h"
#include "kernels/cuda/scores/entry_lists.h"
#include "kernels/cuda/scores/key_scores.h"
#include "kernels/cuda/scores/pooled_scores.h"
#include "kernels/cuda/scores/window_scores.h"
#include "kernels/cuda/selection/entry_index.h"
#include "kernels/cuda/selection/select.h"

namespace blockmgr {

// One kernel, or the few that belong together, ready to be launched.
struct KernelCase {
  std::string kernel;
  KernelCeiling ceiling = KernelCeiling::kRead;
  double useful_bytes = 0;
  double flops = 0;
  // On copy `copy` of the pool.
  std::function<void(int32_t copy)> launch = nullptr;
  // Whether it waits for the device in between.
  bool waits = false;
  // ResourceExhausted where the device has no room for the case, which has
  // nothing but its name then.
  absl::Status status = absl::OkStatus();
};

struct DeviceProblemOptions {
  // As many copies of the pool as take so many bytes; one to 16 of them.
  int64_t rotated_bytes = 0;
  // Columns of the output projection; those of Llama-3.1-8B.
  int32_t model_dim = 4096;
};

// DeviceProblem holds copies of a problem's pool, so that launches that take
// them in turn find nothing in the second-level cache, and the lists over it.
// The work space of a case is there while the case is visited. One family of
// cases has its work space at a time, which may be larger than the pools. Owns
// its memory of the device. Thread-compatible.
class DeviceProblem {
 public:
  using Visit = std::function<absl::Status(const KernelCase&)>;

  // The names of all cases, ceilings first.
  static std::vector<std::string> KernelNames();

  // The device is borrowed. ResourceExhausted where it has no room.
  static absl::StatusOr<std::unique_ptr<DeviceProblem>> Create(
      const KernelProblem& problem, const DeviceProblemOptions& options,
      KernelDevice* device);
  DeviceProblem(const DeviceProblem&) = delete;
  DeviceProblem& operator=(const DeviceProblem&) = delete;
  ~DeviceProblem();

  int32_t num_copies() const { return static_cast<int32_t>(pools_.size()); }
  // Visits the cases of these names, or with none all, in the order of
  // KernelNames(). A case may be launched any number of times during its visit.
  // The first error of the device or of a visit ends it all and is returned.
  absl::Status ForEachCase(std::span<const std::string> kernels,
                           const Visit& visit);
  // The most memory of the device that this has held.
  int64_t most_bytes() const { return most_bytes_; }
  // The output of the last decode, of the problem's type, [num_sequences,
  // q_heads, head_dim].
  absl::StatusOr<std::vector<uint16_t>> ReadDecodeOutput() const;
  // Returns the number of entries that each list kept in the last of the
  // evictions. REQUIRES: an eviction is visited.
  absl::StatusOr<std::vector<int32_t>> ReadKept() const;
  // The errors that kernels found (RowError); 0: none.
  absl::StatusOr<uint32_t> ReadErrorWord() const;

 private:
  // Cases that share what they need beside the problem.
  struct Family {
    std::vector<std::string> kernels;
    void (*add)(DeviceProblem& problem);
  };
  struct Memory {
    char* place = nullptr;
    int64_t bytes = 0;
  };
  static const std::vector<Family>& Families();

  DeviceProblem(const KernelProblem& problem,
                const DeviceProblemOptions& options, KernelDevice* device);

  DeviceRuntime& runtime() const { return device_.runtime(); }
  // Zeroed memory of the device; null, and a status, once something has failed.
  char* AllocateBytes(int64_t bytes);
  template <typename T>
  T* Allocate(int64_t count) {
    return reinterpret_cast<T*>(
        AllocateBytes(std::max<int64_t>(1, count) * int64_t{sizeof(T)}));
  }
  // [count], Element(seed, i) of kernel_problem.h.
  uint16_t* AllocateElements(int64_t count, uint64_t seed);
  template <typename T>
  void Upload(T* to, std::span<const T> values) const {
    runtime().Upload(reinterpret_cast<char*>(to), std::as_bytes(values));
  }
  template <typename T>
  T* Send(std::span<const T> values) {
    T* memory = Allocate<T>(std::ssize(values));
    if (memory != nullptr) Upload(memory, values);
    return memory;
  }
  // Copies the device's memory at `from` to `out`.
  template <typename T>
  absl::Status Read(const T* from, std::span<T> out) const {
    runtime().Download(std::as_writable_bytes(out),
                       reinterpret_cast<const char*>(from));
    return device_.status();
  }
  // Frees what was allocated last until so many allocations are left.
  void FreeDownTo(std::size_t num_allocations);
  void FillPools();
  // Lists with tails as kernels of attention read them, and their entries.
  void SendLists();
  void SendEntries();
  // Splits lists that begin at offsets[0 .. size - 2] and end at the next one.
  ListSplits SendSplits(std::span<const int64_t> offsets, int32_t split_entries,
                        int32_t min_splits = 0);
  void AddCeilings();
  // All of a launch but the pool.
  DecodeParams MakeDecode(int32_t chunk_tiles);
  // Writes logits if there is room for them.
  void AddDecode(const char* name, const DecodeParams& params);
  // h2o: logits, what is added up of them, and scores.
  void AddDecodeSums();
  void AddChunk();
  void AddAppend();
  void AddGather();
  void AddMoves();
  // Memory for kStagedBytes of rows, or for the longest list's.
  char* AllocateStaging(int64_t most_of_a_list);
  // Moves all rows by way of staging, whole lists at a time. ends: of the moves
  // of each list.
  void MoveStaged(const MoveRows& all, std::span<const int64_t> ends) const;
  void AddBlockCopies();
  void AddSwap();
  // Attention of the last queries, all but its pool.
  WindowParams MakeWindow(int32_t window);
  void Weigh(WindowParams window, int32_t copy) const;
  PoolParams MakePooling(const WindowParams& window) const;
  KeyScoreParams MakeKeyScores();
  void AddSnapKv();
  void AddTova();
  void AddExpected();
  void AddKeyScores();
  void AddValueNorms();
  // Scores of all entries, as skewed as those of attention are (exponentially
  // distributed): those that a kernel has left would depend on which ran.
  const float* SendScores();
  // Heads share in scopes of so many. What is not set is filled in.
  SelectProblem MakeSelection(SelectProblem select, int32_t scope_heads);
  void AddSelection(const char* name, SelectProblem problem,
                    int32_t scope_heads);
  void AddMovePlan();
  EntryIndexParams MakeIndex();
  void AddIndex();
  // The new regions are the caller's to set.
  SelectMoves MakeMovePlan(const EntryLists& entries, const uint32_t* survivors,
                           int64_t most_kept);
  // The part of an eviction that follows scores_, the host's work included.
  std::function<void(int32_t copy)> MakeSelectAndMove(
      const EntryLists& entries);
  // Everything that an eviction does, of the problem's sequences; or, which is
  // the same, of as many layers of one. `score` scores the index's entries.
  void AddEviction(const char* name, const EntryIndexParams& index,
                   const std::function<void(int32_t copy)>& score);
  void AddSnapKvEviction();
  void AddKeyDiffEviction();
  // The problem's lists, of the entries that the index writes.
  EntryLists IndexedEntries(const EntryIndexParams& index) const;
  PagedPool PoolOf(int32_t copy) const;
  // A row of K and one of V.
  double pair_bytes() const {
    return 2.0 * static_cast<double>(problem_.row_bytes());
  }
  int64_t num_lists() const {
    return static_cast<int64_t>(problem_.lengths.size());
  }
  int32_t tail_length(int64_t list) const {
    return problem_.tail_lengths[list / problem_.num_heads];
  }
  int32_t list_length(int64_t list) const {
    return problem_.lengths[list] + tail_length(list);
  }
  // The tiles of a decode step.
  int32_t num_tiles(int64_t list) const {
    return DecodeTiles(problem_.lengths[list], tail_length(list),
                       problem_.page_size);
  }

  // snapkv's default window, and what evictions keep.
  static constexpr int32_t kWindow = 32;
  // Rows that are staged together when they are moved in place: as much as
  // stays in the second-level cache of an H100 (50 MB).
  static constexpr int64_t kStagedBytes = int64_t{32} << 20;
  static constexpr double kKeepRatio = 0.2;
  // adakv's default, in multiples of 10^-9.
  static constexpr int64_t kAdaKvAlpha = 200'000'000;

  const KernelProblem problem_;
  const DeviceProblemOptions options_;
  KernelDevice& device_;
  const RowShape shape_;
  const double kv_bytes_;
  absl::Status status_;
  std::vector<Memory> memory_;
  int64_t num_bytes_ = 0;
  int64_t most_bytes_ = 0;
  int32_t num_blocks_ = 0;
  std::vector<char*> pools_;
  // Half a pool beside each, of elements too: zeros would cost less power.
  // Copies go there, and appended rows come from there.
  std::vector<char*> besides_;
  uint16_t* queries_ = nullptr;
  uint16_t* output_ = nullptr;
  uint32_t* error_ = nullptr;
  const int32_t* budgets_ = nullptr;  // of evictions
  AttentionLists lists_;
  EntryLists entries_;
  int32_t max_length_ = 0;    // tokens of a sequence
  int32_t longest_tail_ = 0;  // tokens
  // By sequence: the length of its longest list.
  std::vector<int32_t> sequence_lengths_;
  int32_t* lengths_ = nullptr;
  // Pages list after list: those of the region, then those of the tail.
  std::vector<int32_t> pages_;
  std::vector<int64_t> page_offsets_;        // [num_lists + 1]
  std::vector<int64_t> tail_block_offsets_;  // [num_sequences + 1]
  std::vector<int64_t> slots_;               // of all entries
  std::vector<int64_t> offsets_;
  float* scores_ = nullptr;        // [entries]
  std::vector<KernelCase> cases_;  // of the family that is visited
};

}  // namespace blockmgr

#endif  // BENCH_KERNEL_CASES_H_
