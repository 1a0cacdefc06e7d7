#include "blockmgr/eviction/table_bytes.h"

#include <array>
#include <set>
#include <span>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace blockmgr {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST(TableBytesTest, HashesAsPublished) {
  // The vectors of draft-eastlake-fnv.
  EXPECT_EQ(Fnv1a64(""), 0xcbf29ce484222325u);
  EXPECT_EQ(Fnv1a64("a"), 0xaf63dc4c8601ec8cu);
  EXPECT_EQ(Fnv1a64("foobar"), 0x85944171f73967e8u);
}

TEST(TableBytesTest, ReadsBackWhatWasAppended) {
  std::string bytes;
  AppendNumber(uint32_t{0x01020304}, &bytes);
  EXPECT_EQ(bytes, "\x04\x03\x02\x01");
  AppendText("name", &bytes);
  AppendFloat(-1.5f, &bytes);
  AppendFloat(3.0f, &bytes);
  AppendNumber(uint64_t{1} << 40, &bytes);
  TableReader reader(bytes);
  EXPECT_EQ(reader.Count(), 0x01020304);
  EXPECT_EQ(reader.Text(), "name");
  EXPECT_THAT(reader.Floats(2), ElementsAre(-1.5f, 3.0f));
  EXPECT_EQ(reader.Value<uint64_t>(), uint64_t{1} << 40);
  EXPECT_TRUE(reader.ok());
  EXPECT_EQ(reader.remaining(), 0u);
}

TEST(TableBytesTest, NothingFollowsAFieldThatIsCutShort) {
  std::string bytes;
  AppendNumber(uint32_t{100}, &bytes);  // bytes of a text
  bytes += "abcd";
  TableReader reader(bytes);
  EXPECT_THAT(reader.Text(), IsEmpty());
  EXPECT_FALSE(reader.ok());
  EXPECT_THAT(reader.Take(1), IsEmpty());
  EXPECT_THAT(reader.Floats(1u << 31), IsEmpty());
}

TEST(TableBytesTest, ACountBeyondAnIntIsNone) {
  std::string bytes;
  AppendNumber(uint32_t{0x80000000}, &bytes);
  EXPECT_EQ(TableReader(bytes).Count(), -1);
}

TEST(TableBytesTest, ContentIsArraysAndTheirSizes) {
  const std::array<float, 4> values = {1.0f, 2.0f, 3.0f, 4.0f};
  const auto bytes = std::as_bytes(std::span(values));
  const std::set<std::string> hashes = {
      ContentHash({bytes}), ContentHash({bytes.first(4), bytes.subspan(4)}),
      ContentHash({bytes.first(8), bytes.subspan(8)}),
      ContentHash({bytes.first(8)})};
  EXPECT_THAT(hashes, SizeIs(4));
  EXPECT_THAT(*hashes.begin(), SizeIs(32));
}

}  // namespace
}  // namespace blockmgr
