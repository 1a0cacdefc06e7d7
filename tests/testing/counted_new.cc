#include "tests/testing/counted_new.h"

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace blockmgr {
namespace {

std::atomic<int64_t> allocations{0};
std::atomic<int64_t> allocated_bytes{0};
std::atomic<int64_t> peak_bytes{0};

// The size as asked for is kept in front of the memory.
constexpr std::size_t kHeader = alignof(std::max_align_t);

void* Allocate(std::size_t size) {
  auto* memory = static_cast<char*>(std::malloc(size + kHeader));
  if (memory == nullptr) std::abort();
  *reinterpret_cast<std::size_t*>(memory) = size;
  allocations.fetch_add(1, std::memory_order_relaxed);
  const auto bytes = static_cast<int64_t>(size);
  const int64_t now =
      allocated_bytes.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  int64_t peak = peak_bytes.load(std::memory_order_relaxed);
  while (now > peak && !peak_bytes.compare_exchange_weak(
                           peak, now, std::memory_order_relaxed)) {
  }
  return memory + kHeader;
}

void Free(void* memory) {
  if (memory == nullptr) return;
  char* const begin = static_cast<char*>(memory) - kHeader;
  allocated_bytes.fetch_sub(
      static_cast<int64_t>(*reinterpret_cast<std::size_t*>(begin)),
      std::memory_order_relaxed);
  std::free(begin);
}

}  // namespace

int64_t num_allocations() { return allocations; }

int64_t AllocatedBytes() { return allocated_bytes; }

int64_t PeakAllocatedBytes() { return peak_bytes; }

void ForgetPeak() { peak_bytes = allocated_bytes.load(); }

}  // namespace blockmgr

// Every form, though the standard library's own end up in the first: those of
// a sanitizer do not, and std::stable_sort asks without exceptions.
// NOLINTBEGIN(misc-new-delete-overloads)
void* operator new(std::size_t size) { return blockmgr::Allocate(size); }
void* operator new[](std::size_t size) { return blockmgr::Allocate(size); }
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  return blockmgr::Allocate(size);
}
void* operator new[](std::size_t size, const std::nothrow_t&) noexcept {
  return blockmgr::Allocate(size);
}
void operator delete(void* memory) noexcept { blockmgr::Free(memory); }
void operator delete[](void* memory) noexcept { blockmgr::Free(memory); }
void operator delete(void* memory, std::size_t) noexcept {
  blockmgr::Free(memory);
}
void operator delete[](void* memory, std::size_t) noexcept {
  blockmgr::Free(memory);
}
void operator delete(void* memory, const std::nothrow_t&) noexcept {
  blockmgr::Free(memory);
}
void operator delete[](void* memory, const std::nothrow_t&) noexcept {
  blockmgr::Free(memory);
}
// NOLINTEND(misc-new-delete-overloads)
