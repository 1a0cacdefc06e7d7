// Table files whose bytes were changed, with a checksum that fits.
#ifndef TESTS_TESTING_SEALED_BYTES_H_
#define TESTS_TESTING_SEALED_BYTES_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>

namespace blockmgr {

inline uint64_t NaiveFnv1a64(const std::string& bytes) {
  uint64_t hash = 14695981039346656037ull;
  for (const unsigned char byte : bytes) {
    hash ^= byte;
    hash *= 1099511628211ull;
  }
  return hash;
}

// The file with its checksum made right, so that nothing but what it says can
// be refused.
inline std::string Sealed(std::string body) {
  uint64_t hash = NaiveFnv1a64(body);
  for (int i = 0; i < 8; ++i, hash >>= 8) {
    body.push_back(static_cast<char>(hash));
  }
  return body;
}

inline std::string U32(uint32_t value) {
  std::string bytes;
  for (int i = 0; i < 4; ++i, value >>= 8) {
    bytes.push_back(static_cast<char>(value));
  }
  return bytes;
}

inline std::string F32(float value) {
  return U32(std::bit_cast<uint32_t>(value));
}

// The file with other four bytes at `offset`.
inline std::string WithU32(std::string file, size_t offset, uint32_t value) {
  file.replace(offset, 4, U32(value));
  return Sealed(file.substr(0, file.size() - 8));
}

}  // namespace blockmgr

#endif  // TESTS_TESTING_SEALED_BYTES_H_
