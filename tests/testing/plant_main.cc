// plant_sources PLANTS OUT_DIR MISSING ROOT SOURCE..: copies the sources, paths
// from ROOT, to the same paths from OUT_DIR with all bugs of PLANTS written
// into them, and names those that found no place in the file MISSING, one per
// line.

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include <absl/strings/str_cat.h>

#include "tests/testing/plant_text.h"

namespace blockmgr {
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
  if (words.size() < 5) {
    std::fprintf(stderr,
                 "usage: plant_sources PLANTS OUT_DIR MISSING ROOT FILE..\n");
    return 2;
  }
  const auto plants = ReadPlants(words[0]);
  if (!plants.ok()) {
    std::fprintf(stderr, "%s\n", plants.status().ToString().c_str());
    return 1;
  }
  std::map<std::string, std::string> sources;
  const std::filesystem::path root = words[3];
  for (size_t i = 4; i < words.size(); ++i) {
    sources[words[i]] = ReadFile((root / words[i]).string());
    if (sources[words[i]].empty()) {
      std::fprintf(stderr, "cannot read %s\n", words[i].c_str());
      return 1;
    }
  }
  std::vector<std::string> missing;
  GraftPlants(*plants, &sources, &missing);
  for (const auto& [path, text] : sources) {
    const std::filesystem::path copy = std::filesystem::path(words[1]) / path;
    std::filesystem::create_directories(copy.parent_path());
    WriteFile(copy,
              absl::StrCat("#include \"tests/testing/plants.h\"\n", text));
  }
  std::string names;
  for (const std::string& name : missing) absl::StrAppend(&names, name, "\n");
  std::ofstream(words[2]) << names;
  return 0;
}

}  // namespace
}  // namespace blockmgr

int main(int argc, char** argv) {
  return blockmgr::Main({argv + 1, argv + argc});
}
