#include "bench/kernels.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/string_view.h>
#include <nlohmann/json.hpp>

#include "bench/kernel_cases.h"
#include "bench/kernel_figures.h"
#include "bench/kernel_inputs.h"
#include "bench/kernel_lengths.h"
#include "bench/kernel_report.h"
#include "bench/report.h"
#include "blockmgr/base/bits.h"
#include "blockmgr/base/invalid.h"
#include "blockmgr/base/status_macros.h"
#include "program/output_file.h"
#include "scheduler/server/flag_checks.h"

namespace blockmgr {

namespace {

// Flags that go with --check, and flags that do so if there are --lengths.
constexpr std::array<absl::string_view, 9> kCheckFlags = {
    "--check", "--device", "--dtype",       "--tensor-order", "--seed",
    "--json",  "--output", "--num-samples", "--help"};
constexpr std::array<absl::string_view, 5> kLengthsCheckFlags = {
    "--lengths", "--lengths-layer", "--group-size", "--head-dim",
    "--page-size"};

void RefuseFlagsBesideCheck(const CLI::App& command) {
  if (command.count("--check") == 0) return;
  const bool has_lengths = command.count("--lengths") > 0;
  for (const CLI::Option* option : command.get_options()) {
    const std::string name = option->get_name();
    const bool may_be =
        std::ranges::count(kCheckFlags, name) > 0 ||
        (has_lengths && std::ranges::count(kLengthsCheckFlags, name) > 0);
    if (option->count() > 0 && !may_be) {
      throw CLI::ExcludesError("--check", name);
    }
  }
}

void AddLengthsFlags(CLI::App* command, KernelBenchOptions* options) {
  CLI::Option* lengths =
      command
          ->add_option("--lengths", options->lengths,
                       "what heads of a real model keep: a .npy file of "
                       "integers [prompts, layers, KV heads], several by "
                       "repeating the flag. A problem is one layer of its "
                       "prompts in turn, until --kv-mib are reached; next to "
                       "it as many lists of the same total in even lengths. "
                       "Give the model's --group-size and --head-dim")
          ->type_name("FILE");
  for (const char* other : {"--distribution", "--num-heads", "--mean-length",
                            "--prompt-length", "--prompt-layers"}) {
    lengths->excludes(command->get_option(other));
  }
  command
      ->add_option("--lengths-layer", options->lengths_layers,
                   "layers of --lengths, from 0, several with commas; without "
                   "it those whose raggedness (largest head / mean head) is "
                   "the median and the most")
      ->delimiter(',')
      ->check(CLI::Range(0, 1 << 16))
      ->needs(lengths);
}

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

struct NamedProblems {
  // An error names the flags.
  absl::Status Add(const std::string& name, absl::string_view flags,
                   absl::StatusOr<KernelProblem> problem) {
    if (!problem.ok()) {
      return absl::Status(
          problem.status().code(),
          absl::StrCat(flags, ": ", problem.status().message()));
    }
    problems.push_back(*std::move(problem));
    names.push_back(name);
    return absl::OkStatus();
  }

