#ifndef ENGINE_TABLES_SLICE_H_
#define ENGINE_TABLES_SLICE_H_

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <span>
#include <vector>

namespace blockmgr {

// Returns all[begin .. begin + count), or nullopt if some of it does not exist.
template <typename T>
std::optional<std::span<const T>> Slice(const std::vector<T>& all,
                                        int64_t begin, int64_t count) {
  if (begin < 0 || count < 0 || begin > std::ssize(all) ||
      count > std::ssize(all) - begin) {
    return std::nullopt;
  }
  return std::span(all).subspan(static_cast<size_t>(begin),
                                static_cast<size_t>(count));
}

}  // namespace blockmgr

#endif  // ENGINE_TABLES_SLICE_H_
