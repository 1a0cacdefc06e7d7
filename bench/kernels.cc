#include "bench/kernels.h"

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <nlohmann/json.hpp>

#include "bench/kernel_figures.h"
#include "bench/kernel_report.h"
#include "bench/report.h"
#include "blockmgr/base/status_macros.h"
#include "program/output_file.h"
#include "scheduler/server/flag_checks.h"

namespace blockmgr {

namespace {

void AddShapeFlags(CLI::App* command, KernelBenchOptions* options) {
  command
      ->add_option("--distribution", options->distributions,
                   "lengths of lists: uniform, ragged (lognormal), one-huge; "
                   "prompt: one sequence alone, of whatever size, as an "
                   "eviction after a prefill finds it")
      ->delimiter(',')
      ->capture_default_str();
  command
      ->add_option("--group-size", options->group_sizes,
                   "query heads per KV head, 1 to 16")
      ->delimiter(',')
      ->check(CLI::Range(1, 16))
      ->capture_default_str();
  command->add_option("--num-heads", options->num_heads, "KV heads")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command->add_option("--head-dim", options->head_dim, "64, 128 or 256")
      ->check(CLI::IsMember({64, 128, 256}))
      ->capture_default_str();
  command->add_option("--page-size", options->page_size, "16 or 32")
      ->check(CLI::IsMember({16, 32}))
      ->capture_default_str();
  command
      ->add_option("--mean-length", options->mean_length,
                   "tokens of a list, on average")
      ->check(CLI::Range(1, 1 << 30))
      ->capture_default_str();
  command
      ->add_option("--prompt-length", options->prompt_length,
                   "tokens of every list of 'prompt'")
      ->check(CLI::Range(1, 1 << 30))
      ->capture_default_str();
  command
      ->add_option("--prompt-layers", options->prompt_layers,
                   "layers of 'prompt': with all of a model's, evict_snapkv "
                   "and evict_keydiff are what an eviction adds to a prefill")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
}

}  // namespace

void AddKernelFlags(CLI::App* command, KernelBenchOptions* options) {
  command->add_option("--device", options->device, "CUDA device")
      ->check(CLI::Range(0, 1 << 16));
  command
      ->add_option("--kv-mib", options->kv_mib,
                   "live K and V of a problem's regions, MiB, several with "
                   "commas")
      ->delimiter(',')
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
      ->capture_default_str();
  AddShapeFlags(command, options);
  command
      ->add_option("--dtype", options->dtype,
                   "of K, V and queries: bf16 or fp16")
      ->check(CLI::IsMember({"bf16", "fp16"}))
      ->capture_default_str();
  command
      ->add_option("--tail", options->tail_tokens,
                   "tokens in the uncompressed tail of every sequence, after "
                   "its regions and beside their MiB")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  command->add_option("--seed", options->seed, "of lengths, pages, elements")
      ->check(AnyNumber<uint64_t>())
      ->capture_default_str();
  command
      ->add_option("--num-samples", options->num_samples,
                   "samples per kernel, of several launches each")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  command
      ->add_option("--kernels", options->kernels,
                   "only these, by the names in the table")
      ->delimiter(',');
  command->add_option("--problem", options->problem,
                      "time the problem in this file; if there is none, write "
                      "the first one of the flags to it (bench/"
                      "kernel_problem.h has the format)");
  command->add_flag("--json", options->json, "print JSON instead of a table");
  command->add_option("--output", options->output,
                      "write the JSON to this file as well, anew after every "
                      "problem, so that it is there when a run is cut off");
  CLI::Option* check = command->add_flag(
      "--check", options->check,
      "measure what is promised of an H100, next to it, and fail where it is "
      "missed; problems and kernels are those that this takes");
  for (CLI::Option* option : command->get_options()) {
    const std::string name = option->get_name();
    const bool stays = name == "--device" || name == "--dtype" ||
                       name == "--seed" || name == "--num-samples" ||
                       name == "--json" || name == "--output" ||
                       name == "--check" || name == "--help";
    if (!stays) check->excludes(option);
  }
}

absl::StatusOr<std::vector<KernelProblem>> KernelProblems(
    const KernelBenchOptions& options, std::vector<std::string>* names) {
  std::vector<KernelProblem> problems;
  names->clear();
  const bool has_file = !options.problem.empty();
  if (has_file && std::filesystem::exists(options.problem)) {
    BM_ASSIGN_OR_RETURN(KernelProblem problem,
                        ReadKernelProblem(options.problem));
    problems.push_back(std::move(problem));
    names->push_back("file");
    return problems;
  }
  BM_ASSIGN_OR_RETURN(const ElementType element_type,
                      ParseElementType(options.dtype));
  for (const std::string& name : options.distributions) {
    const bool is_prompt = name == "prompt";
    BM_ASSIGN_OR_RETURN(const LengthDistribution distribution,
                        ParseDistribution(is_prompt ? "uniform" : name));
    std::vector<int64_t> sizes;  // bytes of K and V
    for (const int64_t mib : options.kv_mib) sizes.push_back(mib << 20);
    if (is_prompt) {
      sizes = {int64_t{4} * options.num_heads * options.prompt_length *
               options.head_dim * options.prompt_layers};
    }
    for (const int32_t group_size : options.group_sizes) {
      for (const int64_t kv_bytes : sizes) {
        absl::StatusOr<KernelProblem> problem =
            MakeKernelProblem({.num_heads = options.num_heads,
                               .group_size = group_size,
                               .head_dim = options.head_dim,
                               .page_size = options.page_size,
                               .mean_length = is_prompt ? options.prompt_length
                                                        : options.mean_length,
                               .kv_bytes = kv_bytes,
                               .tail_tokens = options.tail_tokens,
                               .element_type = element_type,
                               .distribution = distribution,
                               .seed = options.seed});
        if (!problem.ok()) {
          return absl::Status(
              problem.status().code(),
              absl::StrCat(
                  is_prompt ? "prompt-length, prompt-layers" : "kv-mib",
                  ", num-heads, head-dim, mean-length, tail: ",
                  problem.status().message()));
        }
        problems.push_back(*std::move(problem));
        names->push_back(name);
        if (!has_file) continue;
        BM_RETURN_IF_ERROR(
            WriteKernelProblem(options.problem, problems.back()));
        return problems;
      }
    }
  }
  return problems;
}

#if !BLOCKMGR_BENCH_HAS_CUDA
absl::Status RunKernels(const KernelBenchOptions&, nlohmann::ordered_json*,
                        const ReportSink&) {
  return absl::UnavailableError(
      "kernels: expected a build with CUDA, got one without: there was no nvcc "
      "when it was configured, or BLOCKMGR_CUDA=OFF");
}
#endif

absl::Status BenchKernels(const KernelBenchOptions& options) {
  nlohmann::ordered_json report;
  ReportSink sink;
  if (!options.output.empty()) {
    BM_RETURN_IF_ERROR(PrepareOutputFile("--output", options.output));
    sink = [&options](const nlohmann::ordered_json& grown) {
      return WriteReport(options.output, grown);
    };
  }
  absl::Status status;
  if (options.check) {
    for (const KernelBenchOptions& run : FigureRuns(options)) {
      status = RunKernels(run, &report, sink);
      if (!status.ok()) break;
    }
  } else {
    status = RunKernels(options, &report, sink);
  }
  if (!report.contains("results")) return status;
  std::vector<KernelFigure> figures;
  if (options.check) {
    figures = KernelFigures(report);
    report["figures"] = KernelFiguresToJson(figures);
  }
  if (sink != nullptr) status.Update(sink(report));
  if (options.json) {
    absl::PrintF("%s\n", report.dump(2));
  } else {
    absl::PrintF("%s", FormatKernelReport(report));
    if (options.check) absl::PrintF("\n%s", FormatKernelFigures(figures));
  }
  BM_RETURN_IF_ERROR(status);
  return CheckKernelFigures(figures);
}

}  // namespace blockmgr
