#include "tests/testing/plant_text.h"

#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace blockmgr {
namespace {

using ::testing::ElementsAre;

constexpr char kPlants[] = R"(# a comment
plant off_by_one
why somebody's
seed 7
by one two
<<<<
if (a < b)
====
if (a < b + (PLANTED ? 1 : 0))
>>>>
plant gone
<<<<
nowhere
====
PLANTED
>>>>
)";

TEST(PlantTextTest, PlantsWhereTheTextIsOnce) {
  const auto plants = ParsePlants(kPlants);
  ASSERT_TRUE(plants.ok()) << plants.status();
  EXPECT_EQ(plants->at(0).why, "somebody's");
  EXPECT_EQ(plants->at(0).seed, 7);
  EXPECT_THAT(plants->at(0).probes, ElementsAre("one", "two"));
  std::map<std::string, std::string> sources = {
      {"x.cc", "  if (a <\n      b) return;\n"}, {"y.cc", "other\n"}};
  std::vector<std::string> missing;
  GraftPlants(*plants, &sources, &missing);
  EXPECT_EQ(sources["x.cc"],
            "  if (a < b + ((::blockmgr::IsPlanted(0)) ? 1 : 0)) "
            "return;\n");
  EXPECT_THAT(missing, ElementsAre("gone"));
}

TEST(PlantTextTest, PlantsNothingWhereTheTextIsTwice) {
  const auto plants = ParsePlants(kPlants);
  ASSERT_TRUE(plants.ok()) << plants.status();
  std::map<std::string, std::string> sources = {{"x.cc", "if (a < b) c();\n"},
                                                {"y.cc", "if (a<b) d();\n"}};
  const auto before = sources;
  std::vector<std::string> missing;
  GraftPlants(*plants, &sources, &missing);
  EXPECT_EQ(sources, before);
  EXPECT_THAT(missing, ElementsAre("off_by_one", "gone"));
}

TEST(PlantTextTest, RejectsWhatIsNoPlant) {
  EXPECT_FALSE(ParsePlants("<<<<\n").ok());
  EXPECT_FALSE(ParsePlants("plant a\n").ok());
  EXPECT_FALSE(ParsePlants("plant a\n<<<<\nx\n====\ny\n>>>>\n").ok());
  EXPECT_FALSE(ParsePlants("plant a\n<<<<\nx\n>>>>\n").ok());
  EXPECT_FALSE(ParsePlants("plant a\n<<<<\nx\n====\nPLANTED\n").ok());
}

}  // namespace
}  // namespace blockmgr
