#include "tests/kernels/ptx/ptx_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <new>

namespace blockmgr::ptx {
namespace {

constexpr std::align_val_t kAlignment{256};

// Larger pieces are the system's, which takes what is touched only: most of a
// pool never is.
bool IsMapped(std::size_t bytes) { return bytes > std::size_t{64} << 20; }

void* Take(std::size_t bytes) {
  if (!IsMapped(bytes)) {
    void* memory = ::operator new(bytes, kAlignment, std::nothrow);
    if (memory != nullptr && bytes > 0) std::memset(memory, 0xFF, bytes);
    return memory;
  }
  void* memory =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, /*fd=*/-1, 0);
  return memory == MAP_FAILED ? nullptr : memory;
}

void GiveBack(void* memory, std::size_t bytes) {
  if (IsMapped(bytes)) {
    munmap(memory, bytes);
  } else {
    ::operator delete(memory, kAlignment);
  }
}

}  // namespace

DeviceMemory::~DeviceMemory() {
  for (const auto& [address, bytes] : pieces_) {
    // NOLINTNEXTLINE(performance-no-int-to-ptr): addresses are device code's
    GiveBack(reinterpret_cast<void*>(address), bytes);
  }
}

std::byte* DeviceMemory::Allocate(std::size_t bytes) {
  if (bytes > kCapacity - used_) return nullptr;
  void* memory = Take(bytes);
  if (memory == nullptr) return nullptr;
  pieces_[reinterpret_cast<uint64_t>(memory)] = bytes;
  used_ += bytes;
  return static_cast<std::byte*>(memory);
}

bool DeviceMemory::Free(void* memory) {
  const auto it = pieces_.find(reinterpret_cast<uint64_t>(memory));
  if (it == pieces_.end()) return false;
  const std::size_t bytes = it->second;
  used_ -= bytes;
  pieces_.erase(it);
  last_begin_ = 0;
  last_bytes_ = 0;
  GiveBack(memory, bytes);
  return true;
}

void DeviceMemory::BeginLaunch() {
  just_written_.swap(written_);
  written_.clear();
  sorted_ = false;
}

bool DeviceMemory::WasJustWritten(uint64_t address, std::size_t bytes) {
  std::vector<Range>& all = just_written_;
  if (!sorted_) {
    sorted_ = true;
    std::ranges::sort(all, {}, &Range::begin);
    std::size_t kept = 0;
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (kept > 0 && all[i].begin <= all[kept - 1].end) {
        all[kept - 1].end = std::max(all[kept - 1].end, all[i].end);
      } else {
        all[kept++] = all[i];
      }
    }
    all.resize(kept);
  }
  const auto behind =
      std::ranges::lower_bound(all, address + bytes, {}, &Range::begin);
  return behind != all.begin() && std::prev(behind)->end > address;
}

bool DeviceMemory::FindPiece(uint64_t address, std::size_t bytes) const {
  auto it = pieces_.upper_bound(address);
  if (it == pieces_.begin()) return false;
  it = std::prev(it);
  const uint64_t offset = address - it->first;
  if (offset > it->second || bytes > it->second - offset) return false;
  last_begin_ = it->first;
  last_bytes_ = it->second;
  return true;
}

}  // namespace blockmgr::ptx
