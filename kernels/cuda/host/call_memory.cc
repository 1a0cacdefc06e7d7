#include "kernels/cuda/host/call_memory.h"

#include <algorithm>
#include <cstring>

#include <absl/status/statusor.h>

#include "blockmgr/base/check.h"
#include "blockmgr/base/status_macros.h"

namespace blockmgr {

CallMemory::CallMemory(DeviceRuntime* runtime) : runtime_(runtime) { Begin(); }

CallMemory::~CallMemory() {
  if (base_ != nullptr) runtime_->Free(base_);
}

void CallMemory::Begin() {
  sizes_ = {};
  sizes_[kResults] = kAlignment;
}

absl::Status CallMemory::Grow(int64_t bytes) {
  // By half at least, so that slowly growing calls settle.
  const int64_t capacity = Padded(std::max(bytes, capacity_ + capacity_ / 2));
  // The old memory goes first: both need not fit. What kernels have reported
  // until now must not be lost, whatever comes of it.
  if (base_ != nullptr) {
    runtime_->Download(std::as_writable_bytes(std::span(&reported_, 1)), base_);
    runtime_->Free(base_);
    base_ = nullptr;
    capacity_ = 0;
  }
  absl::StatusOr<char*> memory = runtime_->Allocate(capacity);
  BM_RETURN_IF_ERROR(memory.status());
  runtime_->Fill(*memory, 0, kAlignment);
  runtime_->Upload(*memory, std::as_bytes(std::span(&reported_, 1)));
  base_ = *memory;
  capacity_ = capacity;
  return runtime_->status();
}

absl::Status CallMemory::Send() {
  int64_t bytes = 0;
  for (int32_t part = 0; part < kNumParts; ++part) {
    begins_[part] = bytes;
    bytes += sizes_[part];
  }
  if (bytes > capacity_) BM_RETURN_IF_ERROR(Grow(bytes));
  for (const Part part : {kInOut, kInputs}) {
    if (sizes_[part] == 0) continue;
    runtime_->Upload(base_ + begins_[part],
                     std::span(host_[part]).first(sizes_[part]));
  }
  return runtime_->status();
}

void CallMemory::Receive() {
  BM_CHECK(base_ != nullptr);
  for (const Part part : {kResults, kInOut}) {
    if (sizes_[part] == 0) continue;
    if (std::ssize(host_[part]) < sizes_[part]) {
      host_[part].resize(sizes_[part]);
    }
    runtime_->Download(std::span(host_[part]).first(sizes_[part]),
                       base_ + begins_[part]);
  }
  std::memcpy(&error_, host_[kResults].data(), sizeof(error_));
}

void CallMemory::ClearError() {
  error_ = 0;
  reported_ = 0;
  if (base_ != nullptr) runtime_->Fill(base_, 0, sizeof(uint32_t));
}

}  // namespace blockmgr
