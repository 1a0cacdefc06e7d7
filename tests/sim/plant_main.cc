// plant_sources PLANTS OUT_DIR MISSING SOURCE..: copies the sources into
// OUT_DIR with all bugs of PLANTS written into them, and names those that found
// no place in the file MISSING, one per line.

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include <absl/strings/str_cat.h>

#include "tests/sim/plant_text.h"

namespace blockmgr::sim {
namespace {

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// An unchanged file keeps its time, and is not compiled again.
void WriteFile(const std::filesystem::path& path, const std::string& text) {
  if (std::filesystem::exists(path) && ReadFile(path.string()) == text) return;
  std::ofstream(path) << text;
}

int Main(const std::vector<std::string>& words) {
  if (words.size() < 4) {
    std::fprintf(stderr,
                 "usage: plant_sources PLANTS OUT_DIR MISSING FILE..\n");
    return 2;
  }
  const auto plants = ParsePlants(ReadFile(words[0]));
  if (!plants.ok()) {
    std::fprintf(stderr, "%s\n", plants.status().ToString().c_str());
    return 1;
  }
  std::map<std::string, std::string> sources;
  for (size_t i = 3; i < words.size(); ++i) {
    sources[words[i]] = ReadFile(words[i]);
    if (sources[words[i]].empty()) {
      std::fprintf(stderr, "cannot read %s\n", words[i].c_str());
      return 1;
    }
  }
  std::vector<std::string> missing;
  GraftPlants(*plants, &sources, &missing);
  const std::filesystem::path folder = words[1];
  std::filesystem::create_directories(folder);
  for (const auto& [path, text] : sources) {
    WriteFile(folder / std::filesystem::path(path).filename(),
              absl::StrCat("#include \"tests/sim/plants.h\"\n", text));
  }
  std::string names;
  for (const std::string& name : missing) absl::StrAppend(&names, name, "\n");
  std::ofstream(words[2]) << names;
  return 0;
}

}  // namespace
}  // namespace blockmgr::sim

int main(int argc, char** argv) {
  return blockmgr::sim::Main({argv + 1, argv + argc});
}
