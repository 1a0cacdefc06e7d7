#include "blockmgr/eviction/lukv_profile.h"

#include <limits>
#include <string>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/testing/sealed_bytes.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/table_file_cases.h"

namespace blockmgr {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Two layers of one head, the second evicted first.
LuKvProfile SmallProfile() {
  return {.num_layers = 2,
          .num_heads = 1,
          .calibration_length = 4000,
          .sinks = 4,
          .window = 32,
          .num_queries = 30,
          .scorer = "snapkv | uniform | topk",
          .model = "a model, 8B",
          .min_keep = 0.01f,
          .rho = {0.0f, 0.25f, 0.5f, 1.0f},
          .r = {0.0f, 0.0f, 0.1f, 0.4f, 0.25f, 0.75f, 1.0f, 1.0f}};
}

TEST(LuKvProfileTest, FileSurvivesARoundTrip) {
  const LuKvProfile profile = SmallProfile();
  ASSERT_THAT(profile.Validate(), IsOk());
  ASSERT_OK_AND_ASSIGN(const LuKvProfile decoded,
                       DecodeLuKvProfile(EncodeLuKvProfile(profile)));
  EXPECT_EQ(decoded, profile);
}

TEST(LuKvProfileTest, FileIsLaidOutAsSaid) {
  LuKvProfile profile = SmallProfile();
  profile.scorer = "h2o";
  profile.model = "";
  profile.min_keep = 0.5f;
  profile.rho = {0.0f, 1.0f};
  profile.r = {0.0f, 0.0f, 1.0f, 1.0f};
  const std::string half = U32(0x3F000000);
  const std::string zero = U32(0);
  const std::string one = U32(0x3F800000);
  EXPECT_EQ(
      EncodeLuKvProfile(profile),
      Sealed(absl::StrCat("LUKVPHI1", U32(2), U32(1), U32(2), U32(4000), U32(4),
                          U32(32), U32(30), U32(3), "h2o", half, U32(0), zero,
                          one, zero, zero, absl::StrCat(one, one))));
}

TEST(LuKvProfileTest, RefusesDamagedFiles) {
  const std::string file = EncodeLuKvProfile(SmallProfile());
  ExpectDamageRefused(file, DecodeLuKvProfile);
  EXPECT_THAT(
      DecodeLuKvProfile(Sealed(file.substr(0, file.size() - 8) + "abcd")),
      StatusIs(kInvalid, HasSubstr("bytes of rho and r")));
}

TEST(LuKvProfileTest, RefusesBadMagic) {
  std::string file = EncodeLuKvProfile(SmallProfile());
  file[7] = '2';
  EXPECT_THAT(DecodeLuKvProfile(Sealed(file.substr(0, file.size() - 8))),
              StatusIs(kInvalid, HasSubstr("LUKVPHI1")));
}

TEST(LuKvProfileTest, RefusesHugeCountsWithoutMemoryForThem) {
  const std::string file = EncodeLuKvProfile(SmallProfile());
  for (const uint32_t huge :
       {uint32_t{0}, uint32_t{3}, uint32_t{1} << 16, uint32_t{1} << 30,
        uint32_t{0x7FFFFFFF}, uint32_t{0x80000000}, uint32_t{0xFFFFFFFF}}) {
    // num_layers, num_heads, rho.size(), and the length of the scorer.
    for (const size_t offset : {8u, 12u, 16u, 36u}) {
      EXPECT_THAT(DecodeLuKvProfile(WithU32(file, offset, huge)),
                  StatusIs(kInvalid))
          << huge << " at " << offset;
    }
  }
  std::string all_huge = file;
  for (const size_t offset : {8u, 12u, 16u}) {
    all_huge = WithU32(all_huge, offset, 0x7FFFFFFF);
  }
  EXPECT_THAT(DecodeLuKvProfile(all_huge), StatusIs(kInvalid));
}

TEST(LuKvProfileTest, DecodesNothingInvalidWhateverTheBytes) {
  ExpectNothingInvalidDecoded(EncodeLuKvProfile(SmallProfile()),
                              DecodeLuKvProfile, EncodeLuKvProfile);
}

TEST(LuKvProfileTest, ValidateNamesTheFieldThatIsWrong) {
  using P = LuKvProfile;
  const auto expect_bad = [](const char* field, void (*change)(P&)) {
    LuKvProfile profile = SmallProfile();
    change(profile);
    EXPECT_THAT(profile.Validate(), StatusIs(kInvalid, HasSubstr(field)));
  };
  expect_bad("num_layers", [](P& p) { p.num_layers = 0; });
  expect_bad("24 values", [](P& p) { p.num_heads = 3; });
  expect_bad("less than 2^31",
             [](P& p) { p.num_layers = p.num_heads = 1 << 30; });
  expect_bad("sinks", [](P& p) { p.sinks = -1; });
  expect_bad("window", [](P& p) { p.window = -1; });
  expect_bad("calibration_length", [](P& p) { p.calibration_length = -5; });
  expect_bad("num_queries", [](P& p) { p.num_queries = -1; });
  expect_bad("scorer", [](P& p) { p.scorer.assign(1 << 20, 'x'); });
  expect_bad("min_keep", [](P& p) { p.min_keep = kNan; });
  expect_bad("rho[0]", [](P& p) { p.rho[0] = 0.1f; });
  expect_bad("rho[2]", [](P& p) { p.rho[2] = p.rho[1]; });
  expect_bad("rho[1]", [](P& p) { p.rho[1] = kNan; });
  expect_bad("rho[3]", [](P& p) { p.rho[3] = 0.9f; });
  expect_bad("rho", [](P& p) { p.rho.clear(); });
  expect_bad("r[0][0]", [](P& p) { p.r[0] = 0.0001f; });
  expect_bad("r[1][0]", [](P& p) { p.r[2] = kNan; });
  expect_bad("r[2][1]", [](P& p) { p.r[5] = 1.01f; });
  expect_bad("at least 0.1", [](P& p) { p.r[4] = 0.05f; });
  expect_bad("mean of r[2]", [](P& p) { p.r[5] = 0.76f; });
  LuKvProfile profile = SmallProfile();
  profile.r[5] = 0.751f;  // the mean may be so far off
  EXPECT_THAT(profile.Validate(), IsOk());
}

TEST(LuKvProfileTest, InterpolatesLinearlyBetweenGridPoints) {
  const LuKvProfile profile = SmallProfile();
  const auto near = [](double value) { return DoubleNear(value, 1e-7); };
  EXPECT_THAT(profile.EvictedFractions(0.0), ElementsAre(0.0, 0.0));
  EXPECT_THAT(profile.EvictedFractions(0.125),
              ElementsAre(near(0.05), near(0.2)));
  EXPECT_THAT(profile.EvictedFractions(0.25),
              ElementsAre(near(0.1), near(0.4)));
  EXPECT_THAT(profile.EvictedFractions(0.5),
              ElementsAre(near(0.25), near(0.75)));
  EXPECT_THAT(profile.EvictedFractions(0.75),
              ElementsAre(near(0.625), near(0.875)));
  EXPECT_THAT(profile.EvictedFractions(1.0), ElementsAre(1.0, 1.0));
}

TEST(LuKvProfileTest, ImportsKvPressArrays) {
  // One head is evicted as far as it goes before the other is touched.
  std::vector<float> curve;
  for (int i = 1; i <= 99; ++i) {
    const float rho = static_cast<float>(i) / 100.0f;
    curve.push_back(std::min(2.0f * rho, 1.0f));
    curve.push_back(std::max(2.0f * rho - 1.0f, 0.0f));
  }
  ASSERT_OK_AND_ASSIGN(const LuKvProfile profile,
                       LuKvProfileFromKvPress(curve, 1, 2));
  EXPECT_THAT(profile.Validate(), IsOk());
  EXPECT_EQ(profile.rho.size(), 101u);
  EXPECT_THAT(profile.EvictedFractions(0.0), ElementsAre(0.0, 0.0));
  EXPECT_THAT(profile.EvictedFractions(0.255),
              ElementsAre(DoubleNear(0.51, 1e-6), 0.0));
  EXPECT_THAT(profile.EvictedFractions(0.005),
              ElementsAre(DoubleNear(0.01, 1e-6), 0.0));
  EXPECT_THAT(profile.EvictedFractions(1.0), ElementsAre(1.0, 1.0));

  EXPECT_THAT(LuKvProfileFromKvPress(curve, 2, 2), StatusIs(kInvalid));
  EXPECT_THAT(LuKvProfileFromKvPress({}, 0, 2), StatusIs(kInvalid));
  EXPECT_THAT(LuKvProfileFromKvPress(curve, 1 << 20, 1 << 20),
              StatusIs(kInvalid));
  curve[5] = kNan;
  EXPECT_THAT(LuKvProfileFromKvPress(curve, 1, 2), StatusIs(kInvalid));
}

}  // namespace
}  // namespace blockmgr
