// Reading plants.txt and writing bugs into source text.
#ifndef TESTS_TESTING_PLANT_TEXT_H_
#define TESTS_TESTING_PLANT_TEXT_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <absl/status/statusor.h>
#include <absl/strings/string_view.h>

namespace blockmgr {

// In `found`, which must occur exactly once in all sources, white space aside,
// the bug is `planted`; there PLANTED says whether it is on.
struct Graft {
  std::string found;
  std::string planted;
};

struct Plant {
  std::string name;
  std::string why;                  // whose bug it was, or what it does
  int32_t seed = 0;                 // found it; 0: not known
  std::vector<std::string> probes;  // find it
  std::vector<Graft> grafts;
};

// tests/sim/plants.txt explains the form at its top. Errors name the line.
absl::StatusOr<std::vector<Plant>> ParsePlants(absl::string_view text);
absl::StatusOr<std::vector<Plant>> ReadPlants(const std::string& path);

// Writes all plants into the sources (text by path). A plant whose text is not
// found exactly once is left out and named in `missing`, so that a change of
// the product never breaks the build, only the test that asks for the plant.
void GraftPlants(const std::vector<Plant>& plants,
                 std::map<std::string, std::string>* sources,
                 std::vector<std::string>* missing);

// The lines of the file that names those left out.
std::vector<std::string> ReadMissingPlants(const std::string& path);

}  // namespace blockmgr

#endif  // TESTS_TESTING_PLANT_TEXT_H_
