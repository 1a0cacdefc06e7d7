#include "engine/reference/device_buffer.h"

#include <algorithm>
#include <cstdint>

#include "blockmgr/base/status_macros.h"

namespace blockmgr {

DeviceBuffer::~DeviceBuffer() {
  if (data_ != nullptr) runtime_->Free(data_);
}

absl::Status DeviceBuffer::Reserve(size_t bytes) {
  if (bytes <= capacity_) return absl::OkStatus();
  // By half at least, so that slowly growing steps settle.
  const size_t capacity = std::max(bytes, capacity_ + capacity_ / 2);
  // The old memory goes first: both need not fit.
  if (data_ != nullptr) runtime_->Free(data_);
  data_ = nullptr;
  capacity_ = 0;
  BM_ASSIGN_OR_RETURN(data_,
                      runtime_->Allocate(static_cast<int64_t>(capacity)));
  capacity_ = capacity;
  return absl::OkStatus();
}

}  // namespace blockmgr
