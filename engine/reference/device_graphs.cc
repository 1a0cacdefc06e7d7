#include "engine/reference/device_graphs.h"

#include <utility>

#include <absl/status/statusor.h>

#include "blockmgr/base/check.h"

namespace blockmgr {

int32_t DeviceGraphs::PadRows(int32_t num_rows) const {
  if (runtime_ == nullptr || num_rows > kMaxRows) return num_rows;
  if (num_rows > 4) return (num_rows + 7) / 8 * 8;
  return num_rows == 3 ? 4 : num_rows;
}

bool DeviceGraphs::Run(const std::vector<uint64_t>& arguments,
                       const std::function<void()>& enqueue) {
  BM_CHECK(!arguments.empty());
  const uint64_t num_rows = arguments.front();
  const bool is_first = warm_rows_.insert(num_rows).second;
  if (runtime_ == nullptr || num_rows > uint64_t{kMaxRows} || is_first) {
    enqueue();
    return !is_first;
  }
  const auto found = graphs_.find(arguments);
  const bool is_captured = found != graphs_.end();
  const DeviceGraph* const graph =
      is_captured ? found->second.get() : Capture(arguments, enqueue);
  if (graph == nullptr) {
    enqueue();
    return false;
  }
  runtime_->Launch(*graph);
  ++num_replays_;
  return is_captured;
}

const DeviceGraph* DeviceGraphs::Capture(const std::vector<uint64_t>& arguments,
                                         const std::function<void()>& enqueue) {
  // An error from before the capture is not the capture's.
  if (!runtime_->status().ok()) return nullptr;
  runtime_->BeginCapture();
  enqueue();
  absl::StatusOr<std::unique_ptr<DeviceGraph>> graph = runtime_->EndCapture();
  if (!graph.ok()) {
    error_ = graph.status();
    runtime_ = nullptr;
    graphs_.clear();
    return nullptr;
  }
  ++num_captures_;
  // Most of them are of arguments that will not come again.
  if (graphs_.size() == kMaxGraphs) graphs_.clear();
  return graphs_.emplace(arguments, *std::move(graph)).first->second.get();
}

}  // namespace blockmgr
