#include "bench/kernel_figures.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <set>
#include <utility>

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>
#include <nlohmann/json.hpp>

#include "bench/kernel_lengths.h"

namespace blockmgr {
namespace {

// Llama-3.1-8B.
constexpr int32_t kModelLayers = 32;
// Below this a launch costs more than the memory.
constexpr int64_t kMinKvBytes = 256'000'000;

// Which results a promise is about, and which of their numbers.
struct Promise {
  const char* kernel;
  const char* distribution;
  const char* field;
  const char* unit;
  double limit;
  int32_t num_layers;  // of a prompt; 0: any sequences
  bool at_least;
};

constexpr Promise kUniformDecode = {
    "decode", "uniform", "percent_of_ceiling", "% of read", 85, 0, true};
constexpr Promise kRaggedDecode = {
    "decode", "ragged", "percent_of_ceiling", "% of read", 85, 0, true};
constexpr Promise kPromises[] = {
    kUniformDecode,
    kRaggedDecode,
    {"compact", "uniform", "percent_of_ceiling", "% of copy", 80, 0, true},
    {"compact", "ragged", "percent_of_ceiling", "% of copy", 80, 0, true},
    {"append", "uniform", "percent_of_ceiling", "% of copy", 80, 0, true},
    {"copy_blocks", "uniform", "percent_of_ceiling", "% of copy", 80, 0, true},
    {"select_uniform", "prompt", "median_us", "us", 30, 1, false},
    {"select_adakv", "prompt", "median_us", "us", 30, 1, false},
    {"snapkv", "prompt", "median_us", "us", 100, 1, false},
    {"keydiff", "prompt", "median_us", "us", 70, 1, false},
    {"value_norms", "prompt", "tflop_per_s", "TFLOP/s", 350, 1, true},
    {"evict_snapkv", "prompt", "median_us", "us", 6000, kModelLayers, false},
    {"evict_keydiff", "prompt", "median_us", "us", 6000, kModelLayers, false},
};

// Ragged decode next to uniform, of as many bytes.
constexpr double kRaggedShare = 0.95;

void KeepWorst(double value, KernelFigure* figure) {
  if (!figure->worst.has_value()) figure->worst = value;
  figure->worst = figure->at_least ? std::min(*figure->worst, value)
                                   : std::max(*figure->worst, value);
}

bool IsAbout(const Promise& promise, const nlohmann::ordered_json& result) {
  if (result.at("kernel") != promise.kernel ||
      result.at("distribution") != promise.distribution ||
      result.at(promise.field).is_null()) {
    return false;
  }
  return promise.num_layers == 0
             ? result.at("kv_bytes").get<int64_t>() >= kMinKvBytes
             : result.at("num_sequences") == promise.num_layers;
}

KernelFigure WorstOf(const Promise& promise,
                     const nlohmann::ordered_json& results) {
  KernelFigure figure = {
      .name = absl::StrCat(promise.kernel, ", ", promise.distribution),
      .unit = promise.unit,
      .at_least = promise.at_least,
      .limit = promise.limit};
  for (const auto& result : results) {
    if (!IsAbout(promise, result)) continue;
    KeepWorst(result.at(promise.field).get<double>(), &figure);
  }
  return figure;
}

KernelFigure NextToUniform(const Promise& ragged_promise,
                           const Promise& uniform_promise,
                           const nlohmann::ordered_json& results) {
  KernelFigure figure = {
      .name =
          absl::StrCat("decode, ", ragged_promise.distribution, " / uniform"),
      .unit = "of GB/s",
      .at_least = true,
      .limit = kRaggedShare};
  // Sizes are rounded to whole tokens of all lists.
  constexpr double kMiB = 1 << 20;
  const auto size = [](const nlohmann::ordered_json& result) {
    return std::llround(result.at("kv_bytes").get<double>() / kMiB);
  };
  for (const auto& ragged : results) {
    if (!IsAbout(ragged_promise, ragged)) continue;
    for (const auto& uniform : results) {
      if (!IsAbout(uniform_promise, uniform) || size(uniform) != size(ragged) ||
          uniform.at("group_size") != ragged.at("group_size")) {
        continue;
      }
      KeepWorst(ragged.at("gb_per_s").get<double>() /
                    uniform.at("gb_per_s").get<double>(),
                &figure);
    }
  }
  return figure;
}

// Returns the names of the problems of --lengths, measured or not run.
std::set<std::string> LengthsNames(const nlohmann::ordered_json& report) {
  std::set<std::string> names;
  for (const char* part : {"results", "not_run"}) {
    if (!report.contains(part)) continue;
    for (const auto& entry : report.at(part)) {
      const auto& name = entry.at("distribution").get_ref<const std::string&>();
      if (absl::EndsWith(name, kEvenSuffix)) {
        names.insert(name.substr(0, name.size() - kEvenSuffix.size()));
      }
    }
  }
  return names;
}

std::string FormatWorst(const KernelFigure& figure) {
  return figure.worst.has_value() ? absl::StrFormat("%.2f", *figure.worst)
                                  : "not measured";
}

}  // namespace

std::vector<KernelBenchOptions> FigureRuns(const KernelBenchOptions& options) {
  KernelBenchOptions common;
  common.device = options.device;
  common.dtype = options.dtype;
  common.tensor_order = options.tensor_order;
  common.seed = options.seed;
  common.num_samples = options.num_samples;
  if (!options.lengths.empty()) {
    KernelBenchOptions models = options;
    models.kv_mib = {256, 1024};
    models.kernels = {"decode", "decode_invariant", "compact"};
    return {models};
  }
  KernelBenchOptions memory = common;
  memory.kv_mib = {256, 1024, 4096};
  memory.distributions = {"uniform", "ragged"};
  memory.kernels = {"decode", "compact", "append", "copy_blocks"};
  KernelBenchOptions prompt = common;
  prompt.distributions = {"prompt"};
  prompt.group_sizes = {4};
  prompt.kernels = {"select_uniform", "select_adakv", "snapkv", "keydiff",
                    "value_norms"};
  KernelBenchOptions eviction = prompt;
  eviction.prompt_layers = kModelLayers;
  eviction.kernels = {"evict_snapkv", "evict_keydiff"};
  return {memory, prompt, eviction};
}

std::vector<KernelFigure> KernelFigures(const nlohmann::ordered_json& report) {
  const nlohmann::ordered_json& results = report.at("results");
  std::vector<KernelFigure> figures;
  for (const std::string& name : LengthsNames(report)) {
    const std::string even_name = absl::StrCat(name, kEvenSuffix);
    Promise ragged = kRaggedDecode;
    Promise even = kUniformDecode;
    ragged.distribution = name.c_str();
    even.distribution = even_name.c_str();
    figures.push_back(WorstOf(ragged, results));
    figures.push_back(NextToUniform(ragged, even, results));
  }
  if (!figures.empty()) return figures;
  for (const Promise& promise : kPromises) {
    figures.push_back(WorstOf(promise, results));
  }
  figures.push_back(NextToUniform(kRaggedDecode, kUniformDecode, results));
  return figures;
}

absl::Status CheckKernelFigures(const std::vector<KernelFigure>& figures) {
  std::vector<std::string> missed;
  for (const KernelFigure& figure : figures) {
    if (figure.met()) continue;
    missed.push_back(
        absl::StrFormat("%s: expected %s %g %s, got %s", figure.name,
                        figure.at_least ? "at least" : "at most", figure.limit,
                        figure.unit, FormatWorst(figure)));
  }
  if (missed.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(missed.size(), " of ", figures.size(),
                   " figures are missed: ", absl::StrJoin(missed, "; ")));
}

std::string FormatKernelFigures(const std::vector<KernelFigure>& figures) {
  std::size_t name_width = 26;
  for (const KernelFigure& figure : figures) {
    name_width = std::max(name_width, figure.name.size());
  }
  const int width = static_cast<int>(name_width);
  std::string text = absl::StrFormat("%-*s %12s %-10s %10s\n", width, "figure",
                                     "worst", "unit", "limit");
  for (const KernelFigure& figure : figures) {
    absl::StrAppendFormat(&text, "%-*s %12s %-10s %s %7g%s\n", width,
                          figure.name, FormatWorst(figure), figure.unit,
                          figure.at_least ? ">=" : "<=", figure.limit,
                          figure.met() ? "" : "  missed");
  }
  return text;
}

nlohmann::ordered_json KernelFiguresToJson(
    const std::vector<KernelFigure>& figures) {
  auto json = nlohmann::ordered_json::array();
  for (const KernelFigure& figure : figures) {
    nlohmann::ordered_json one = {
        {"name", figure.name},
        {"unit", figure.unit},
        {"worst", nullptr},
        {figure.at_least ? "min" : "max", figure.limit},
        {"met", figure.met()}};
    if (figure.worst.has_value()) one["worst"] = *figure.worst;
    json.push_back(std::move(one));
  }
  return json;
}

}  // namespace blockmgr
