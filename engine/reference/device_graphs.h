// Graphs of steps on a device.
#ifndef ENGINE_REFERENCE_DEVICE_GRAPHS_H_
#define ENGINE_REFERENCE_DEVICE_GRAPHS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include <absl/container/flat_hash_map.h>
#include <absl/container/flat_hash_set.h>
#include <absl/status/status.h>

#include "kernels/cuda/host/device_runtime.h"

namespace blockmgr {

// DeviceGraphs captures the kernels of a step the second time that a step of so
// many rows comes, and replays them for steps with equal arguments. The first
// step of each number of rows runs as it is: kernels and libraries load then,
// which they may not in a capture.
//
// If a capture fails, that step and all further ones run as they are; the
// error is kept. Thread-compatible. The runtime is borrowed.
class DeviceGraphs {
 public:
  // Steps of more rows are not captured (vLLM: max_cudagraph_capture_size).
  static constexpr int32_t kMaxRows = 256;
  // The most graphs that are kept.
  static constexpr size_t kMaxGraphs = 128;

  // Null: no step is captured.
  explicit DeviceGraphs(DeviceRuntime* runtime) : runtime_(runtime) {}

  // Returns the number of rows that a step of num_rows is padded to: 1, 2, 4,
  // or a multiple of 8 up to kMaxRows. Returns num_rows if steps are not
  // captured.
  int32_t PadRows(int32_t num_rows) const;

  // Runs enqueue(), or replays the graph of what it enqueued. REQUIRES:
  // enqueue() only launches kernels, and equal ones for equal `arguments`;
  // arguments begin with the number of rows. Returns false if later steps will
  // be faster: the step was the first of its number of rows, was captured, or
  // its capture failed.
  bool Run(const std::vector<uint64_t>& arguments,
           const std::function<void()>& enqueue);

  int64_t num_captures() const { return num_captures_; }
  int64_t num_replays() const { return num_replays_; }
  // Returns why nothing is captured any more, or OK.
  const absl::Status& error() const { return error_; }

 private:
  // Returns a graph of what enqueue() enqueues, or null after a failure.
  const DeviceGraph* Capture(const std::vector<uint64_t>& arguments,
                             const std::function<void()>& enqueue);

  DeviceRuntime* runtime_;
  absl::flat_hash_set<uint64_t> warm_rows_;  // numbers of rows that have run
  absl::flat_hash_map<std::vector<uint64_t>, std::unique_ptr<DeviceGraph>>
      graphs_;  // by arguments
  int64_t num_captures_ = 0;
  int64_t num_replays_ = 0;
  absl::Status error_;
};

}  // namespace blockmgr

#endif  // ENGINE_REFERENCE_DEVICE_GRAPHS_H_
