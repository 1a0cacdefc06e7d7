#include "scheduler/server/sha256.h"

#include <array>
#include <cstddef>

#include <absl/strings/escaping.h>
#include <openssl/evp.h>

#include "blockmgr/base/check.h"

namespace blockmgr {

std::string Sha256Hex(absl::string_view bytes) {
  constexpr size_t kBytes = 32;
  std::array<unsigned char, kBytes> digest{};
  BM_CHECK(EVP_Digest(bytes.data(), bytes.size(), digest.data(), nullptr,
                      EVP_sha256(), nullptr) == 1);
  return absl::BytesToHexString(
      {reinterpret_cast<const char*>(digest.data()), digest.size()});
}

}  // namespace blockmgr
