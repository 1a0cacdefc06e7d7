// Plans of a daemon that the reference engine's bookkeeping is told.
#include <cstdint>
#include <string>
#include <vector>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>

#include "blockmgr/step_plan.h"
#include "engine/reference/sim_engine.h"
#include "proto/blockmgr/v1/engine.pb.h"
#include "tests/fuzz/daemon.h"
#include "tests/fuzz/fuzz_target.h"
#include "wire/plan_wire.h"

namespace blockmgr::fuzz {
namespace {

// As MakeCommands attaches them.
ModelLayout Layout(uint8_t choices) {
  ModelLayout layout{.num_layers = 2,
                     .num_heads = 2,
                     .num_q_heads = 4,
                     .head_dim = 8,
                     .page_size = 4,
                     .dtype = DType::kFloat32,
                     .num_blocks = 40};
  if (choices % 2 == 1) layout.group_windows = {20};
  if (choices / 2 % 2 == 1) layout.num_shards = 2;
  return layout;
}

}  // namespace

void RunPlans(absl::string_view input) {
  if (input.empty()) return;
  SimEngine engine(Layout(static_cast<uint8_t>(input.front())), SimModel{}, 1,
                   16);
  StepPlan plan;
  StepResult result;
  for (const absl::string_view part :
       absl::StrSplit(input.substr(1), kPartEnd)) {
    v1::StepPlan proto;
    if (!proto.ParseFromArray(part.data(), static_cast<int>(part.size()))) {
      continue;
    }
    if (FromProto(proto, &plan).ok()) {
      // What is refused changes nothing: the next may be right.
      (void)engine.TryRun(plan, &result);
    }
  }
}

std::vector<std::string> MakePlans() {
  std::vector<std::string> seeds;
  for (const std::string& commands : MakeCommands()) {
    std::vector<std::string> parts;
    std::vector<StepPlan> plans;
    Play(commands, &plans);
    for (const StepPlan& plan : plans) {
      v1::StepPlan proto;
      ToProto(plan, &proto);
      parts.push_back(proto.SerializeAsString());
    }
    for (const char layout : {'\0', '\1', '\2'}) {
      seeds.push_back(
          absl::StrCat(std::string(1, layout), absl::StrJoin(parts, kPartEnd)));
    }
  }
  return seeds;
}

}  // namespace blockmgr::fuzz
