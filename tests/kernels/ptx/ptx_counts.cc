#include "tests/kernels/ptx/ptx_counts.h"

#include <algorithm>
#include <cstddef>

#include <absl/strings/str_format.h>

namespace blockmgr::ptx {
namespace {

constexpr uint64_t kSectorBytes = 32;
constexpr uint64_t kBanks = 32;
constexpr uint64_t kWordBytes = 4;
constexpr uint64_t kPassBytes = kBanks * kWordBytes;

}  // namespace

void LaunchCounts::CountGlobal(std::span<const uint64_t> addresses,
                               uint32_t bytes) {
  ++global_requests;
  global_bytes += addresses.size() * bytes;
  std::array<uint64_t, 32> sectors;
  // What is aligned to its size is in one sector, up to 32 bytes.
  for (std::size_t i = 0; i < addresses.size(); ++i) {
    sectors[i] = addresses[i] / kSectorBytes;
  }
  const auto end = sectors.begin() + std::ssize(addresses);
  std::sort(sectors.begin(), end);
  global_sectors += static_cast<uint64_t>(
      std::distance(sectors.begin(), std::unique(sectors.begin(), end)));
}

void LaunchCounts::CountShared(std::span<const uint64_t> addresses,
                               uint32_t bytes, bool atomic) {
  ++shared_requests;
  // A pass serves as many lanes as its bytes are enough for.
  const std::size_t lanes = kPassBytes / std::max<uint64_t>(bytes, kWordBytes);
  for (std::size_t begin = 0; begin < addresses.size(); begin += lanes) {
    const std::size_t end = std::min(begin + lanes, addresses.size());
    std::array<uint64_t, 32> words;
    std::size_t num_words = 0;
    for (std::size_t i = begin; i < end; ++i) {
      for (uint64_t byte = 0; byte < bytes; byte += kWordBytes) {
        words[num_words++] = (addresses[i] + byte) / kWordBytes;
      }
    }
    const auto last = words.begin() + static_cast<std::ptrdiff_t>(num_words);
    std::sort(words.begin(), last);
    const auto distinct = atomic ? last : std::unique(words.begin(), last);
    std::array<uint64_t, kBanks> load = {};
    for (auto word = words.begin(); word != distinct; ++word) {
      ++load[*word % kBanks];
    }
    shared_passes += *std::max_element(load.begin(), load.end());
    ++shared_least_passes;
  }
}

LaunchCounts& LaunchCounts::operator+=(const LaunchCounts& other) {
  launches += other.launches;
  blocks += other.blocks;
  for (std::size_t i = 0; i < instructions.size(); ++i) {
    instructions[i] += other.instructions[i];
  }
  global_requests += other.global_requests;
  global_bytes += other.global_bytes;
  global_sectors += other.global_sectors;
  shared_requests += other.shared_requests;
  shared_passes += other.shared_passes;
  shared_least_passes += other.shared_least_passes;
  return *this;
}

std::string LaunchCounts::ToString() const {
  return absl::StrFormat(
      "launches %d blocks %d instructions %d memory %d tensor %d control %d "
      "global_requests %d global_bytes %d global_sectors %d shared_requests %d "
      "shared_passes %d shared_least_passes %d",
      launches, blocks, instructions[0], instructions[1], instructions[2],
      instructions[3], global_requests, global_bytes, global_sectors,
      shared_requests, shared_passes, shared_least_passes);
}

}  // namespace blockmgr::ptx
