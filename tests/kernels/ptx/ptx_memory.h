// The device's memory: the host's, in pieces whose ends are known.
#ifndef TESTS_KERNELS_PTX_PTX_MEMORY_H_
#define TESTS_KERNELS_PTX_PTX_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

namespace blockmgr::ptx {

// Thread-compatible.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  ~DeviceMemory();

  // Aligned to 256 bytes; up to 64 MiB full of 0xFF: NaN, and no index. Null
  // where the host has no room, or more than `kCapacity` would be used.
  std::byte* Allocate(std::size_t bytes);
  // Whether there was such a piece.
  bool Free(void* memory);

  // Whether all of these bytes are in one piece.
  bool Contains(uint64_t address, std::size_t bytes) const {
    if (address - last_begin_ <= last_bytes_ &&
        bytes <= last_bytes_ - (address - last_begin_)) {
      return true;
    }
    return FindPiece(address, bytes);
  }

  // What launches write, for those that read before the last one has ended.
  void BeginLaunch();
  void NoteWrite(uint64_t address, std::size_t bytes) {
    if (!written_.empty() && written_.back().end == address) {
      written_.back().end += bytes;
    } else {
      written_.push_back({address, address + bytes});
    }
  }
  // Whether the launch before the current one wrote any of these.
  bool WasJustWritten(uint64_t address, std::size_t bytes);

  static constexpr std::size_t kCapacity = std::size_t{128} << 30;
  std::size_t used() const { return used_; }

 private:
  struct Range {
    uint64_t begin;
    uint64_t end;
  };

  bool FindPiece(uint64_t address, std::size_t bytes) const;

  std::map<uint64_t, std::size_t> pieces_;  // bytes by address
  std::size_t used_ = 0;
  // The piece looked at last.
  mutable uint64_t last_begin_ = 0;
  mutable std::size_t last_bytes_ = 0;
  std::vector<Range> written_;       // by the current launch, as it went
  std::vector<Range> just_written_;  // by the one before
  bool sorted_ = false;              // and joined: just_written_
};

}  // namespace blockmgr::ptx

#endif  // TESTS_KERNELS_PTX_PTX_MEMORY_H_
