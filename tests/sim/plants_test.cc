// The honest proof that the simulator works: bugs that others have had are
// planted, and every one must be found.

#include <cstdlib>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/sim/run.h"
#include "tests/testing/plant_text.h"
#include "tests/testing/plants.h"

namespace blockmgr::sim {
namespace {

// Enough for the rarest: found after some dozens.
constexpr int32_t kMaxSeeds = 300;
constexpr int32_t kFirstSeed = 1;

std::vector<Plant> AllPlants() {
  const auto plants = ReadPlants(BLOCKMGR_PLANTS);
  EXPECT_TRUE(plants.ok()) << plants.status();
  return plants.ok() ? *plants : std::vector<Plant>();
}

// Whether the seeds that plants.txt names do not count: then each plant is
// searched for, which takes minutes.
bool Searches() {
  // NOLINTNEXTLINE(concurrency-mt-unsafe): nobody here changes the environment
  return std::getenv("BLOCKMGR_SEARCH_PLANTS") != nullptr;
}

void ExpectNothingFound(int32_t first, int32_t num) {
  const RangeResult result =
      RunRange({.first = first, .num = num, .steps = 500}, 60);
  ASSERT_FALSE(result.failure.has_value())
      << "seed " << result.failure->seed << ": " << result.failure->message;
}

// All seeds that may find a plant must pass without one: what is found must be
// the bug.
TEST(PlantsTest, NothingIsFoundWhereNothingIsPlanted) {
  if (Searches()) {
    ExpectNothingFound(kFirstSeed, kMaxSeeds);
    return;
  }
  std::set<int32_t> seeds;
  for (const Plant& plant : AllPlants()) seeds.insert(plant.seed);
  seeds.erase(0);
  EXPECT_FALSE(seeds.empty());
  for (const int32_t seed : seeds) ExpectNothingFound(seed, 1);
}

TEST(PlantsTest, EveryPlantHasAPlace) {
  EXPECT_GE(AllPlants().size(), 20u);
  EXPECT_THAT(ReadMissingPlants(BLOCKMGR_MISSING_PLANTS), testing::IsEmpty())
      << "the product has changed: write these anew in plants.txt";
}

class PlantTest : public testing::TestWithParam<size_t> {};

TEST_P(PlantTest, IsFound) {
  const Plant plant = AllPlants().at(GetParam());
  const auto number = static_cast<int32_t>(GetParam());
  const auto run = [number](int32_t first, int32_t num) {
    return RunRange({.first = first, .num = num, .steps = 500}, 60,
                    [number] { active_plant = number; });
  };
  RangeResult result;
  if (plant.seed > 0 && !Searches()) result = run(plant.seed, 1);
  if (!result.failure.has_value()) result = run(kFirstSeed, kMaxSeeds);
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
