#include "bench/evict/profile.h"

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <iterator>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>
#include <absl/strings/strip.h>
#include <nlohmann/json.hpp>

#include "bench/evict/calibration.h"
#include "bench/evict/calibration_prompts.h"
#include "bench/evict/commands.h"
#include "bench/evict/model_file.h"
#include "bench/evict/model_oracle.h"
#include "bench/evict/output_name.h"
#include "bench/evict/parity_policy.h"
#include "bench/evict/policy_flags.h"
#include "bench/evict/policy_runner.h"
#include "bench/evict/prefixed.h"
#include "bench/evict/query_stats_profile.h"
#include "bench/evict/tensors.h"
#include "blockmgr/base/invalid.h"
#include "blockmgr/base/npy.h"
#include "blockmgr/base/read_file.h"
#include "blockmgr/base/status_macros.h"
#include "blockmgr/eviction/keep_ratio.h"
#include "blockmgr/eviction/policy.h"
#include "blockmgr/eviction/query_stats_table.h"
#include "blockmgr/eviction/table_bytes.h"
#include "engine/reference/tiny_model.h"
#include "engine/tokenizer/tokenizer.h"
#include "program/flag_names.h"
#include "program/output_file.h"
#include "program/progress.h"

namespace blockmgr {
namespace {

constexpr char kProfileFooter[] =
    "\nThe oracle says how much each query used each entry: the maximum, over "
    "the steps of\nquestion and answer and over the query heads of a KV head, "
    "of attention times\n|| v W_O ||, divided by its sum over the layer. The "
    "scores are those of the\nscorer to be used, on the same text.\n"
    "\n--model asks a language model questions about facts that are hidden in "
    "texts\n(animals, codes, prices, rooms), and lets texts go on (text).\n"
    "\nExamples:\n"
    "  blockmgr-evict profile --model model.gguf --text book.txt \\\n"
    "      --scorer keydiff --num-contexts 32 --output keydiff.lukv\n"
    "  blockmgr-evict profile --model model.gguf --text book.txt \\\n"
    "      --num-contexts 32 --query-stats model.qstats\n"
    "  blockmgr-evict profile --oracle oracle.npy --scores scores.npy \\\n"
    "      --scorer snapkv --model-name \"a model, 8B\" --output model.lukv\n"
    "  blockmgr-evict profile --import-kvpress curves.npy --output model.lukv\n"
    "  blockmgr-evict profile --tiny --scorer keydiff --output tiny.lukv\n"
    "  blockmgr-evict profile --show model.lukv --keep-ratio 0.1\n"
    "  blockmgr-evict profile --raw-queries queries.npy \\\n"
    "      --model-name \"a model, 8B\" --query-stats model.qstats\n"
    "  blockmgr-evict profile --show model.qstats\n";

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
  return Invalid("--scorer: ",
                 absl::StripPrefix(policy.status().message(), "policy: "));
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

// Returns the table of query statistics that the scorer names, if it names one.
absl::StatusOr<std::optional<QueryStatsTable>> ReadScorerTable(
    const ProfileFlags& flags, const ParityPolicy& policy) {
  if (!policy.needs_query_stats() && flags.tables.empty()) {
    return std::optional<QueryStatsTable>();
  }
  PolicyFlags policy_flags;
  policy_flags.policies = {flags.scorer};
  policy_flags.tables = flags.tables;
  BM_ASSIGN_OR_RETURN(PolicyList list, ReadPolicies(policy_flags));
  return std::optional<QueryStatsTable>(std::move(list.query_stats.front()));
}

// Returns the scores that the scorer gives the entries of a context.
absl::StatusOr<std::vector<float>> ContextScores(
    const ParityPolicy& policy, const Tensors& tensors,
    const QueryStatsTable* query_stats) {
  if (policy.scorer.kind == ScorerKind::kStreaming) {
    // Its score is the position.
    std::vector<float> scores;
    for (int32_t head = 0; head < tensors.num_layers() * tensors.num_heads;
         ++head) {
      for (int32_t position = 0; position < tensors.length; ++position) {
        scores.push_back(static_cast<float>(position));
      }
    }
    return scores;
  }
  PolicyRunOptions options;
  options.query_stats = query_stats;
  BM_ASSIGN_OR_RETURN(PolicyRun run,
                      RunPolicy(policy, EvictionTarget(), tensors, options));
  return std::move(run.scores);
}

absl::StatusOr<std::vector<Calibration>> MeasureContexts(
    const ProfileFlags& flags, ParityPolicy policy,
    const ProfileSource& source) {
  BM_RETURN_IF_ERROR(CheckNoWindows("--model", *source.model));
  BM_ASSIGN_OR_RETURN(const std::optional<QueryStatsTable> table,
                      ReadScorerTable(flags, policy));
  // Nothing but the scores is asked for.
  policy.budget = {};
  policy.selector = {};
  policy.parity = Parity::kNone;
  std::vector<Calibration> contexts;
  Progress progress(std::ssize(source.prompts), true, "prompts", "profile ");
  for (const ContextPrompt& prompt : source.prompts) {
    BM_ASSIGN_OR_RETURN(
        ModelOracle oracle,
        MeasureOracle(*source.model, prompt, source.threads.get()));
    const Tensors& tensors = oracle.tensors;
    Calibration& context = contexts.emplace_back(
        Calibration{.num_queries = static_cast<int32_t>(oracle.queries.size()),
                    .num_layers = tensors.num_layers(),
                    .num_heads = tensors.num_heads,
                    .length = tensors.length,
                    .oracle = std::move(oracle.importances),
                    .scores = {}});
    BM_ASSIGN_OR_RETURN(
        context.scores,
        ContextScores(policy, tensors, table.has_value() ? &*table : nullptr));
    progress.Step();
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

absl::StatusOr<LuKvProfile> Calibrate(const ProfileFlags& flags,
                                      std::vector<double>* shares) {
  BM_ASSIGN_OR_RETURN(const ParityPolicy policy, ParseScorer(flags));
  std::string name = flags.model;
  std::vector<Calibration> contexts;
  if (flags.tiny || !flags.model_file.empty()) {
    BM_ASSIGN_OR_RETURN(const ProfileSource source, OpenProfileSource(flags));
    name = source.name;
    BM_ASSIGN_OR_RETURN(contexts, MeasureContexts(flags, policy, source));
  } else {
    BM_ASSIGN_OR_RETURN(contexts, ReadContexts(flags));
  }
  const CalibrationOptions options{
      .sinks = flags.sinks >= 0 ? flags.sinks : policy.protected_sinks(),
      .window = flags.window >= 0 ? flags.window : policy.protected_recent(),
      .unit = flags.unit,
      .min_keep = flags.min_keep,
      .num_steps = flags.num_steps,
      .oracle_order = flags.oracle_order};
  BM_RETURN_IF_ERROR(CheckProtection(flags, options, contexts.front().length));
  BM_ASSIGN_OR_RETURN(LuKvProfile profile, SolveProfile(contexts, options));
  if (flags.compare_exact && shares != nullptr) {
    BM_ASSIGN_OR_RETURN(const EvictionTarget target,
                        ParseTarget("--keep-ratio", flags.keep_ratio));
    BM_ASSIGN_OR_RETURN(*shares,
                        SolverShares(contexts, options, target.ratio.value()));
  }
  if (flags.oracle_order) absl::StrAppend(&name, ", in the order of use");
  profile.scorer = FormatParityPolicy(policy);
  profile.model = std::move(name);
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
  profile.model = flags.model;
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
    unread = {"--sinks", "--window",       "--unit",         "--min-keep",
              "--steps", "--oracle-order", "--compare-exact"};
  }
  if (!flags.show.empty()) {
    unread.insert(unread.end(), {"--scorer", "--model-name", "--output"});
  }
  for (const char* flag : unread) {
    if (command.count(flag) == 0) continue;
    return BadFlag(flag, "with another source",
                   flags.show.empty() ? "--import-kvpress" : "--show");
  }
  if (!flags.model_file.empty()) return absl::OkStatus();
  unread = {"--text", "--tasks", "--threads"};
  if (!flags.tiny) {
    unread.insert(unread.end(), {"--table", "--num-contexts", "--context",
                                 "--num-queries", "--query-tokens", "--seed"});
  }
  for (const char* flag : unread) {
    if (command.count(flag) == 0) continue;
    return BadFlag(flag, "with --model", "without it");
  }
  return absl::OkStatus();
}

void PrintStatus(const CLI::App& command,
                 const absl::StatusOr<std::string>& result, int* exit_status) {
  *exit_status = result.ok() ? 0 : 1;
  if (result.ok()) {
    absl::PrintF("%s", *result);
  } else {
    PrintError(command, result.status().message());
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
      .add_option("--model", flags->model_file,
                  "a language model to measure, on texts that are cut out of "
                  "--text")
      ->type_name("FILE.gguf")
      ->group(group);
  command
      .add_flag("--tiny", flags->tiny,
                "measure the built-in reference model on made-up text")
      ->group(group);
}

// Adds the flags of tables of query statistics, which take no others but
// --model-name, --sinks, and a model and its texts.
void AddQueryStatsFlags(CLI::App& command, ProfileFlags* flags) {
  const char* group = "Query statistics, for expected_attention(stats=NAME)";
  CLI::Option* output =
      command
          .add_option("--query-stats", flags->query_stats,
                      "the table to write, of the queries of --model, "
                      "--raw-queries or --tiny")
          ->check(OutputFile())
          ->type_name("FILE.qstats")
          ->group(group);
  for (const char* other :
       {"--oracle", "--scores", "--import-kvpress", "--show", "--scorer",
        "--window", "--unit", "--min-keep", "--steps", "--oracle-order",
        "--compare-exact", "--table", "--output", "--json", "--keep-ratio"}) {
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
      .add_option("--model-name", flags->model,
                  "name to remember the result by [the model's own]")
      ->type_name("NAME")
      ->group(group);
  command
      .add_option("--table", flags->tables,
                  "query statistics, for a --scorer that names them")
      ->allow_extra_args(false)
      ->type_name("FILE.qstats")
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
  command
      .add_flag("--oracle-order", flags->oracle_order,
                "as if the scorer knew what a query uses (LU-KV without its "
                "optimality gap), to compare with")
      ->group(group);
  command
      .add_flag("--compare-exact", flags->compare_exact,
                "also print how much of the exact optimum at --keep-ratio the "
                "budgets reach")
      ->group(group);
}

void AddTextFlags(CLI::App& command, ProfileFlags* flags) {
  const char* group = "With --model or --tiny";
  const auto add = [&](const char* name, int32_t* value, const char* help) {
    command.add_option(name, *value, help)
        ->check(CLI::Range(1, 1 << 16))
        ->capture_default_str()
        ->group(group);
  };
  add("--num-contexts", &flags->num_contexts, "texts");
  add("--context", &flags->context, "tokens of a text");
  add("--num-queries", &flags->num_queries, "questions about each");
  add("--query-tokens", &flags->query_tokens,
      "tokens of how a text goes on; with --tiny of a question and its answer "
      "together");
  command.add_option("--seed", flags->seed, "of texts and questions")
      ->capture_default_str()
      ->group(group);
  const char* model_group = "With --model";
  command
      .add_option("--text", flags->texts,
                  "a text that contexts are cut out of; once per file")
      ->allow_extra_args(false)
      ->type_name("FILE")
      ->group(model_group);
  command
      .add_option("--tasks", flags->tasks,
                  absl::StrCat("what contexts take turns with, separated by "
                               "commas: ",
                               absl::StrJoin(CalibrationTasks(), ",")))
      ->delimiter(',')
      ->type_name("NAMES")
      ->group(model_group);
  command
      .add_option("--threads", flags->num_threads,
                  "threads of the matrix products [all]")
      ->check(CLI::Range(1, 1024))
      ->group(model_group);
}

// Returns "32 texts of 1024 tokens (animals, text; seed 1)" and more.
std::string MeasuredOn(const ProfileFlags& flags,
                       const std::vector<ContextPrompt>& prompts) {
  std::vector<std::string> tasks;
  for (const ContextPrompt& prompt : prompts) {
    if (std::ranges::find(tasks, prompt.task) == tasks.end()) {
      tasks.push_back(prompt.task);
    }
  }
  std::string text =
      absl::StrCat(prompts.size(), " texts of ", flags.context, " tokens (",
                   absl::StrJoin(tasks, ", "), "; seed ", flags.seed, ")");
  for (size_t i = 0; i < flags.texts.size(); ++i) {
    absl::StrAppend(&text, i == 0 ? " out of " : ", ",
                    std::filesystem::path(flags.texts[i]).filename().string());
  }
  return text;
}

absl::Status SetModelPrompts(const ProfileFlags& flags,
                             const CalibrationPromptOptions& options,
                             ProfileSource* source) {
  if (flags.texts.empty()) {
    return BadFlag("--text", "a file of text, which contexts are cut out of",
                   "none");
  }
  BM_ASSIGN_OR_RETURN(
      ModelFile file,
      OpenModel(flags.model_file, flags.num_threads > 0
                                      ? flags.num_threads
                                      : ThreadPool::CountHardwareThreads()));
  BM_ASSIGN_OR_RETURN(const Tokenizer tokenizer, OpenTokenizer(file));
  BM_ASSIGN_OR_RETURN(const std::vector<int32_t> text,
                      ReadTexts(tokenizer, flags.texts));
  BM_ASSIGN_OR_RETURN(source->prompts,
                      MakeCalibrationPrompts(tokenizer, text, options));
  source->model = std::move(file.model);
  source->threads = std::move(file.threads);
  source->name = std::move(file.name);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ProfileSource> OpenProfileSource(const ProfileFlags& flags) {
  CalibrationPromptOptions options{.seed = flags.seed,
                                   .num_contexts = flags.num_contexts,
                                   .context_tokens = flags.context,
                                   .num_queries = flags.num_queries,
                                   .query_tokens = flags.query_tokens};
  if (!flags.tasks.empty()) options.tasks = flags.tasks;
  ProfileSource source;
  if (flags.tiny) {
    const ModelShape shape;
    source.model = RandomModel(shape, flags.seed);
    source.name = "tiny";
    for (int32_t context = 0; context < flags.num_contexts; ++context) {
      source.prompts.push_back(
          MakeRandomPrompt(shape.vocabulary, context, options));
    }
  } else {
    BM_RETURN_IF_ERROR(SetModelPrompts(flags, options, &source));
  }
  if (!flags.model.empty()) source.name = flags.model;
  absl::StrAppend(&source.name, ", measured on ",
                  MeasuredOn(flags, source.prompts));
  if (source.name.size() > kMaxTableText) source.name.resize(kMaxTableText);
  return source;
}

absl::StatusOr<LuKvProfile> MakeProfile(const ProfileFlags& flags,
                                        std::vector<double>* shares) {
  const int num_sources = static_cast<int>(flags.tiny) +
                          static_cast<int>(!flags.model_file.empty()) +
                          static_cast<int>(!flags.oracles.empty()) +
                          static_cast<int>(!flags.import_kvpress.empty()) +
                          static_cast<int>(!flags.show.empty());
  if (num_sources != 1) {
    return BadFlag("--model, --oracle, --import-kvpress, --show, --tiny",
                   "exactly one of them", absl::StrCat(num_sources));
  }
  if (!flags.show.empty()) return ReadProfile(flags.show);
  BM_ASSIGN_OR_RETURN(LuKvProfile profile, flags.import_kvpress.empty()
                                               ? Calibrate(flags, shares)
                                               : ImportKvPress(flags));
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
  if (flags.json && flags.compare_exact) {
    return BadFlag("--json", "a profile alone", "--compare-exact, too");
  }
  std::vector<double> shares;
  BM_ASSIGN_OR_RETURN(const LuKvProfile profile, MakeProfile(flags, &shares));
  if (!flags.output.empty()) {
    BM_RETURN_IF_ERROR(WriteOutputFiles(
        {{"--output", flags.output, EncodeLuKvProfile(profile)}}));
  }
  if (flags.json) return ProfileJson(profile);
  std::string text = ProfileTable(profile, target.ratio.value());
  if (!shares.empty()) {
    absl::StrAppendFormat(
        &text,
        "budgets keep %.6f of what the best ones keep, at least %.6f "
        "(%d queries)\n",
        std::accumulate(shares.begin(), shares.end(), 0.0) /
            static_cast<double>(shares.size()),
        *std::ranges::min_element(shares), shares.size());
  }
  return text;
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
  AddTextFlags(*command, flags.get());
  command->add_option("--output", flags->output, "the profile to write")
      ->check(OutputFile())
      ->type_name("FILE.lukv");
  command->add_flag("--json", flags->json, "print all of it, as JSON");
  command
      ->add_option("--keep-ratio", flags->keep_ratio,
                   "the fraction kept that the printed table is for")
      ->capture_default_str();
  AddQueryStatsFlags(*command, flags.get());
  command->callback([flags, exit_status, command] {
    const absl::Status status = CheckSourceFlags(*command, *flags);
    PrintStatus(*command, status.ok() ? RunProfile(*flags) : status,
                exit_status);
  });
}

}  // namespace blockmgr
