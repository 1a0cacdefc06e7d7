// Reading plants.txt and writing bugs into source text.
#ifndef TESTS_SIM_PLANT_TEXT_H_
#define TESTS_SIM_PLANT_TEXT_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <absl/status/statusor.h>
#include <absl/strings/string_view.h>

namespace blockmgr::sim {

// In `found`, which must occur exactly once in all sources, white space aside,
// the bug is `planted`; there PLANTED says whether it is on.
struct Graft {
  std::string found;
  std::string planted;
};

struct Plant {
  std::string name;
  std::string why;  // whose bug it was
  int32_t seed = 0;  // found it; 0: not known
  std::vector<Graft> grafts;
};

// The form is explained at the top of plants.txt. Errors name the line.
absl::StatusOr<std::vector<Plant>> ParsePlants(absl::string_view text);

// Writes all plants into the sources (text by path). A plant whose text is not
// found exactly once is left out and named in `missing`, so that a change of
// the product never breaks the build, only the test that asks for the plant.
void GraftPlants(const std::vector<Plant>& plants,
                 std::map<std::string, std::string>* sources,
                 std::vector<std::string>* missing);

}  // namespace blockmgr::sim

#endif  // TESTS_SIM_PLANT_TEXT_H_
