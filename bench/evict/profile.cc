#include "bench/evict/profile.h"

#include <algorithm>
#include <cstddef>
#include <fstream>
#include <limits>
#include <memory>
#include <utility>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <nlohmann/json.hpp>

#include "bench/evict/calibration.h"
#include "bench/evict/commands.h"
#include "bench/evict/output_name.h"
#include "bench/evict/parity_policy.h"
#include "bench/evict/policy_flags.h"
#include "bench/evict/policy_runner.h"
#include "bench/evict/prefixed.h"
#include "bench/evict/query_stats_profile.h"
#include "bench/evict/status_line.h"
#include "bench/evict/tiny_oracle.h"
#include "blockmgr/base/npy.h"
#include "blockmgr/base/read_file.h"
#include "blockmgr/base/status_macros.h"
#include "blockmgr/eviction/keep_ratio.h"
#include "blockmgr/eviction/policy.h"
#include "blockmgr/eviction/query_stats_table.h"
#include "engine/reference/tiny_model.h"

namespace blockmgr {
namespace {

constexpr char kProfileFooter[] =
    "\nThe oracle says how much each query used each entry: the maximum, over "
    "the steps of\nquestion and answer and over the query heads of a KV head, "
    "of attention times\n|| v W_O ||, divided by its sum over the layer. The "
    "scores are those of the\nscorer to be used, on the same text.\n"
    "\nExamples:\n"
    "  blockmgr-evict profile --oracle oracle.npy --scores scores.npy \\\n"
    "      --scorer snapkv --model \"a model, 8B\" --output model.lukv\n"
    "  blockmgr-evict profile --import-kvpress curves.npy --output model.lukv\n"
    "  blockmgr-evict profile --tiny --scorer keydiff --output tiny.lukv\n"
    "  blockmgr-evict profile --show model.lukv --keep-ratio 0.1\n"
    "  blockmgr-evict profile --raw-queries queries.npy \\\n"
    "      --model \"a model, 8B\" --query-stats model.qstats\n"
    "  blockmgr-evict profile --show model.qstats\n";

absl::Status BadFlag(absl::string_view flag, absl::string_view expected,
                     absl::string_view got) {
  return absl::InvalidArgumentError(
      absl::StrCat(flag, ": expected ", expected, ", got ", got));
}

absl::StatusOr<NpyArray> ReadArray(const char* flag, const std::string& path,
                                   size_t num_dims, const char* dims) {
  if (path.empty()) return BadFlag(flag, "a file", "nothing");
  absl::StatusOr<NpyArray> read = ReadNpy(path);
  if (!read.ok()) return Prefixed(flag, read.status());
  NpyArray array = *std::move(read);
  if (array.shape.size() != num_dims) {
    return BadFlag(absl::StrCat(flag, " ", path), dims, ShapeText(array.shape));
  }
  for (const int64_t size : array.shape) {
    if (size > std::numeric_limits<int32_t>::max()) {
      return BadFlag(absl::StrCat(flag, " ", path), "sizes below 2^31",
                     ShapeText(array.shape));
    }
  }
  return array;
}

// The scorer alone matters; its protection is what sinks and window default to.
absl::StatusOr<ParityPolicy> ParseScorer(const ProfileFlags& flags) {
  if (flags.scorer.empty()) {
    return BadFlag("--scorer", "the scorer that the profile is for", "nothing");
  }
  absl::StatusOr<ParityPolicy> policy = ParseParityPolicy(flags.scorer);
  if (policy.ok()) return policy;
  return Prefixed("--scorer", policy.status());
}

absl::StatusOr<Calibration> ReadContext(const std::string& oracle_path,
                                        const std::string& scores_path) {
  BM_ASSIGN_OR_RETURN(NpyArray oracle,
                      ReadArray("--oracle", oracle_path, 4,
                                "[queries, layers, KV heads, entries]"));
  BM_ASSIGN_OR_RETURN(
      NpyArray scores,
      ReadArray("--scores", scores_path, 3, "[layers, KV heads, entries]"));
  if (!std::equal(scores.shape.begin(), scores.shape.end(),
                  oracle.shape.begin() + 1)) {
    return BadFlag(absl::StrCat("--scores ", scores_path),
                   absl::StrCat("the last three sizes of the oracle's ",
                                ShapeText(oracle.shape)),
                   ShapeText(scores.shape));
  }
  return Calibration{.num_queries = static_cast<int32_t>(oracle.shape[0]),
                     .num_layers = static_cast<int32_t>(oracle.shape[1]),
                     .num_heads = static_cast<int32_t>(oracle.shape[2]),
                     .length = static_cast<int32_t>(oracle.shape[3]),
                     .oracle = std::move(oracle.values),
                     .scores = std::move(scores.values)};
}

absl::StatusOr<std::vector<Calibration>> ReadContexts(
    const ProfileFlags& flags) {
  if (flags.scores.size() != flags.oracles.size()) {
    return BadFlag("--scores",
                   absl::StrCat("one per --oracle, ", flags.oracles.size()),
                   absl::StrCat(flags.scores.size()));
  }
  std::vector<Calibration> contexts;
  for (size_t i = 0; i < flags.oracles.size(); ++i) {
    BM_ASSIGN_OR_RETURN(contexts.emplace_back(),
                        ReadContext(flags.oracles[i], flags.scores[i]));
  }
  return contexts;
}

absl::StatusOr<Calibration> MeasureTinyContext(const ProfileFlags& flags,
                                               int32_t context,
                                               ParityPolicy policy) {
  const ModelShape shape;
  TinyOracle oracle =
      MeasureTinyOracle(shape, {.seed = flags.seed,
                                .context = context,
                                .context_tokens = flags.context,
                                .num_queries = flags.num_queries,
                                .query_tokens = flags.query_tokens});
  // Nothing but the scores is asked for.
  policy.budget = {};
  policy.selector = {};
  policy.parity = Parity::kNone;
  BM_ASSIGN_OR_RETURN(
      PolicyRun run,
      RunPolicy(policy, EvictionTarget(), oracle.tensors, PolicyRunOptions()));
  Calibration calibration{.num_queries = flags.num_queries,
                          .num_layers = shape.num_layers,
                          .num_heads = shape.num_heads,
                          .length = flags.context,
                          .oracle = std::move(oracle.importances),
                          .scores = std::move(run.scores)};
  if (policy.scorer.kind == ScorerKind::kStreaming) {
    // Its score is the position.
    const int32_t num_scores =
        shape.num_layers * shape.num_heads * flags.context;
    calibration.scores.clear();
    for (int32_t i = 0; i < num_scores; ++i) {
      calibration.scores.push_back(static_cast<float>(i % flags.context));
    }
  }
  return calibration;
}

absl::StatusOr<std::vector<Calibration>> MeasureTiny(
    const ProfileFlags& flags, const ParityPolicy& policy) {
  std::vector<Calibration> contexts;
  StatusLine status_line("profile", flags.num_contexts);
  for (int32_t context = 0; context < flags.num_contexts; ++context) {
    BM_ASSIGN_OR_RETURN(contexts.emplace_back(),
                        MeasureTinyContext(flags, context, policy));
    status_line.Step();
  }
  return contexts;
}

// Checks that the protected positions fit into the prompt. The sinks and the
// window may come from the scorer instead of a flag; the error then says so,
// because the user typed no such flag.
absl::Status CheckProtection(const ProfileFlags& flags,
                             const CalibrationOptions& options,
                             int32_t length) {
  if (int64_t{options.sinks} + options.window <= length) {
    return absl::OkStatus();
  }
  const auto text = [](int32_t given, int32_t used) {
    return given >= 0 ? absl::StrCat(used)
                      : absl::StrCat(used, " (not given: what --scorer keeps)");
  };
  return BadFlag(
      "--sinks, --window",
      absl::StrCat("at most ", length, " together, the entries of a context"),
      absl::StrCat("sinks ", text(flags.sinks, options.sinks), ", window ",
                   text(flags.window, options.window)));
}

absl::StatusOr<LuKvProfile> Calibrate(const ProfileFlags& flags) {
  BM_ASSIGN_OR_RETURN(const ParityPolicy policy, ParseScorer(flags));
  BM_ASSIGN_OR_RETURN(
      const std::vector<Calibration> contexts,
      flags.tiny ? MeasureTiny(flags, policy) : ReadContexts(flags));
  const CalibrationOptions options{
      .sinks = flags.sinks >= 0 ? flags.sinks : policy.protected_sinks(),
      .window = flags.window >= 0 ? flags.window : policy.protected_recent(),
      .unit = flags.unit,
      .min_keep = flags.min_keep,
      .num_steps = flags.num_steps};
  BM_RETURN_IF_ERROR(CheckProtection(flags, options, contexts.front().length));
  BM_ASSIGN_OR_RETURN(LuKvProfile profile, SolveProfile(contexts, options));
  profile.scorer = FormatParityPolicy(policy);
  return profile;
}

absl::StatusOr<LuKvProfile> ImportKvPress(const ProfileFlags& flags) {
  BM_ASSIGN_OR_RETURN(const NpyArray curve,
                      ReadArray("--import-kvpress", flags.import_kvpress, 3,
                                "[99, layers, KV heads]"));
  BM_ASSIGN_OR_RETURN(
      LuKvProfile profile,
      LuKvProfileFromKvPress(curve.values, static_cast<int32_t>(curve.shape[1]),
                             static_cast<int32_t>(curve.shape[2])));
  if (!flags.scorer.empty()) {
    BM_ASSIGN_OR_RETURN(const ParityPolicy policy, ParseScorer(flags));
    profile.scorer = FormatParityPolicy(policy);
  }
  return profile;
}

absl::StatusOr<LuKvProfile> ReadProfile(const std::string& path) {
  const absl::StatusOr<std::string> bytes = ReadFile(path);
  if (!bytes.ok()) return Prefixed("--show", bytes.status());
  absl::StatusOr<LuKvProfile> profile = DecodeLuKvProfile(*bytes);
  if (profile.ok()) return profile;
  return Prefixed(absl::StrCat("--show ", path), profile.status());
}

absl::StatusOr<std::string> ShowQueryStats(const ProfileFlags& flags,
                                           absl::string_view bytes) {
  if (flags.json) {
    return BadFlag("--json", "an LU-KV profile to show",
                   "a table of query statistics");
  }
  const absl::StatusOr<QueryStatsTable> table = DecodeQueryStats(bytes);
  if (table.ok()) return QueryStatsText(*table);
  return Prefixed(absl::StrCat("--show ", flags.show), table.status());
}

// Refuses what a source does not look at.
absl::Status CheckSourceFlags(const CLI::App& command,
                              const ProfileFlags& flags) {
  std::vector<const char*> unread;
  if (!flags.show.empty() || !flags.import_kvpress.empty()) {
    unread = {"--sinks", "--window", "--unit", "--min-keep", "--steps"};
  }
  if (!flags.show.empty()) {
    unread.insert(unread.end(), {"--scorer", "--model", "--output"});
  }
  for (const char* flag : unread) {
    if (command.count(flag) == 0) continue;
    return BadFlag(flag, "with another source",
                   flags.show.empty() ? "--import-kvpress" : "--show");
  }
  return absl::OkStatus();
}

void PrintStatus(const absl::StatusOr<std::string>& result, int* exit_status) {
  *exit_status = result.ok() ? 0 : 1;
  if (result.ok()) {
    absl::PrintF("%s", *result);
  } else {
    absl::FPrintF(stderr, "blockmgr-evict profile: %s\n",
                  std::string(result.status().message()));
  }
}

void AddSourceFlags(CLI::App& command, ProfileFlags* flags) {
  const char* group = "Sources, one of";
  CLI::Option* oracle =
      command
          .add_option("--oracle", flags->oracles,
                      "[queries, layers, KV heads, entries]: what was used; "
                      "once per context")
          ->allow_extra_args(false)
          ->type_name("FILE.npy")
          ->group(group);
  command
      .add_option("--scores", flags->scores,
                  "with --oracle, [layers, KV heads, entries]: the scorer's")
      ->needs(oracle)
      ->allow_extra_args(false)
      ->type_name("FILE.npy")
      ->group(group);
  command
      .add_option("--import-kvpress", flags->import_kvpress,
                  "[99, layers, KV heads]: a profile of kvpress's LUKVPress")
      ->type_name("FILE.npy")
      ->group(group);
  command
      .add_option("--show", flags->show,
                  "a profile, or a table of query statistics, to print")
      ->type_name("FILE")
      ->group(group);
  command
      .add_flag("--tiny", flags->tiny,
                "measure the built-in reference model on made-up text")
      ->group(group);
}

// Adds the flags of tables of query statistics, which take no others but
// --model, --sinks, --tiny and how many texts of which size it makes up.
void AddQueryStatsFlags(CLI::App& command, ProfileFlags* flags) {
  const char* group = "Query statistics, for expected_attention(stats=NAME)";
  CLI::Option* output =
      command
          .add_option("--query-stats", flags->query_stats,
                      "the table to write, of the queries of --raw-queries or "
                      "--tiny")
          ->type_name("FILE.qstats")
          ->group(group);
  for (const char* other :
       {"--oracle", "--scores", "--import-kvpress", "--show", "--scorer",
        "--window", "--unit", "--min-keep", "--steps", "--num-queries",
        "--query-tokens", "--output", "--json", "--keep-ratio"}) {
    output->excludes(command.get_option(other));
  }
  command
      .add_option("--raw-queries", flags->raw_queries,
                  "[layers,] query heads, positions, head dim; before RoPE; "
                  "once per text")
      ->needs(output)
      ->allow_extra_args(false)
      ->type_name("FILE.npy")
      ->group(group);
}

void AddCalibrationFlags(CLI::App& command, ProfileFlags* flags) {
  const char* group = "Calibration";
  command
      .add_option("--scorer", flags->scorer,
                  "policy text of the scorer that the scores are from")
      ->type_name("TEXT")
      ->group(group);
  command
      .add_option("--model", flags->model, "name to remember the profile by")
      ->type_name("NAME")
      ->group(group);
  command
      .add_option("--sinks", flags->sinks,
                  "first entries kept before others [as the scorer says]")
      ->check(CLI::Range(0, 1 << 30))
      ->group(group);
  command
      .add_option("--window", flags->window,
                  "last entries kept before others [as the scorer says]")
      ->check(CLI::Range(0, 1 << 30))
      ->group(group);
  command
      .add_option("--unit", flags->unit,
                  "entries that are kept or evicted together: 1, or a page")
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--min-keep", flags->min_keep,
                  "least fraction that every head keeps")
      ->capture_default_str()
      ->group(group);
  command.add_option("--steps", flags->num_steps, "ratios to solve for")
      ->capture_default_str()
      ->group(group);
}

void AddTinyFlags(CLI::App& command, ProfileFlags* flags) {
  const char* group = "With --tiny";
  CLI::Option* tiny = command.get_option("--tiny");
  const auto add = [&](const char* name, int32_t* value, const char* help) {
    command.add_option(name, *value, help)
        ->needs(tiny)
        ->check(CLI::Range(1, 1 << 16))
        ->capture_default_str()
        ->group(group);
  };
  add("--num-contexts", &flags->num_contexts, "texts");
  add("--context", &flags->context, "tokens of a text");
  add("--num-queries", &flags->num_queries, "questions about each");
  add("--query-tokens", &flags->query_tokens,
      "tokens of a question and its answer together");
  command.add_option("--seed", flags->seed, "of model, texts and questions")
      ->needs(tiny)
      ->capture_default_str()
      ->group(group);
}

}  // namespace

