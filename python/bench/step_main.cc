// Times schedule and update of 256 decoding requests in C++, for step.py.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "blockmgr/base/check.h"
#include "blockmgr/base/model_layout.h"
#include "blockmgr/step_plan.h"
#include "scheduler/request.h"
#include "scheduler/scheduler.h"

namespace blockmgr {
namespace {

constexpr int32_t kNumRequests = 256;
constexpr int32_t kNumSteps = 4000;

// As step.py does it.
double MedianMicroseconds() {
  const ModelLayout layout = {.num_layers = 32,
                              .num_heads = 8,
                              .num_q_heads = 32,
                              .head_dim = 128,
                              .num_blocks = 200000};
  const auto scheduler = Scheduler::Create(layout, {});
  BM_CHECK(scheduler.ok());
  for (int32_t i = 0; i < kNumRequests; ++i) {
    Request request;
    request.id = std::to_string(i);
    request.prompt.assign(100, i);
    request.max_tokens = 5000;
    BM_CHECK((*scheduler)->Submit(std::move(request)).ok());
  }
  StepPlan plan;
  StepResult result;
  Effects effects;
  std::vector<double> times;
  while (times.size() < kNumSteps) {
    const auto begin = std::chrono::steady_clock::now();
    BM_CHECK((*scheduler)->Schedule(&plan));
    result.id = plan.id;
    result.sampled.resize(plan.slots.size());
    for (size_t i = 0; i < plan.slots.size(); ++i) {
      result.sampled[i] = plan.samples[i] != 0 ? 7 : -1;
    }
    effects.Clear();
    BM_CHECK((*scheduler)->Update(result, &effects).ok());
    const std::chrono::duration<double, std::micro> passed =
        std::chrono::steady_clock::now() - begin;
    if (std::ssize(effects.tokens) == kNumRequests) {
      times.push_back(passed.count());
    }
  }
  std::ranges::nth_element(times, times.begin() + kNumSteps / 2);
  return times[kNumSteps / 2];
}

}  // namespace
}  // namespace blockmgr

int main() { std::printf("%.2f\n", blockmgr::MedianMicroseconds()); }
