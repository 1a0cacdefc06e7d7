#include "scheduler/server/peer_text.h"

#include <string>

#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

namespace blockmgr {
namespace {

TEST(PeerTextTest, LongTextsAreShortened) {
  EXPECT_EQ(Shorten(""), "");
  EXPECT_EQ(Shorten(std::string(kMaxTextBytes, 'x')),
            std::string(kMaxTextBytes, 'x'));
  EXPECT_EQ(Shorten(std::string(kMaxTextBytes + 1, 'x')),
            std::string(kMaxTextBytes, 'x') + " .. (2049 bytes)");
  // Characters of two and of four bytes that begin one byte before the end.
  for (const char* const character : {"\xC3\xA9", "\xF0\x9F\x98\x80"}) {
    const std::string before(kMaxTextBytes - 1, 'x');
    const std::string after(5000, 'y');
    EXPECT_EQ(Shorten(absl::StrCat(before, character, after))
                  .substr(0, before.size() + 4),
              absl::StrCat(before, " .. "));
  }
  EXPECT_EQ(Shorten(std::string(3000, '\x80')), " .. (3000 bytes)");
}

TEST(PeerTextTest, TheLogGetsOneLine) {
  EXPECT_EQ(ForLog("a\nb\x1b[2J \xC3\xA9"), "a\\nb\\x1b[2J \xC3\xA9");
  EXPECT_LT(ForLog(std::string(100'000, '\n')).size(), 2 * kMaxTextBytes + 32);
}

}  // namespace
}  // namespace blockmgr
