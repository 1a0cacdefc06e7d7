#include "tests/sim/run.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <utility>

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>
#include <absl/strings/strip.h>

#include "blockmgr/base/status_macros.h"
#include "tests/sim/world.h"

namespace blockmgr::sim {
namespace {

// Steps are rare where engines are gone for long; a run that needs more events
// than this for one has come to a standstill.
constexpr int64_t kMaxEventsPerStep = 1000;

constexpr char kReaches[] = "reaches ";

Random EventStream(int32_t seed) {
  return Random(0xE7E0000000000000ull ^ static_cast<uint64_t>(seed));
}

void Rest(World* world) {
  world->Heal();
  world->Quiesce();
}

}  // namespace

std::string FormatScript(const Script& script) {
  std::string text;
  for (const std::string& name : script.reaches) {
    absl::StrAppend(&text, kReaches, name, "\n");
  }
  absl::StrAppend(&text, FormatOptions(script.options), "\n",
                  FormatEvents(script.events));
  return text;
}

absl::StatusOr<Script> ParseScript(absl::string_view text) {
  const size_t gap = text.find("\n\n");
  if (gap == absl::string_view::npos) {
    return absl::InvalidArgumentError(
        "script: expected options, an empty line and events, got no empty "
        "line");
  }
  Script script;
  std::string options;
  for (absl::string_view line : absl::StrSplit(text.substr(0, gap), '\n')) {
    if (!absl::ConsumePrefix(&line, kReaches)) {
      absl::StrAppend(&options, line, "\n");
    } else if (RunCounts().Find(line).has_value()) {
      script.reaches.emplace_back(line);
    } else {
      return absl::InvalidArgumentError(absl::StrCat(
          "script: expected the name of a count, got '", line, "'"));
    }
  }
  BM_ASSIGN_OR_RETURN(script.options, ParseOptions(options));
  BM_ASSIGN_OR_RETURN(script.events, ParseEvents(text.substr(gap + 2)));
  BM_RETURN_IF_ERROR(script.options.Layout().Validate());
  BM_RETURN_IF_ERROR(script.options.Scheduler().Validate());
  if (script.options.num_clients < 1 || script.options.max_prompt < 1) {
    return absl::InvalidArgumentError(
        "script: expected at least one client and prompts of a token");
  }
  return script;
}

absl::StatusOr<Script> ReadScript(const std::string& path) {
  std::ifstream file(path);
  if (!file) return absl::NotFoundError(absl::StrCat("cannot read ", path));
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  return ParseScript(text);
}

Script ScriptOfSeed(int32_t seed, int64_t num_events) {
  Script script{.options = OptionsForSeed(seed), .events = {}};
  Random random = EventStream(seed);
  for (int64_t i = 0; i < num_events; ++i) {
    script.events.push_back(NextEvent(script.options, &random));
  }
  return script;
}

void RunScript(const Script& script, Report* report) {
  World world(script.options, report);
  for (const Event& event : script.events) world.Apply(event);
  Rest(&world);
  for (const std::string& name : script.reaches) {
    if (report->counts().Find(name) == 0) report->Fail("reached no ", name);
  }
}

void RunSeed(int32_t seed, int32_t steps, Report* report, int64_t* progress) {
  const SimOptions options = OptionsForSeed(seed);
  Random random = EventStream(seed);
  World world(options, report);
  const int64_t max_events = kMaxEventsPerStep * steps;
  int64_t num_events = 0;
  while (report->ok() &&
         report->counts().steps < static_cast<uint64_t>(steps)) {
    if (num_events == max_events) {
      report->Fail("expected ", steps, " steps of chaos in ", max_events,
                   " events, got ", report->counts().steps);
      break;
    }
    if (progress != nullptr) *progress = num_events + 1;
    world.Apply(NextEvent(options, &random));
    ++num_events;
  }
  Rest(&world);
}

Script Shrink(Script script, const std::function<bool(const Script&)>& fails,
              int32_t max_trials) {
  // Delta debugging (Zeller, Hildebrandt 2002), complements only: chunks are
  // left out, ever smaller ones, as long as the rest still fails.
  size_t chunk = std::max<size_t>(1, script.events.size() / 2);
  while (max_trials > 0 && !script.events.empty()) {
    bool shrank = false;
    for (size_t begin = 0; begin < script.events.size() && max_trials > 0;) {
      const size_t end = std::min(begin + chunk, script.events.size());
      Script candidate = script;
      const auto first = candidate.events.begin();
      candidate.events.erase(first + static_cast<ptrdiff_t>(begin),
                             first + static_cast<ptrdiff_t>(end));
      --max_trials;
      if (fails(candidate)) {
        script = std::move(candidate);
        shrank = true;
      } else {
        begin = end;
      }
    }
    if (chunk == 1 && !shrank) break;
    if (!shrank) chunk = std::max<size_t>(1, chunk / 2);
  }
  return script;
}

}  // namespace blockmgr::sim
