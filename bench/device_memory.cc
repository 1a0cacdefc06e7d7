#include "bench/device_memory.h"

#include <absl/status/statusor.h>

namespace blockmgr {

uint16_t* DeviceMemory::AllocateElements(int64_t count, uint64_t seed,
                                         ElementType type) {
  uint16_t* elements = Allocate<uint16_t>(count);
  if (elements != nullptr) device_.FillElements(elements, count, seed, type);
  return elements;
}

void DeviceMemory::FreeDownTo(std::size_t num_allocations) {
  while (allocations_.size() > num_allocations) {
    runtime().Free(allocations_.back().place);
    num_bytes_ -= allocations_.back().bytes;
    allocations_.pop_back();
  }
}

char* DeviceMemory::AllocateBytes(int64_t bytes) {
  if (!status_.ok()) return nullptr;
  const absl::StatusOr<char*> memory = runtime().Allocate(bytes);
  if (!memory.ok()) {
    status_ = memory.status();
    return nullptr;
  }
  allocations_.push_back({*memory, bytes});
  num_bytes_ += bytes;
  most_bytes_ = std::max(most_bytes_, num_bytes_);
  runtime().Fill(*memory, 0, bytes);
  return *memory;
}

}  // namespace blockmgr
