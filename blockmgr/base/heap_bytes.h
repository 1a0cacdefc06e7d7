// HeapBytes returns the bytes that a container takes from the heap. Its
// elements are included, but not what the elements point to. The overhead of
// the allocator is not included. For reports of metadata.
#ifndef BLOCKMGR_BASE_HEAP_BYTES_H_
#define BLOCKMGR_BASE_HEAP_BYTES_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <absl/container/flat_hash_map.h>
#include <absl/container/inlined_vector.h>
#include <absl/container/node_hash_map.h>

namespace blockmgr {

template <typename T>
int64_t HeapBytes(const std::vector<T>& vector) {
  return static_cast<int64_t>(vector.capacity() * sizeof(T));
}

// Returns 0 while the elements fit into the vector object itself.
template <typename T, size_t N>
int64_t HeapBytes(const absl::InlinedVector<T, N>& vector) {
  return vector.capacity() > absl::InlinedVector<T, N>().capacity()
             ? static_cast<int64_t>(vector.capacity() * sizeof(T))
             : 0;
}

// Returns 0 while the text fits into the string object itself.
inline int64_t HeapBytes(const std::string& text) {
  return text.capacity() > std::string().capacity()
             ? static_cast<int64_t>(text.capacity()) + 1
             : 0;
}

// Each slot of a hash map has a control byte.
template <typename K, typename V>
int64_t HeapBytes(const absl::flat_hash_map<K, V>& map) {
  using Slot = typename absl::flat_hash_map<K, V>::value_type;
  return static_cast<int64_t>(map.capacity() * (sizeof(Slot) + 1));
}
template <typename K, typename V>
int64_t HeapBytes(const absl::node_hash_map<K, V>& map) {
  using Node = typename absl::node_hash_map<K, V>::value_type;
  return static_cast<int64_t>(map.capacity() * (sizeof(Node*) + 1) +
                              map.size() * sizeof(Node));
}

// Each node of a std::map has three links and a colour.
template <typename K, typename V>
int64_t HeapBytes(const std::map<K, V>& map) {
  using Value = typename std::map<K, V>::value_type;
  return static_cast<int64_t>(map.size() * (4 * sizeof(void*) + sizeof(Value)));
}

}  // namespace blockmgr

#endif  // BLOCKMGR_BASE_HEAP_BYTES_H_
