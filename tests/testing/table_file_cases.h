// Damage that every kind of table file must withstand (table_bytes.h).
#ifndef TESTS_TESTING_TABLE_FILE_CASES_H_
#define TESTS_TESTING_TABLE_FILE_CASES_H_

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>

#include <absl/status/status.h>
#include <gtest/gtest.h>

#include "blockmgr/base/bits.h"
#include "tests/testing/sealed_bytes.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {

// `decode` refuses the file cut short at every byte, with a checksum that fits
// and without, with a byte more, and with any bit flipped.
template <typename Decode>
void ExpectDamageRefused(const std::string& file, const Decode& decode) {
  const auto is_refused = StatusIs(absl::StatusCode::kInvalidArgument);
  for (size_t size = 0; size < file.size(); ++size) {
    EXPECT_THAT(decode(file.substr(0, size)), is_refused) << size << " bytes";
  }
  for (size_t size = 0; size + 8 < file.size(); ++size) {
    EXPECT_THAT(decode(Sealed(file.substr(0, size))), is_refused)
        << size << " bytes, sealed";
  }
  EXPECT_THAT(decode(file + "x"), is_refused);
  for (size_t i = 0; i < 8 * file.size(); ++i) {
    std::string flipped = file;
    flipped[i / 8] = static_cast<char>(flipped[i / 8] ^ (1 << (i % 8)));
    EXPECT_THAT(decode(flipped), is_refused) << "bit " << i;
  }
}

// `decode` makes nothing invalid of a file of which some bytes were changed,
// and what it makes is written as it was read.
template <typename Decode, typename Encode>
void ExpectNothingInvalidDecoded(const std::string& file, const Decode& decode,
                                 const Encode& encode) {
  int num_valid = 0;
  for (uint64_t seed = 0; seed < 20'000; ++seed) {
    std::mt19937_64 random(SplitMix64(seed));
    std::string changed = file.substr(0, file.size() - 8);
    const uint64_t num_changes = 1 + random() % 3;
    for (uint64_t i = 0; i < num_changes; ++i) {
      changed[random() % changed.size()] = static_cast<char>(random());
    }
    const auto decoded = decode(Sealed(changed));
    if (!decoded.ok()) continue;
    ++num_valid;
    ASSERT_THAT(decoded->Validate(), IsOk()) << "seed " << seed;
    ASSERT_EQ(encode(*decoded), Sealed(changed)) << "seed " << seed;
  }
  // Another letter in a text is as good.
  EXPECT_GT(num_valid, 0);
}

}  // namespace blockmgr

#endif  // TESTS_TESTING_TABLE_FILE_CASES_H_
