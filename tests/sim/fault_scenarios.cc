#include "tests/sim/fault_scenarios.h"

#include <ostream>
#include <string>
#include <utility>
#include <vector>

namespace blockmgr::sim {

void PrintTo(const Scenario& scenario, std::ostream* out) {
  *out << scenario.name << ": " << scenario.script;
}

namespace {

Scenario Make(std::string name, const ModelLayout& layout,
              int32_t steps_in_flight, std::string script) {
  return {.name = std::move(name),
          .layout = layout,
          .options = ScriptOptions(steps_in_flight),
          .script = std::move(script)};
}

// What happens without eviction.
std::vector<Scenario> PlainScenarios() {
  return {
      Make("one_alone", ScriptLayout(4, 8), 1, "submit:a,9,4 drain"),
      Make("one_token", ScriptLayout(1, 4), 1, "submit:a,1,1 drain"),
      Make("two_together", ScriptLayout(4, 16), 1,
           "submit:a,9,4,1 submit:b,6,7,2 issue answer issue answer drain"),
      Make("four_in_flight", ScriptLayout(2, 30), 4,
           "submit:a,9,9,1 submit:b,6,7,2 issue:4 answer:2 issue:2 drain"),
      Make("chunks", ScriptLayout(4, 40), 2,
           "submit:a,130,2,1 submit:b,20,3,2 issue:2 answer issue answer:2"),
      Make("shared_prefix", ScriptLayout(4, 16), 1,
           "submit:a,12,3 drain submit:b,20,3 submit:c,16,3 drain"),
      Make("hit_of_all_but_one", ScriptLayout(4, 16), 1,
           "submit:a,9,2 drain submit:b,9,2 drain"),
      Make("hit_while_shared", ScriptLayout(2, 24), 2,
           "submit:a,8,8 issue:2 answer:2 submit:b,12,6 issue:2 answer:2"),
      Make("reclaim", ScriptLayout(2, 8), 1,
           "submit:a,8,3,1 drain submit:b,8,3,2 drain submit:c,8,3,1 drain"),
      Make("forked", ScriptLayout(4, 24), 1,
           "submit:a,10,12 issue:3 answer:3 issue answer issue answer "
           "fork:b,a,3,9 fork:c,a,1,4 drain"),
      Make("forked_in_flight", ScriptLayout(4, 24), 3,
           "submit:a,10,12 issue answer issue:3 answer:2 fork:b,a,2,9 issue:2 "
           "cancel:a drain"),
      Make("forks_preempted", ScriptLayout(2, 12), 2,
           "submit:a,6,9 fork:b,a,0,9 fork:c,a,0,9 drain"),
      Make("blocks_lost", ScriptLayout(4, 16), 1,
           "submit:a,13,6,1 submit:b,9,6,2 issue answer issue lose_blocks:a,2 "
           "answer drain"),
      Make("blocks_lost_in_flight", ScriptLayout(2, 24), 4,
           "submit:a,9,9 issue answer submit:b,12,6 issue:3 answer "
           "lose_blocks:a,1 issue answer:3 drain"),
      Make("preempted", ScriptLayout(2, 8), 1,
           "submit:a,6,8,1 submit:b,6,8,2 drain"),
      Make("preempted_in_flight", ScriptLayout(1, 12), 3,
           "submit:a,4,8,1 submit:b,4,8,2 submit:c,4,4,3 issue:3 drain"),
      Make("cancelled_early", ScriptLayout(4, 16), 2,
           "submit:a,9,4,1 submit:b,9,4,2 cancel:a issue:2 drain"),
      Make("cancelled_late", ScriptLayout(4, 16), 2,
           "submit:a,9,4,1 submit:b,9,4,2 issue:2 cancel:b answer issue drain"),
      Make("cancelled_twice", ScriptLayout(4, 16), 1,
           "submit:a,9,4,1 issue answer cancel:a cancel:a submit:a,5,2 drain"),
      Make("engine_lost", ScriptLayout(4, 16), 2,
           "submit:a,9,4,1 submit:b,9,4,2 issue:2 lose issue:2 answer drain"),
      Make("reset_in_use", ScriptLayout(4, 16), 1,
           "submit:a,12,4 issue answer reset submit:b,12,4 issue drain reset"),
  };
}

std::vector<Scenario> EvictingScenarios() {
  std::vector<Scenario> scenarios = {
      Make("after_prefill", ScriptLayout(4, 16), 1,
           "submit:a,20,6,1,after drain"),
      Make("after_prefill_in_flight", ScriptLayout(2, 30), 4,
           "submit:a,20,6,1,after submit:b,17,6,2,after issue:4 drain"),
      Make("window", ScriptLayout(4, 20), 2,
           "submit:a,20,6,1,snap drain submit:b,22,6,1,snap drain"),
      Make("every_chunk", ScriptLayout(4, 12), 1,
           "submit:a,40,5,1,every drain"),
      Make("every_chunk_in_flight", ScriptLayout(2, 24), 3,
           "submit:a,40,5,1,every submit:b,30,5,2,every issue:3 drain"),
      Make("decode", ScriptLayout(4, 12), 1, "submit:a,9,60,1,decode drain"),
      Make("decode_in_flight", ScriptLayout(2, 24), 3,
           "submit:a,9,50,1,decode submit:b,12,40,2,decode issue:3 drain"),
      Make("region_forked", ScriptLayout(4, 24), 2,
           "submit:a,13,9,1,after issue answer issue:2 answer:2 issue:2 "
           "answer:2 fork:b,a,4,9 issue answer evict:b,4 drain"),
      Make("region_lost", ScriptLayout(4, 24), 2,
           "submit:a,13,9,1,after issue answer issue:2 answer:2 issue "
           "lose_blocks:a,0 answer drain"),
      Make("pressure", ScriptLayout(4, 14), 2,
           "submit:a,9,40,1,pressure submit:b,9,40,2,pressure drain"),
      Make("pressure_and_plain", ScriptLayout(2, 26), 3,
           "submit:a,20,30,1,pressure submit:b,9,30,2 issue:3 drain"),
      Make("commanded", ScriptLayout(2, 16), 1,
           "submit:a,12,9 issue answer evict:a,2 issue answer drain"),
      Make("commanded_twice", ScriptLayout(2, 24), 2,
           "submit:a,12,20 issue:2 answer:2 evict:a,4 issue:2 answer:2 "
           "evict:a,2 issue:2 answer:2 drain"),
      Make("commanded_and_shared", ScriptLayout(2, 24), 1,
           "submit:a,12,9 issue answer submit:b,14,9 issue answer evict:a,2 "
           "issue answer drain"),
      Make("commanded_and_cancelled", ScriptLayout(2, 24), 2,
           "submit:a,12,9 issue answer evict:a,2 issue cancel:a answer drain"),
      Make("commanded_and_preempted", ScriptLayout(1, 16), 1,
           "submit:a,5,12,1 submit:b,5,9,2 issue answer evict:b,2 issue:1 "
           "answer drain"),
      Make("commanded_and_lost", ScriptLayout(2, 24), 2,
           "submit:a,12,9 issue answer evict:a,2 issue lose drain"),
      Make("cancelled_with_order", ScriptLayout(4, 16), 2,
           "submit:a,20,6,1,after issue cancel:a submit:b,20,6,1,after drain"),
      Make("evicting_and_plain", ScriptLayout(4, 24), 2,
           "submit:a,20,6,1,after submit:b,24,6,1 submit:c,8,9,2 drain"),
      Make("many_heads", ScriptLayout(2, 24, 3, 4), 2,
           "submit:a,20,6,1,after submit:b,17,6,2,snap issue:2 drain"),
  };
  for (const char* name : {"in_place", "in_place_twice"}) {
    Scenario scenario =
        Make(name, ScriptLayout(2, 14, 2, 2), 2,
             "submit:a,20,6,1,after submit:b,6,6,2 issue:2 answer evict:a,2 "
             "evict:b,2 issue answer drain");
    scenario.options.compaction = CompactionPreference::kInPlace;
    if (scenario.name == "in_place_twice") {
      scenario.script =
          "submit:a,12,14 issue:2 answer:2 evict:a,4 issue:2 answer:2 "
          "evict:a,2 issue:2 answer:2 drain";
    }
    scenarios.push_back(scenario);
  }
  return scenarios;
}

// Orders next to what else sequences and models may have.
std::vector<Scenario> MoreEvictingScenarios() {
  ModelLayout windows = ScriptLayout(4, 40);
  windows.group_windows = {8};
  ModelLayout shards = ScriptLayout(2, 30, 1, 4);
  shards.num_shards = 2;
  std::vector<Scenario> scenarios = {
      Make("pressure_alone", ScriptLayout(4, 14), 1,
           "submit:a,9,40,1,pressure submit:b,9,40,2,pressure drain"),
      Make("commanded_twice_alone", ScriptLayout(2, 24), 1,
           "submit:a,12,20 issue answer evict:a,4 issue answer evict:a,2 issue "
           "answer drain"),
      Make("commanded_alone_and_cancelled", ScriptLayout(2, 24), 1,
           "submit:a,12,9 submit:b,8,9 issue answer evict:a,2 issue answer "
           "cancel:b drain"),
      Make("commanded_with_shared_heads", ScriptLayout(2, 30, 3, 4), 1,
           "submit:a,12,9 submit:b,16,9 issue answer evict:b,2 issue answer "
           "drain"),
      Make("commanded_together", ScriptLayout(2, 24), 1,
           "submit:a,12,9,1 submit:b,12,9,2 issue answer evict:a,2 evict:b,2 "
           "issue answer drain"),
      Make("commanded_fork", ScriptLayout(2, 30), 1,
           "submit:a,12,12 issue answer issue answer fork:b,a,1,9 issue answer "
           "evict:b,2 issue answer drain"),
      Make("commanded_parent", ScriptLayout(2, 30), 1,
           "submit:a,12,12 issue answer issue answer fork:b,a,1,9 issue answer "
           "evict:a,2 issue answer drain"),
      Make("long_prompt", ScriptLayout(4, 40), 2,
           "submit:a,130,2,1,every submit:b,20,3,2 issue:2 answer issue "
           "answer:2"),
      Make("windows_after_prefill", windows, 1,
           "submit:a,20,6,1,after submit:b,13,9,2 drain"),
      Make("windows_commanded", windows, 2,
           "submit:a,20,9 issue:2 answer:2 evict:a,8 issue:2 answer drain"),
      Make("windows_commanded_alone", windows, 1,
           "submit:a,20,9 issue answer evict:a,8 issue answer drain"),
      Make("shards_after_prefill", shards, 2,
           "submit:a,20,6,1,after submit:b,17,6,2,after issue:2 drain"),
      Make("shards_commanded", shards, 1,
           "submit:a,12,9 issue answer evict:a,2 issue answer drain"),
      Make("equal_regions", ScriptLayout(2, 30), 1,
           "submit:a,12,6,1,shared submit:b,12,6,1,shared issue answer "
           "cancel:nobody drain"),
      Make("commanded_and_swapped", ScriptLayout(2, 14), 1,
           "submit:a,10,12,1 submit:b,10,12,2 issue answer evict:a,4 issue "
           "answer drain"),
  };
  scenarios.back().options.engine.num_host_blocks = 12;
  scenarios.back().options.admission = AdmissionPolicy::kMaxUtilization;
  return scenarios;
}

// Windows are evicted from, too, until the regions fall out of them.
std::vector<Scenario> WindowEvictingScenarios() {
  ModelLayout layout = ScriptLayout(4, 60);
  layout.group_windows = {16, 24};
  std::vector<Scenario> scenarios = {
      Make("window_regions", layout, 1,
           "submit:a,20,24,1,after_windows submit:b,13,9,2 drain"),
      Make("window_regions_in_flight", layout, 3,
           "submit:a,20,40,1,decode_windows submit:b,26,20,2,after_windows "
           "issue:3 drain"),
      Make("window_regions_in_place", layout, 2,
           "submit:a,20,40,1,decode_windows drain"),
      Make("window_regions_forked", layout, 1,
           "submit:a,20,24,1,after_windows issue answer issue answer "
           "fork:b,a,1,9 issue answer cancel:a drain"),
      Make("window_regions_lost", layout, 2,
           "submit:a,20,24,1,after_windows issue:2 answer:2 issue "
           "lose_blocks:a,1 answer drain"),
      Make("window_regions_under_pressure", ScriptLayout(4, 64), 2,
           "submit:a,13,44,1,pressure_windows submit:b,9,40,2,pressure_windows "
           "drain"),
      Make("window_regions_shared", layout, 2,
           "submit:a,21,12,1,shared_windows issue:2 answer:2 "
           "submit:b,21,9,1,shared_windows submit:c,21,9,1,shared_windows "
           "issue:2 answer:2 cancel:a drain submit:d,21,3,1,shared_windows "
           "drain"),
      Make("window_regions_shared_and_lost", layout, 1,
           "submit:a,21,12,1,shared_windows issue answer issue answer "
           "submit:b,21,9,1,shared_windows issue lose_blocks:b,1 answer drain"),
  };
  for (Scenario& scenario : scenarios) {
    scenario.options.engine.supports_window_evictions = true;
  }
  scenarios[2].options.compaction = CompactionPreference::kInPlace;
  scenarios[5].layout.group_windows = layout.group_windows;
  return scenarios;
}

// Preempted into host memory, with room for all of it or for one.
std::vector<Scenario> SwappingScenarios() {
  std::vector<Scenario> scenarios = {
      Make("swapped", ScriptLayout(2, 8), 1,
           "submit:a,6,8,1 submit:b,6,8,2 drain"),
      Make("swapped_in_flight", ScriptLayout(1, 12), 3,
           "submit:a,4,8,1 submit:b,4,8,2 submit:c,4,4,3 issue:3 drain"),
      Make("region_swapped", ScriptLayout(2, 16, 2, 2), 2,
           "submit:a,16,20,1,after submit:b,16,20,2,after issue:2 drain"),
      Make("swapped_and_cancelled", ScriptLayout(2, 8), 1,
           "submit:a,6,8,1 submit:b,6,8,2 issue answer issue answer issue "
           "answer cancel:b drain"),
      Make("swapped_and_cancelled_twice", ScriptLayout(2, 8), 1,
           "submit:a,6,8,1 submit:b,6,8,2 issue answer issue answer issue "
           "answer issue answer issue answer cancel:b cancel:b drain"),
      Make("swapped_in_turn", ScriptLayout(2, 12), 1,
           "submit:a,6,14,1 submit:b,6,14,2 submit:c,6,14,3 drain"),
      Make("swapped_behind_a_prefix", ScriptLayout(2, 16), 1,
           "submit:a,10,12 submit:b,14,12 submit:c,10,12,2 drain")};
  for (Scenario& scenario : scenarios) {
    scenario.options.engine.num_host_blocks =
        scenario.name == "swapped" || scenario.name == "swapped_in_turn" ? 30
                                                                         : 8;
    scenario.options.admission = AdmissionPolicy::kMaxUtilization;
  }
  return scenarios;
}

// The engine has up to four drafts after every token.
std::vector<Scenario> SpeculatingScenarios() {
  std::vector<Scenario> scenarios = {
      Make("drafts", ScriptLayout(4, 16), 1, "submit:a,9,20 drain"),
      Make("drafts_in_flight", ScriptLayout(2, 40), 4,
           "submit:a,9,20,1 submit:b,6,20,2 submit:c,14,9,3 issue:4 drain"),
      Make("drafts_and_shared_prefix", ScriptLayout(2, 40), 2,
           "submit:a,9,12 drain submit:b,14,12 submit:c,9,12 drain"),
      Make("drafts_forked", ScriptLayout(4, 40), 2,
           "submit:a,10,30 issue:2 answer:2 issue answer issue fork:b,a,2,20 "
           "answer issue:2 answer:2 fork:c,a,1,9 drain"),
      Make("drafts_preempted", ScriptLayout(2, 14), 2,
           "submit:a,6,14,1 submit:b,6,14,2 drain"),
      Make("drafts_lost", ScriptLayout(2, 40), 2,
           "submit:a,9,20,1 submit:b,9,20,2 issue:2 answer:2 issue "
           "lose_blocks:a,3 answer issue answer issue lose drain"),
      Make("drafts_cancelled", ScriptLayout(2, 40), 2,
           "submit:a,9,20,1 submit:b,9,20,2 issue:2 answer:2 issue cancel:a "
           "answer drain"),
      Make("drafts_decode", ScriptLayout(4, 24), 2,
           "submit:a,9,60,1,decode submit:b,20,9,2,snap drain"),
      Make("drafts_commanded", ScriptLayout(2, 40), 2,
           "submit:a,12,20 issue answer issue evict:a,2 answer issue answer "
           "drain"),
  };
  for (Scenario& scenario : scenarios) {
    scenario.options.num_speculative_tokens = 4;
  }
  return scenarios;
}

}  // namespace

std::vector<Scenario> FaultScenarios() {
  std::vector<Scenario> all;
  for (const auto make :
       {PlainScenarios, SwappingScenarios, EvictingScenarios,
        MoreEvictingScenarios, WindowEvictingScenarios, SpeculatingScenarios}) {
    for (Scenario& scenario : make()) all.push_back(std::move(scenario));
  }
  return all;
}

}  // namespace blockmgr::sim
