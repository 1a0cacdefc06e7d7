#include "bench/kernel_cases.h"

#include <algorithm>
#include <cstddef>

#include "bench/kernel_families.h"
#include "blockmgr/base/status_macros.h"

namespace blockmgr {

std::vector<std::string> DeviceProblem::KernelNames() {
  std::vector<std::string> names;
  for (const KernelFamily& family : KernelFamilies()) {
    names.insert(names.end(), family.kernels.begin(), family.kernels.end());
  }
  return names;
}

absl::StatusOr<std::unique_ptr<DeviceProblem>> DeviceProblem::Create(
    const KernelProblem& problem, const DeviceProblemOptions& options,
    KernelDevice* device) {
  std::unique_ptr<DeviceProblem> result(new DeviceProblem(device));
  BM_ASSIGN_OR_RETURN(result->in_,
                      MakeKernelInputs(problem, options, result->memory_));
  return result;
}

absl::Status DeviceProblem::ForEachCase(std::span<const std::string> kernels,
                                        const Visit& visit) {
  const auto is_wanted = [&](const std::string& kernel) {
    return kernels.empty() ||
           std::ranges::find(kernels, kernel) != kernels.end();
  };
  for (const KernelFamily& family : KernelFamilies()) {
    if (std::ranges::none_of(family.kernels, is_wanted)) continue;
    const std::size_t num_shared = memory_.num_allocations();
    CaseBuilder builder{.in = in_, .memory = memory_};
    family.add(builder);
    kept_ = builder.kept;
    absl::Status status = memory_.TakeStatus();
    if (absl::IsResourceExhausted(status)) {
      // Other families may still have room, because this family frees what it
      // got.
      for (KernelCase& c : builder.cases) {
        c = {.kernel = c.kernel, .status = status};
      }
      status = absl::OkStatus();
    }
    if (status.ok()) status = memory_.device().status();
    for (const KernelCase& c : builder.cases) {
      if (status.ok() && is_wanted(c.kernel)) status = visit(c);
    }
    memory_.FreeDownTo(num_shared);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<uint16_t>> DeviceProblem::ReadDecodeOutput() const {
  std::vector<uint16_t> output(
      static_cast<std::size_t>(in_.num_q_heads() * in_.problem.head_dim));
  BM_RETURN_IF_ERROR(memory_.Read<uint16_t>(in_.output, output));
  return output;
}

absl::StatusOr<std::vector<int32_t>> DeviceProblem::ReadKept() const {
  std::vector<int32_t> kept(static_cast<std::size_t>(in_.num_lists()));
  BM_RETURN_IF_ERROR(memory_.Read<int32_t>(kept_, kept));
  return kept;
}

absl::StatusOr<uint32_t> DeviceProblem::ReadErrorWord() const {
  uint32_t error = 0;
  BM_RETURN_IF_ERROR(memory_.Read<uint32_t>(in_.error, {&error, 1}));
  return error;
}

}  // namespace blockmgr