absl::StatusOr<LuKvProfile> MakeProfile(const ProfileFlags& flags) {
  const int num_sources = static_cast<int>(flags.tiny) +
                          static_cast<int>(!flags.oracles.empty()) +
                          static_cast<int>(!flags.import_kvpress.empty()) +
                          static_cast<int>(!flags.show.empty());
  if (num_sources != 1) {
    return BadFlag("--oracle, --import-kvpress, --show, --tiny",
                   "exactly one of them", absl::StrCat(num_sources));
  }
  if (!flags.show.empty()) return ReadProfile(flags.show);
  BM_ASSIGN_OR_RETURN(LuKvProfile profile, flags.import_kvpress.empty()
                                               ? Calibrate(flags)
                                               : ImportKvPress(flags));
  profile.model = flags.model;
  // The texts are new.
  BM_RETURN_IF_ERROR(profile.Validate());
  return profile;
}

std::string ProfileTable(const LuKvProfile& profile, double keep) {
  std::string text = absl::StrFormat(
      "model %s, scorer %s\n"
      "%d layers of %d KV heads; %d queries on %d entries, %d sinks, "
      "window %d, at least %g of each head\n"
      "per cent of its entries that a head keeps when %g of all are kept:\n"
      "layer",
      profile.model.empty() ? "unnamed" : profile.model,
      profile.scorer.empty() ? "unnamed" : profile.scorer, profile.num_layers,
      profile.num_heads, profile.num_queries, profile.calibration_length,
      profile.sinks, profile.window, profile.min_keep, keep);
  for (int32_t head = 0; head < profile.num_heads; ++head) {
    absl::StrAppendFormat(&text, " %6d", head);
  }
  const std::vector<double> evicted = profile.EvictedFractions(1.0 - keep);
  size_t index = 0;
  for (int32_t layer = 0; layer < profile.num_layers; ++layer) {
    absl::StrAppendFormat(&text, "\n%5d", layer);
    for (int32_t head = 0; head < profile.num_heads; ++head) {
      absl::StrAppendFormat(&text, " %6.2f", 100.0 * (1.0 - evicted[index++]));
    }
  }
  text.push_back('\n');
  return text;
}

