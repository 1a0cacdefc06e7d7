// The bytes of table files, little-endian and without padding: what the formats
// of LuKvProfile and QueryStatsTable have in common.
#ifndef BLOCKMGR_EVICTION_TABLE_BYTES_H_
#define BLOCKMGR_EVICTION_TABLE_BYTES_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include <absl/status/statusor.h>
#include <absl/strings/string_view.h>

namespace blockmgr {

// A text longer than this is no name of a model or scorer.
inline constexpr size_t kMaxTableText = 4096;

uint64_t Fnv1a64(absl::string_view bytes);

// Appends an FNV-1a 64 of the bytes so far, with which a file ends.
void AppendChecksum(std::string* bytes);

// Returns 128 bits (XXH3) of the arrays and their sizes as 32 hex digits.
std::string ContentHash(
    std::initializer_list<std::span<const std::byte>> arrays);

template <typename Unsigned>
void AppendNumber(Unsigned value, std::string* bytes) {
  static_assert(std::is_unsigned_v<Unsigned>);
  for (size_t i = 0; i < sizeof(value); ++i) {
    bytes->push_back(static_cast<char>(value >> (8 * i)));
  }
}

inline void AppendFloat(float value, std::string* bytes) {
  AppendNumber(std::bit_cast<uint32_t>(value), bytes);
}

// Appends a u32 count of bytes and the bytes.
inline void AppendText(const std::string& text, std::string* bytes) {
  AppendNumber(static_cast<uint32_t>(text.size()), bytes);
  bytes->append(text);
}

// Takes fields from the front of a file. Once one is cut short, it and all
// later ones are empty and ok() is false.
class TableReader {
 public:
  explicit TableReader(absl::string_view bytes) : bytes_(bytes) {}

  bool ok() const { return ok_; }
  size_t remaining() const { return bytes_.size(); }

  absl::string_view Take(size_t count) {
    ok_ = ok_ && count <= bytes_.size();
    if (!ok_) return {};
    const absl::string_view taken = bytes_.substr(0, count);
    bytes_.remove_prefix(count);
    return taken;
  }
  template <typename Unsigned>
  Unsigned Value() {
    Unsigned value = 0;
    size_t shift = 0;
    for (const char byte : Take(sizeof(Unsigned))) {
      value |= static_cast<Unsigned>(static_cast<unsigned char>(byte)) << shift;
      shift += 8;
    }
    return value;
  }
  // A count that does not fit becomes -1, which no field allows.
  int32_t Count() {
    const auto value = Value<uint32_t>();
    return value <= std::numeric_limits<int32_t>::max()
               ? static_cast<int32_t>(value)
               : -1;
  }
  float Float() { return std::bit_cast<float>(Value<uint32_t>()); }
  std::string Text() { return std::string(Take(Value<uint32_t>())); }
  std::vector<float> Floats(size_t count) {
    std::vector<float> values(ok_ ? count : 0);
    for (float& value : values) value = Float();
    return values;
  }

 private:
  absl::string_view bytes_;
  bool ok_ = true;
};

// Returns a reader of what a file has between its magic and its checksum.
// InvalidArgument if the file does not begin with `magic`, or if the checksum
// is another. The errors begin with `what`, which names the kind of the table.
absl::StatusOr<TableReader> OpenTable(absl::string_view what,
                                      absl::string_view magic,
                                      absl::string_view bytes);

}  // namespace blockmgr

#endif  // BLOCKMGR_EVICTION_TABLE_BYTES_H_