  std::vector<KernelProblem> problems;
  std::vector<std::string> names;
};

// Adds the problems of one distribution.
absl::Status AddDistribution(const KernelBenchOptions& options,
                             const std::string& name, KernelProblemShape shape,
                             NamedProblems* made) {
  const bool is_prompt = name == "prompt";
  BM_ASSIGN_OR_RETURN(shape.distribution,
                      ParseDistribution(is_prompt ? "uniform" : name));
  std::vector<int64_t> sizes;  // bytes of K and V
  for (const int64_t mib : options.kv_mib) sizes.push_back(mib << 20);
  if (is_prompt) {
    shape.mean_length = options.prompt_length;
    sizes = {int64_t{4} * options.num_heads * options.prompt_length *
             options.head_dim * options.prompt_layers};
  }
  for (const int32_t group_size : options.group_sizes) {
    for (const int64_t kv_bytes : sizes) {
      shape.group_size = group_size;
      shape.kv_bytes = kv_bytes;
      BM_RETURN_IF_ERROR(made->Add(
          name,
          absl::StrCat(is_prompt ? "prompt-length, prompt-layers" : "kv-mib",
                       ", num-heads, head-dim, mean-length, tail"),
          MakeKernelProblem(shape)));
    }
  }
  return absl::OkStatus();
}

// Adds the problems of a file of lengths, each before its even one.
absl::Status AddLengths(const KernelBenchOptions& options,
                        const std::string& path, KernelProblemShape shape,
                        NamedProblems* made) {
  BM_ASSIGN_OR_RETURN(const KernelLengths kept, ReadKernelLengths(path));
  shape.num_heads = kept.num_heads;
  std::vector<int32_t> layers = options.lengths_layers;
  if (layers.empty()) {
    const std::vector<int32_t> sorted = kept.LayersByRaggedness();
    layers = {sorted[sorted.size() / 2], sorted.back()};
    if (layers[0] == layers[1]) layers.pop_back();
  }
  for (const int32_t layer : layers) {
    if (layer < 0 || layer >= kept.num_layers) {
      return Invalid("--lengths-layer: expected 0 to ", kept.num_layers - 1,
                     ", a layer of ", path, ", got ", layer);
    }
    const std::string name = absl::StrCat(kept.name, " layer ", layer);
    const std::string flags = absl::StrCat(path, ", kv-mib, tail");
    for (const int64_t mib : options.kv_mib) {
      BM_ASSIGN_OR_RETURN(
          const std::vector<int32_t> lengths,
          kept.Batch(layer, CeilDiv(mib << 20, int64_t{4} * options.head_dim)));
      for (const int32_t group_size : options.group_sizes) {
        shape.group_size = group_size;
        BM_RETURN_IF_ERROR(
            made->Add(name, flags, MakeProblemOfLengths(shape, lengths)));
        BM_RETURN_IF_ERROR(
            made->Add(absl::StrCat(name, kEvenSuffix), flags,
                      MakeProblemOfLengths(shape, EvenLengths(lengths))));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status MakeProblems(const KernelBenchOptions& options,
                          NamedProblems* made) {
  KernelProblemShape shape = {.num_heads = options.num_heads,
                              .head_dim = options.head_dim,
                              .page_size = options.page_size,
                              .mean_length = options.mean_length,
                              .tail_tokens = options.tail_tokens,
                              .seed = options.seed};
  BM_ASSIGN_OR_RETURN(shape.element_type, ParseElementType(options.dtype));
  for (const std::string& path : options.lengths) {
    BM_RETURN_IF_ERROR(AddLengths(options, path, shape, made));
  }
  if (!options.lengths.empty()) return absl::OkStatus();
  for (const std::string& name : options.distributions) {
    BM_RETURN_IF_ERROR(AddDistribution(options, name, shape, made));
  }
  return absl::OkStatus();
}

// Returns the options of the first combination alone.
KernelBenchOptions FirstOf(KernelBenchOptions options) {
  const auto keep_first = [](auto& values) {
    if (!values.empty()) values.resize(1);
  };
  keep_first(options.distributions);
  keep_first(options.lengths);
  keep_first(options.lengths_layers);
  keep_first(options.kv_mib);
  keep_first(options.group_sizes);
  return options;
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
  AddLengthsFlags(command, options);
  command
      ->add_option("--tensor-order", options->tensor_order,
                   "where the pool has its rows: pages is blockmgr's own "
                   "order, nhd-pairs that of vLLM from 0.29 (docs/kernels.md "
                   "has all)")
      ->check(CLI::IsMember(std::vector<std::string>(kTensorOrderNames.begin(),
                                                     kTensorOrderNames.end())))
      ->capture_default_str();
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
                   "only these, and the ceilings")
      ->delimiter(',')
      ->check(CLI::IsMember(DeviceProblem::KernelNames()));
  command->add_option("--problem", options->problem,
                      "time the problem in this file; if there is none, write "
                      "the first one of the flags to it (bench/"
                      "kernel_problem.h has the format)");
  command->add_flag("--json", options->json, "print JSON instead of a table");
  command->add_option("--output", options->output,
                      "write the JSON to this file as well, anew after every "
                      "problem, so that it is there when a run is cut off");
  command->add_flag(
      "--check", options->check,
      "measure what is promised of an H100, next to it, and fail where it is "
      "missed; problems and kernels are those that this takes. With --lengths: "
      "decode on these, which is to reach 85 % of reading and 95 % of even "
      "lengths");
  command->parse_complete_callback(
      [command] { RefuseFlagsBesideCheck(*command); });
}

absl::StatusOr<std::vector<KernelProblem>> KernelProblems(
    const KernelBenchOptions& options, std::vector<std::string>* names) {
  NamedProblems made;
  const bool has_file = !options.problem.empty();
  if (has_file && options.tensor_order != "pages") {
    return Invalid(
        "--tensor-order: expected pages with --problem, whose format says "
        "where every element is in this order, got ",
        options.tensor_order);
  }
  if (has_file && std::filesystem::exists(options.problem)) {
    BM_ASSIGN_OR_RETURN(KernelProblem problem,
                        ReadKernelProblem(options.problem));
    made.problems.push_back(std::move(problem));
    made.names.push_back("file");
  } else {
    BM_RETURN_IF_ERROR(
        MakeProblems(has_file ? FirstOf(options) : options, &made));
    if (has_file) {
      made.problems.resize(1);
      made.names.resize(1);
      BM_RETURN_IF_ERROR(
          WriteKernelProblem(options.problem, made.problems.front()));
    }
  }
  *names = std::move(made.names);
  return std::move(made.problems);
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
