// The honest proof that the simulator works: bugs that others have had are
// planted, and every one must be found.

#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <absl/strings/str_split.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/sim/plant_text.h"
#include "tests/sim/plants.h"
#include "tests/sim/run.h"

namespace blockmgr::sim {
namespace {

// Enough for the rarest: found after some dozens.
constexpr int32_t kMaxSeeds = 300;
constexpr int32_t kFirstSeed = 1;

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<Plant> AllPlants() {
  const auto plants = ParsePlants(ReadFile(BLOCKMGR_PLANTS));
  EXPECT_TRUE(plants.ok()) << plants.status();
  return plants.ok() ? *plants : std::vector<Plant>();
}

// All seeds that may find a plant must pass without one: what is found must be
// the bug.
TEST(PlantsTest, NothingIsFoundWhereNothingIsPlanted) {
  const RangeResult result =
      RunRange({.first = kFirstSeed, .num = kMaxSeeds, .steps = 500}, 60);
  ASSERT_FALSE(result.failure.has_value())
      << "seed " << result.failure->seed << ": " << result.failure->message;
}

TEST(PlantsTest, EveryPlantHasAPlace) {
  EXPECT_GE(AllPlants().size(), 20u);
  const std::vector<std::string> missing = absl::StrSplit(
      ReadFile(BLOCKMGR_MISSING_PLANTS), '\n', absl::SkipEmpty());
  EXPECT_THAT(missing, testing::IsEmpty())
      << "the product has changed: write these anew in plants.txt";
}

class PlantTest : public testing::TestWithParam<size_t> {};

TEST_P(PlantTest, IsFound) {
  const Plant plant = AllPlants().at(GetParam());
  const auto number = static_cast<int32_t>(GetParam());
  const RangeResult result =
      RunRange({.first = kFirstSeed, .num = kMaxSeeds, .steps = 500}, 60,
               [number] { active_plant = number; });
  ASSERT_TRUE(result.failure.has_value())
      << plant.name << " was not found in " << kMaxSeeds
      << " seeds: " << plant.why;
  std::printf("%s: seed %d, after %lld events: %s\n", plant.name.c_str(),
              result.failure->seed,
              static_cast<long long>(result.failure->num_events),
              result.failure->message.c_str());
}

std::string NameOf(const testing::TestParamInfo<size_t>& plant) {
  return AllPlants().at(plant.param).name;
}

INSTANTIATE_TEST_SUITE_P(All, PlantTest,
                         testing::Range(size_t{0}, AllPlants().size()), NameOf);

}  // namespace
}  // namespace blockmgr::sim
