// DeviceProblem: a problem on a device, and every kernel that can be launched
// on it.
//
//   kernel_inputs.h          what all cases share
//   kernel_families.h        the table of the cases
//   kernel_step_cases.h, kernel_score_cases.h, kernel_eviction_cases.h
//                            the cases themselves
//   kernel_case.h            a case, and the builder of a family's cases
//   device_memory.h          the memory that cases use
#ifndef BENCH_KERNEL_CASES_H_
#define BENCH_KERNEL_CASES_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include "bench/device_memory.h"
#include "bench/kernel_case.h"
#include "bench/kernel_device.h"
#include "bench/kernel_inputs.h"
#include "bench/kernel_problem.h"

namespace blockmgr {

// DeviceProblem visits the cases of a problem. A case has its work space only
// while its family is visited, because a work space may be larger than the
// pools. Owns its memory of the device. Thread-compatible.
class DeviceProblem {
 public:
  using Visit = std::function<absl::Status(const KernelCase&)>;

  // Returns the names of all cases, ceilings first.
  static std::vector<std::string> KernelNames();

  // Borrows the device. Returns ResourceExhausted if it has no room.
  static absl::StatusOr<std::unique_ptr<DeviceProblem>> Create(
      const KernelProblem& problem, const DeviceProblemOptions& options,
      KernelDevice* device);
  DeviceProblem(const DeviceProblem&) = delete;
  DeviceProblem& operator=(const DeviceProblem&) = delete;

  int32_t num_copies() const { return in_.num_copies(); }
  // Visits the cases of these names, or all cases if there are no names, in the
  // order of KernelNames(). A visit may launch its case any number of times.
  // Ends at the first error of the device or of a visit, and returns it.
  absl::Status ForEachCase(std::span<const std::string> kernels,
                           const Visit& visit);
  // The most memory of the device that this has held.
  int64_t most_bytes() const { return memory_.most_bytes(); }
  // Returns the output of the last decode, of the problem's type,
  // [num_sequences, q_heads, head_dim].
  absl::StatusOr<std::vector<uint16_t>> ReadDecodeOutput() const;
  // Returns the number of entries that each list kept in the last of the
  // evictions. REQUIRES: an eviction is visited.
  absl::StatusOr<std::vector<int32_t>> ReadKept() const;
  // Returns the errors that kernels found (RowError), or 0.
  absl::StatusOr<uint32_t> ReadErrorWord() const;

 private:
  explicit DeviceProblem(KernelDevice* device) : memory_(device) {}

  DeviceMemory memory_;
  KernelInputs in_;
  const int32_t* kept_ = nullptr;  // CaseBuilder::kept of the visited family
};

}  // namespace blockmgr

#endif  // BENCH_KERNEL_CASES_H_
