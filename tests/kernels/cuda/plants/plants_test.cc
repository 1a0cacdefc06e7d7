// Bugs planted in the kernels (plants.txt): the emulator, or a comparison with
// the CPU or float64, notices each.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/kernels/cuda/plants/plant_probes.h"
#include "tests/testing/plant_text.h"
#include "tests/testing/plants.h"

namespace blockmgr {
namespace {

std::vector<Plant> AllPlants() {
  const auto plants = ReadPlants(BLOCKMGR_PLANTS);
  EXPECT_TRUE(plants.ok()) << plants.status();
  return plants.ok() ? *plants : std::vector<Plant>();
}

std::vector<PlantProbe> AllProbes() {
  std::vector<PlantProbe> probes = RowProbes();
  for (const PlantProbe& probe : AttentionProbes()) probes.push_back(probe);
  return probes;
}

// Returns the complaint of a probe while one plant is on.
std::string FindPlant(const std::string& probe_name, int32_t plant) {
  for (const PlantProbe& probe : AllProbes()) {
    if (probe.name != probe_name) continue;
    active_plant = plant;
    const std::string found = probe.find();
    active_plant = kNoPlant;
    return found;
  }
  ADD_FAILURE() << "no probe " << probe_name;
  return "";
}

TEST(KernelPlantsTest, EveryPlantHasAPlace) {
  EXPECT_GE(AllPlants().size(), 85u);
  EXPECT_THAT(ReadMissingPlants(BLOCKMGR_MISSING_PLANTS), testing::IsEmpty())
      << "the kernels have changed: write these anew in plants.txt";
}

class KernelPlantTest : public testing::TestWithParam<std::size_t> {};

TEST_P(KernelPlantTest, IsFound) {
  const Plant plant = AllPlants().at(GetParam());
  EXPECT_THAT(plant.probes, testing::Not(testing::IsEmpty()));
  for (const std::string& probe : plant.probes) {
    const std::string found =
        FindPlant(probe, static_cast<int32_t>(GetParam()));
    EXPECT_NE(found, "") << probe;
    RecordProperty(probe, found);
  }
}

INSTANTIATE_TEST_SUITE_P(All, KernelPlantTest,
                         testing::Range(std::size_t{0}, AllPlants().size()),
                         [](const testing::TestParamInfo<std::size_t>& plant) {
                           return AllPlants().at(plant.param).name;
                         });

// Else a complaint about a planted bug could be one about something else.
class PlantProbeTest : public testing::TestWithParam<PlantProbe> {};

TEST_P(PlantProbeTest, FindsNothingWhereNothingIsPlanted) {
  EXPECT_EQ(GetParam().find(), "");
}

INSTANTIATE_TEST_SUITE_P(All, PlantProbeTest, testing::ValuesIn(AllProbes()),
                         [](const testing::TestParamInfo<PlantProbe>& probe) {
                           return probe.param.name;
                         });

}  // namespace
}  // namespace blockmgr