std::string ProfileJson(const LuKvProfile& profile) {
  nlohmann::ordered_json json = {
      {"model", profile.model},
      {"scorer", profile.scorer},
      {"num_layers", profile.num_layers},
      {"num_heads", profile.num_heads},
      {"calibration_length", profile.calibration_length},
      {"sinks", profile.sinks},
      {"window", profile.window},
      {"num_queries", profile.num_queries},
      {"min_keep", profile.min_keep},
      {"rho", profile.rho}};
  auto& rows = json["r"] = nlohmann::ordered_json::array();
  auto rate = profile.r.begin();
  for (size_t i = 0; i < profile.rho.size(); ++i) {
    auto& layers = rows.emplace_back(nlohmann::ordered_json::array());
    for (int32_t layer = 0; layer < profile.num_layers; ++layer) {
      layers.push_back(std::vector<float>(rate, rate + profile.num_heads));
      rate += profile.num_heads;
    }
  }
  // Names come from files; what is no UTF-8 is replaced.
  return json.dump(-1, ' ', false,
                   nlohmann::ordered_json::error_handler_t::replace) +
         "\n";
}

absl::StatusOr<std::string> RunProfile(const ProfileFlags& flags) {
  if (!flags.query_stats.empty()) return RunQueryStats(flags);
  if (!flags.show.empty()) {
    const absl::StatusOr<std::string> bytes = ReadFile(flags.show);
    if (bytes.ok() && IsQueryStats(*bytes)) {
      return ShowQueryStats(flags, *bytes);
    }
  }
  if (flags.show.empty() && flags.output.empty()) {
    return BadFlag("--output", "a file", "nothing");
  }
  BM_RETURN_IF_ERROR(CheckOutputName("--output", flags.output, ".lukv",
                                     "an LU-KV profile, which is binary,"));
  BM_ASSIGN_OR_RETURN(const EvictionTarget target,
                      ParseTarget("--keep-ratio", flags.keep_ratio));
  BM_ASSIGN_OR_RETURN(const LuKvProfile profile, MakeProfile(flags));
  if (!flags.output.empty()) {
    std::ofstream file(flags.output, std::ios::binary);
    file << EncodeLuKvProfile(profile);
    file.close();
    if (!file) {
      return absl::UnavailableError(
          absl::StrCat("--output: expected a file that can be written, got '",
                       flags.output, "'"));
    }
  }
  return flags.json ? ProfileJson(profile)
                    : ProfileTable(profile, target.ratio.value());
}

void AddProfileCommand(CLI::App& app, int* exit_status) {
  const auto flags = std::make_shared<ProfileFlags>();
  CLI::App* command = app.add_subcommand(
      "profile",
      "Measure which heads need their entries (LU-KV), for lukv budgets, or "
      "mean and covariance of queries, for expected_attention.");
  command->footer(kProfileFooter);
  AddSourceFlags(*command, flags.get());
  AddCalibrationFlags(*command, flags.get());
  AddTinyFlags(*command, flags.get());
  command->add_option("--output", flags->output, "the profile to write")
      ->type_name("FILE.lukv");
  command->add_flag("--json", flags->json, "print all of it, as JSON");
  command
      ->add_option("--keep-ratio", flags->keep_ratio,
                   "the fraction kept that the printed table is for")
      ->capture_default_str();
  AddQueryStatsFlags(*command, flags.get());
  command->callback([flags, exit_status, command] {
    const absl::Status status = CheckSourceFlags(*command, *flags);
    PrintStatus(status.ok() ? RunProfile(*flags) : status, exit_status);
  });
}

}  // namespace blockmgr
