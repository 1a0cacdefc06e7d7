#include "bench/quality/cells.h"

#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/testing/is_invalid.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(CellsTest, ModesAreReadAndWritten) {
  for (const char* text :
       {"aware", "agnostic", "every-chunk=128", "decode=64"}) {
    ASSERT_OK_AND_ASSIGN(const QualityMode mode, QualityMode::Parse(text));
    EXPECT_EQ(mode.ToString(), text);
  }
  ASSERT_OK_AND_ASSIGN(const QualityMode chunks,
                       QualityMode::Parse("every-chunk=128"));
  EXPECT_EQ(chunks.kind, QualityMode::Kind::kEveryChunk);
  EXPECT_EQ(chunks.every, 128);
}

TEST(CellsTest, RefusesOtherModes) {
  for (const char* text : {"", "always", "every-chunk", "every-chunk=0",
                           "decode=x", "decode=-1"}) {
    EXPECT_THAT(QualityMode::Parse(text), IsInvalid("--modes", "expected"));
  }
}

TEST(CellsTest, AllCombinationsOfModesTargetsAndPolicies) {
  const CellFlags flags = {.modes = {"agnostic", "every-chunk=32"},
                           .policies = {"keydiff|adakv", "streaming"},
                           .keep_ratios = {"0.20"},
                           .keep_tokens = {64}};
  ASSERT_OK_AND_ASSIGN(const std::vector<QualityCell> cells,
                       MakeCells(flags, {}));
  std::vector<std::string> names;
  names.reserve(cells.size());
  for (const QualityCell& cell : cells) names.push_back(cell.name());
  const std::string keydiff = FormatPolicy(*ParsePolicy("keydiff | adakv"));
  const std::string streaming = FormatPolicy(*ParsePolicy("streaming"));
  EXPECT_THAT(
      names, ElementsAre("agnostic/0.2/" + keydiff, "agnostic/0.2/" + streaming,
                         "agnostic/64 tokens/" + keydiff,
                         "agnostic/64 tokens/" + streaming,
                         "every-chunk=32/0.2/" + keydiff,
                         "every-chunk=32/0.2/" + streaming,
                         "every-chunk=32/64 tokens/" + keydiff,
                         "every-chunk=32/64 tokens/" + streaming));
  EXPECT_EQ(cells[2].eviction.target.kind, EvictionTarget::Kind::kTokens);
  EXPECT_EQ(cells[2].eviction.target.tokens, 64);
  EXPECT_EQ(cells[0].eviction.mode, EvictionMode::kAfterPrefill);
  EXPECT_EQ(cells[4].eviction.mode, EvictionMode::kEveryChunk);
  EXPECT_EQ(cells[4].eviction.compress_every, 32);
}

TEST(CellsTest, ErrorsNameTheFlag) {
  const CellFlags good = {.modes = {"agnostic"},
                          .policies = {"keydiff"},
                          .keep_ratios = {"0.2"},
                          .keep_tokens = {}};
  CellFlags flags = good;
  flags.keep_ratios = {"1.5"};
  EXPECT_THAT(MakeCells(flags, {}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       StartsWith("--keep-ratios: expected a")));
  flags = good;
  flags.keep_tokens = {0};
  EXPECT_THAT(MakeCells(flags, {}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       StartsWith("--keep-tokens: expected at")));
  flags = good;
  flags.policies = {"best"};
  EXPECT_THAT(MakeCells(flags, {}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       StartsWith("--policy: unknown scorer")));
  flags.policies = {"keydiff", "keydiff | uniform"};
  EXPECT_THAT(MakeCells(flags, {}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(StartsWith("--policy: "), HasSubstr("twice"))));
  flags = good;
  flags.policies = {"keydiff | lukv(profile=mine)"};
  EXPECT_THAT(MakeCells(flags, {}),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("mine")));
  flags = good;
  flags.keep_ratios.clear();
  EXPECT_FALSE(MakeCells(flags, {}).ok());
  flags = good;
  flags.policies.clear();
  EXPECT_THAT(MakeCells(flags, {}), StatusIs(absl::StatusCode::kInvalidArgument,
                                             StartsWith("--modes, --policy:")));
}

}  // namespace
}  // namespace blockmgr
