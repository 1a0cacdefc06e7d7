// HeapBytes: what a container takes from the heap, its elements included but
// not what those point to. For reports of metadata; what the allocator adds is
// not known here.
#ifndef BLOCKMGR_BASE_HEAP_BYTES_H_
#define BLOCKMGR_BASE_HEAP_BYTES_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <absl/container/flat_hash_map.h>
#include <absl/container/node_hash_map.h>

namespace blockmgr {

template <typename T>
int64_t HeapBytes(const std::vector<T>& vector) {
  return static_cast<int64_t>(vector.capacity() * sizeof(T));
}

// Nothing as long as it fits into the string itself.
inline int64_t HeapBytes(const std::string& text) {
  return text.capacity() > std::string().capacity()
             ? static_cast<int64_t>(text.capacity()) + 1
             : 0;
}

// A slot has a control byte.
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

// A node has three links and a colour.
template <typename K, typename V>
int64_t HeapBytes(const std::map<K, V>& map) {
  using Value = typename std::map<K, V>::value_type;
  return static_cast<int64_t>(map.size() * (4 * sizeof(void*) + sizeof(Value)));
}

}  // namespace blockmgr

#endif  // BLOCKMGR_BASE_HEAP_BYTES_H_
