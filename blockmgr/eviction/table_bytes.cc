#include "blockmgr/eviction/table_bytes.h"

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>

// Header-only, so that an installed blockmgr needs no xxHash to link.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "blockmgr/base/invalid.h"

namespace blockmgr {

uint64_t Fnv1a64(absl::string_view bytes) {
  uint64_t hash = 0xcbf29ce484222325ull;
  for (const char byte : bytes) {
    hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001b3ull;
  }
  return hash;
}

void AppendChecksum(std::string* bytes) {
  AppendNumber(Fnv1a64(*bytes), bytes);
}

absl::StatusOr<TableReader> OpenTable(absl::string_view what,
                                      absl::string_view magic,
                                      absl::string_view bytes) {
  const auto error = [what](const auto&... pieces) {
    return Invalid(what, ": ", pieces...);
  };
  if (!absl::StartsWith(bytes, magic)) {
    return error("file: expected to begin with ", magic, ", got ", bytes.size(),
                 " bytes that do not");
  }
  if (bytes.size() < magic.size() + sizeof(uint64_t)) {
    return error("file: expected a checksum, got ", bytes.size(), " bytes");
  }
  const size_t size = bytes.size() - sizeof(uint64_t);
  const uint64_t computed = Fnv1a64(bytes.substr(0, size));
  const auto stored = TableReader(bytes.substr(size)).Value<uint64_t>();
  if (stored != computed) {
    return error("checksum: expected ", absl::Hex(computed), ", got ",
                 absl::Hex(stored));
  }
  return TableReader(bytes.substr(magic.size(), size - magic.size()));
}

std::string ContentHash(
    std::initializer_list<std::span<const std::byte>> arrays) {
  XXH3_state_t state;
  XXH3_128bits_reset(&state);
  for (const std::span<const std::byte> array : arrays) {
    const auto size = static_cast<uint64_t>(array.size());
    XXH3_128bits_update(&state, &size, sizeof size);
    XXH3_128bits_update(&state, array.data(), array.size());
  }
  const XXH128_hash_t hash = XXH3_128bits_digest(&state);
  return absl::StrCat(absl::Hex(hash.high64, absl::kZeroPad16),
                      absl::Hex(hash.low64, absl::kZeroPad16));
}

}  // namespace blockmgr
