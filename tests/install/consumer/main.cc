// Uses one thing of each library, so that all of them are linked.
#include <cstdio>
#include <memory>

#include <absl/status/statusor.h>

#include <blockmgr/base/model_layout.h>
#include <blockmgr/kernels/backend.h>
#include <blockmgr/scheduler/scheduler.h>

#if CONSUMER_HAS_CUDA
bool UseCuda(const blockmgr::ModelLayout& layout);
#endif

int main() {
  const blockmgr::ModelLayout layout = {.num_layers = 2,
                                        .num_heads = 2,
                                        .num_q_heads = 4,
                                        .head_dim = 16,
                                        .num_blocks = 8};
  const absl::StatusOr<std::unique_ptr<blockmgr::Backend>> backend =
      blockmgr::CreateCpuBackend(layout);
  const absl::StatusOr<std::unique_ptr<blockmgr::Scheduler>> scheduler =
      blockmgr::Scheduler::Create(layout, {});
  if (!backend.ok() || !scheduler.ok()) return 1;
  blockmgr::StepPlan plan;
  const bool idle = !(*scheduler)->Schedule(&plan);
#if CONSUMER_HAS_CUDA
  if (!UseCuda(layout)) return 1;
#endif
  std::printf("%s: idle %d\n", (*backend)->layout().ToString().c_str(), idle);
  return idle ? 0 : 1;
}
