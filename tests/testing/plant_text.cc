#include "tests/testing/plant_text.h"

#include <fstream>
#include <iterator>
#include <optional>
#include <utility>

#include <absl/status/status.h>
#include <absl/strings/ascii.h>
#include <absl/strings/match.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_replace.h>
#include <absl/strings/str_split.h>
#include <absl/strings/strip.h>

namespace blockmgr {
namespace {

// Text without white space, and where each character came from.
struct Dense {
  std::string text;
  std::vector<size_t> places;
};

Dense Squeeze(absl::string_view text) {
  Dense dense;
  for (size_t i = 0; i < text.size(); ++i) {
    if (absl::ascii_isspace(static_cast<unsigned char>(text[i]))) continue;
    dense.text.push_back(text[i]);
    dense.places.push_back(i);
  }
  return dense;
}

struct Place {
  std::string path;
  size_t begin = 0;
  size_t end = 0;
};

// Where the text occurs; nullopt unless exactly once.
std::optional<Place> FindOnce(const std::map<std::string, std::string>& sources,
                              absl::string_view text) {
  const std::string wanted = Squeeze(text).text;
  std::optional<Place> place;
  for (const auto& [path, source] : sources) {
    const Dense dense = Squeeze(source);
    for (size_t at = dense.text.find(wanted); at != std::string::npos;
         at = dense.text.find(wanted, at + 1)) {
      if (place.has_value() || wanted.empty()) return std::nullopt;
      place = {path, dense.places[at],
               dense.places[at + wanted.size() - 1] + 1};
    }
  }
  return place;
}

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

enum class Part { kHead, kFound, kPlanted };

absl::Status ParseLine(absl::string_view line, Part* part,
                       std::vector<Plant>* plants) {
  const auto wrong = [line](absl::string_view what) {
    return absl::InvalidArgumentError(
        absl::StrCat("plants: expected ", what, ", got '", line, "'"));
  };
  if (*part == Part::kHead) {
    if (line.empty() || absl::StartsWith(line, "#")) return absl::OkStatus();
    if (absl::ConsumePrefix(&line, "plant ")) {
      plants->emplace_back().name = std::string(line);
    } else if (plants->empty()) {
      return wrong("'plant NAME'");
    } else if (absl::ConsumePrefix(&line, "why ")) {
      plants->back().why = std::string(line);
    } else if (absl::ConsumePrefix(&line, "seed ")) {
      if (!absl::SimpleAtoi(line, &plants->back().seed)) return wrong("seed N");
    } else if (absl::ConsumePrefix(&line, "by ")) {
      plants->back().probes = absl::StrSplit(line, ' ');
    } else if (line == "<<<<") {
      plants->back().grafts.emplace_back();
      *part = Part::kFound;
    } else {
      return wrong("'plant', 'why', 'seed', 'by' or '<<<<'");
    }
    return absl::OkStatus();
  }
  Graft& graft = plants->back().grafts.back();
  if (line == (*part == Part::kFound ? "====" : ">>>>")) {
    *part = *part == Part::kFound ? Part::kPlanted : Part::kHead;
    return absl::OkStatus();
  }
  if (line == "<<<<" || line == "====" || line == ">>>>") {
    return wrong("the other mark");
  }
  absl::StrAppend(*part == Part::kFound ? &graft.found : &graft.planted, line,
                  "\n");
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<Plant>> ParsePlants(absl::string_view text) {
  std::vector<Plant> plants;
  Part part = Part::kHead;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    const absl::Status status = ParseLine(line, &part, &plants);
    if (!status.ok()) return status;
  }
  if (part != Part::kHead) {
    return absl::InvalidArgumentError("plants: expected '>>>>', got the end");
  }
  for (const Plant& plant : plants) {
    bool is_switched = !plant.grafts.empty();
    for (const Graft& graft : plant.grafts) {
      is_switched &= absl::StrContains(graft.planted, "PLANTED");
    }
    if (!is_switched) {
      return absl::InvalidArgumentError(absl::StrCat(
          "plant ", plant.name, ": expected grafts with PLANTED, got others"));
    }
  }
  return plants;
}

absl::StatusOr<std::vector<Plant>> ReadPlants(const std::string& path) {
  return ParsePlants(ReadFile(path));
}

std::vector<std::string> ReadMissingPlants(const std::string& path) {
  return absl::StrSplit(ReadFile(path), '\n', absl::SkipEmpty());
}

void GraftPlants(const std::vector<Plant>& plants,
                 std::map<std::string, std::string>* sources,
                 std::vector<std::string>* missing) {
  for (size_t i = 0; i < plants.size(); ++i) {
    const std::string is_on = absl::StrCat("(::blockmgr::IsPlanted(", i, "))");
    std::map<std::string, std::string> grafted = *sources;
    bool found = true;
    for (const Graft& graft : plants[i].grafts) {
      const std::optional<Place> place = FindOnce(grafted, graft.found);
      found &= place.has_value();
      if (!found) break;
      std::string& source = grafted.at(place->path);
      source = absl::StrCat(
          source.substr(0, place->begin),
          absl::StripSuffix(
              absl::StrReplaceAll(graft.planted, {{"PLANTED", is_on}}), "\n"),
          source.substr(place->end));
    }
    if (found) {
      *sources = std::move(grafted);
    } else {
      missing->push_back(plants[i].name);
    }
  }
}

}  // namespace blockmgr
