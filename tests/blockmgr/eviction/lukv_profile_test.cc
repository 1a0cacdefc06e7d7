#include "blockmgr/eviction/lukv_profile.h"

#include <cmath>
#include <limits>
#include <random>
#include <string>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "blockmgr/base/bits.h"
#include "tests/testing/sealed_bytes.h"
#include "tests/testing/status_matchers.h"

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

TEST(LuKvProfileTest, RefusesTruncationAtEveryByte) {
  const std::string file = EncodeLuKvProfile(SmallProfile());
  for (size_t size = 0; size < file.size(); ++size) {
    EXPECT_THAT(DecodeLuKvProfile(file.substr(0, size)), StatusIs(kInvalid))
        << size << " bytes";
    // Nor with a checksum that fits.
    if (size + 8 < file.size()) {
      EXPECT_THAT(DecodeLuKvProfile(Sealed(file.substr(0, size))),
                  StatusIs(kInvalid))
          << size << " bytes, sealed";
    }
  }
  EXPECT_THAT(DecodeLuKvProfile(file + "x"), StatusIs(kInvalid));
  EXPECT_THAT(
      DecodeLuKvProfile(Sealed(file.substr(0, file.size() - 8) + "abcd")),
      StatusIs(kInvalid, HasSubstr("bytes of rho and r")));
}

TEST(LuKvProfileTest, RefusesEveryFlippedBit) {
  const std::string file = EncodeLuKvProfile(SmallProfile());
  for (size_t i = 0; i < 8 * file.size(); ++i) {
    std::string flipped = file;
    flipped[i / 8] = static_cast<char>(flipped[i / 8] ^ (1 << (i % 8)));
    EXPECT_THAT(DecodeLuKvProfile(flipped), StatusIs(kInvalid)) << "bit " << i;
  }
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
  const std::string file = EncodeLuKvProfile(SmallProfile());
  const std::string body = file.substr(0, file.size() - 8);
  int num_valid = 0;
  for (uint64_t seed = 0; seed < 20'000; ++seed) {
    std::mt19937_64 random(SplitMix64(seed));
    std::string changed = body;
    const uint64_t num_changes = 1 + random() % 3;
    for (uint64_t i = 0; i < num_changes; ++i) {
      changed[random() % changed.size()] = static_cast<char>(random());
    }
    const auto decoded = DecodeLuKvProfile(Sealed(changed));
    if (!decoded.ok()) continue;
    ++num_valid;
    ASSERT_THAT(decoded->Validate(), IsOk()) << "seed " << seed;
    ASSERT_EQ(EncodeLuKvProfile(*decoded), Sealed(changed)) << "seed " << seed;
  }
  // Another letter in a text is as good.
  EXPECT_GT(num_valid, 0);
}

TEST(LuKvProfileTest, ValidateNamesTheFieldThatIsWrong) {
  const auto error = [](auto change) {
    LuKvProfile profile = SmallProfile();
    change(profile);
    return profile.Validate();
  };
  using P = LuKvProfile;
  EXPECT_THAT(error([](P& p) { p.num_layers = 0; }),
              StatusIs(kInvalid, HasSubstr("num_layers")));
  EXPECT_THAT(error([](P& p) { p.num_heads = 3; }),
              StatusIs(kInvalid, HasSubstr("24 values")));
  EXPECT_THAT(error([](P& p) { p.num_layers = p.num_heads = 1 << 30; }),
              StatusIs(kInvalid, HasSubstr("less than 2^31")));
  EXPECT_THAT(error([](P& p) { p.sinks = -1; }),
              StatusIs(kInvalid, HasSubstr("sinks")));
  EXPECT_THAT(error([](P& p) { p.window = -1; }),
              StatusIs(kInvalid, HasSubstr("window")));
  EXPECT_THAT(error([](P& p) { p.calibration_length = -5; }),
              StatusIs(kInvalid, HasSubstr("calibration_length")));
  EXPECT_THAT(error([](P& p) { p.num_queries = -1; }),
              StatusIs(kInvalid, HasSubstr("num_queries")));
  EXPECT_THAT(error([](P& p) { p.scorer.assign(1 << 20, 'x'); }),
              StatusIs(kInvalid, HasSubstr("scorer")));
  EXPECT_THAT(error([](P& p) { p.min_keep = kNan; }),
              StatusIs(kInvalid, HasSubstr("min_keep")));
  EXPECT_THAT(error([](P& p) { p.rho[0] = 0.1f; }),
              StatusIs(kInvalid, HasSubstr("rho[0]")));
  EXPECT_THAT(error([](P& p) { p.rho[2] = p.rho[1]; }),
              StatusIs(kInvalid, HasSubstr("rho[2]")));
  EXPECT_THAT(error([](P& p) { p.rho[1] = kNan; }),
              StatusIs(kInvalid, HasSubstr("rho[1]")));
  EXPECT_THAT(error([](P& p) { p.rho[3] = 0.9f; }),
              StatusIs(kInvalid, HasSubstr("rho[3]")));
  EXPECT_THAT(error([](P& p) { p.rho.clear(); }),
              StatusIs(kInvalid, HasSubstr("rho")));
  EXPECT_THAT(error([](P& p) { p.r[0] = 0.0001f; }),
              StatusIs(kInvalid, HasSubstr("r[0][0]")));
  EXPECT_THAT(error([](P& p) { p.r[2] = kNan; }),
              StatusIs(kInvalid, HasSubstr("r[1][0]")));
  EXPECT_THAT(error([](P& p) { p.r[5] = 1.01f; }),
              StatusIs(kInvalid, HasSubstr("r[2][1]")));
  EXPECT_THAT(error([](P& p) { p.r[4] = 0.05f; }),
              StatusIs(kInvalid, HasSubstr("at least 0.1")));
  EXPECT_THAT(error([](P& p) { p.r[5] = 0.76f; }),
              StatusIs(kInvalid, HasSubstr("mean of r[2]")));
  EXPECT_THAT(error([](P& p) { p.r[5] = 0.751f; }), IsOk());
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
