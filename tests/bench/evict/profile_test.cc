#include "bench/evict/profile.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "blockmgr/base/bits.h"
#include "blockmgr/base/npy.h"
#include "blockmgr/base/read_file.h"
#include "tests/bench/evict/evict_command.h"
#include "tests/bench/evict/small_model.h"
#include "tests/testing/is_invalid.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"

namespace blockmgr {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr absl::StatusCode kInvalidArgument =
    absl::StatusCode::kInvalidArgument;

std::string TempPath(const std::string& name) {
  static const TempFolder folder;  // of this process
  return folder.File(name);
}

// Writes an array of made-up positive values and returns its path.
std::string WriteArray(const std::string& name, std::vector<int64_t> shape) {
  NpyArray array{std::move(shape), {}};
  int64_t size = 1;
  for (const int64_t dim : array.shape) size *= dim;
  for (int64_t i = 0; i < size; ++i) {
    array.values.push_back(
        static_cast<float>(SplitMix64(static_cast<uint64_t>(i + size)) % 1000));
  }
  std::string path = TempPath(name);
  EXPECT_THAT(WriteNpy(path, array), IsOk());
  return path;
}

ProfileFlags FileFlags() {
  ProfileFlags flags;
  flags.oracles = {WriteArray("oracle.npy", {3, 2, 2, 100})};
  flags.scores = {WriteArray("scores.npy", {2, 2, 100})};
  flags.scorer = "snapkv(window=8) | protect(sinks=2)";
  flags.model = "made up";
  return flags;
}

TEST(ProfileTest, MeasuresFromFiles) {
  ASSERT_OK_AND_ASSIGN(const LuKvProfile profile, MakeProfile(FileFlags()));
  EXPECT_THAT(profile.Validate(), IsOk());
  EXPECT_EQ(profile.num_layers, 2);
  EXPECT_EQ(profile.num_heads, 2);
  EXPECT_EQ(profile.calibration_length, 100);
  EXPECT_EQ(profile.num_queries, 3);
  EXPECT_EQ(profile.model, "made up");
  EXPECT_THAT(profile.scorer, HasSubstr("snapkv(window=8)"));
  // As the scorer protects.
  EXPECT_EQ(profile.sinks, 2);
  EXPECT_EQ(profile.window, 8);
}

TEST(ProfileTest, MeasuresFromTheFilesOfSeveralContexts) {
  ProfileFlags flags = FileFlags();
  flags.oracles.push_back(WriteArray("oracle2.npy", {2, 2, 2, 100}));
  flags.scores.push_back(WriteArray("scores2.npy", {2, 2, 100}));
  ASSERT_OK_AND_ASSIGN(const LuKvProfile profile, MakeProfile(flags));
  EXPECT_EQ(profile.num_queries, 5);
  flags.scores[1] = WriteArray("scores2.npy", {2, 2, 98});
  flags.oracles[1] = WriteArray("oracle2.npy", {2, 2, 2, 98});
  EXPECT_THAT(MakeProfile(flags), IsInvalid("entries of context 1"));
}

TEST(ProfileTest, FlagsOverruleTheScorersProtection) {
  ProfileFlags flags = FileFlags();
  flags.sinks = 5;
  flags.window = 0;
  ASSERT_OK_AND_ASSIGN(const LuKvProfile profile, MakeProfile(flags));
  EXPECT_EQ(profile.sinks, 5);
  EXPECT_EQ(profile.window, 0);
}

TEST(ProfileTest, WritesWhatItShows) {
  ProfileFlags flags = FileFlags();
  flags.output = TempPath("profile.lukv");
  ASSERT_OK_AND_ASSIGN(const std::string printed, RunProfile(flags));
  ProfileFlags show;
  show.show = flags.output;
  ASSERT_OK_AND_ASSIGN(const std::string shown, RunProfile(show));
  EXPECT_EQ(shown, printed);
  EXPECT_THAT(shown, HasSubstr("made up"));
  ASSERT_OK_AND_ASSIGN(const LuKvProfile read, MakeProfile(show));
  ASSERT_OK_AND_ASSIGN(const LuKvProfile made, MakeProfile(flags));
  EXPECT_EQ(read, made);
}

TEST(ProfileTest, TableSaysWhatHeadsKeep) {
  LuKvProfile profile;
  profile.num_layers = 2;
  profile.num_heads = 1;
  profile.rho = {0.0f, 0.5f, 1.0f};
  profile.r = {0.0f, 0.0f, 0.25f, 0.75f, 1.0f, 1.0f};
  const std::string table = ProfileTable(profile, 0.5);
  EXPECT_THAT(table, HasSubstr("unnamed"));
  EXPECT_THAT(table, HasSubstr("\n    0  75.00\n    1  25.00\n"));
}

TEST(ProfileTest, JsonHasEverything) {
  ASSERT_OK_AND_ASSIGN(LuKvProfile profile, MakeProfile(FileFlags()));
  profile.model = "not UTF-8: \xff";
  const auto json = nlohmann::json::parse(ProfileJson(profile));
  EXPECT_EQ(json.at("num_layers"), 2);
  EXPECT_EQ(json.at("window"), 8);
  EXPECT_EQ(json.at("rho").get<std::vector<float>>(), profile.rho);
  std::vector<float> rates;
  for (const auto& row : json.at("r")) {
    ASSERT_EQ(row.size(), 2u);
    for (const auto& layer : row) {
      for (const auto& rate : layer) rates.push_back(rate.get<float>());
    }
  }
  EXPECT_EQ(rates, profile.r);
}

TEST(ProfileTest, ImportsKvPress) {
  NpyArray curve{{99, 1, 2}, {}};
  for (int i = 1; i <= 99; ++i) {
    curve.values.insert(curve.values.end(), 2, static_cast<float>(i) / 100.0f);
  }
  ProfileFlags flags;
  flags.import_kvpress = TempPath("curve.npy");
  ASSERT_THAT(WriteNpy(flags.import_kvpress, curve), IsOk());
  flags.model = "imported";
  ASSERT_OK_AND_ASSIGN(const LuKvProfile profile, MakeProfile(flags));
  EXPECT_EQ(profile.model, "imported");
  EXPECT_EQ(profile.rho.size(), 101u);
  EXPECT_NEAR(profile.EvictedFractions(0.305)[1], 0.305, 1e-6);
  flags.import_kvpress = WriteArray("flat.npy", {99, 2});
  EXPECT_THAT(MakeProfile(flags), IsInvalid("--import-kvpress"));
}

TEST(ProfileTest, MeasuresTheTinyModel) {
  for (const char* scorer : {"snapkv(window=8)", "keydiff", "streaming"}) {
    ProfileFlags flags;
    flags.tiny = true;
    flags.scorer = scorer;
    flags.context = 96;
    flags.num_queries = 2;
    flags.query_tokens = 6;
    flags.num_contexts = 3;
    ASSERT_OK_AND_ASSIGN(const LuKvProfile profile, MakeProfile(flags));
    EXPECT_THAT(profile.Validate(), IsOk()) << scorer;
    EXPECT_EQ(profile.num_queries, 6);
    EXPECT_EQ(profile.calibration_length, 96);
    EXPECT_THAT(profile.scorer, HasSubstr(scorer));
  }
}

TEST(ProfileTest, MeasuresAModelFile) {
  ProfileFlags flags;
  flags.model_file = TempPath("model.gguf");
  WriteSmallModel(flags.model_file);
  flags.texts = {TempPath("book.txt")};
  WriteSmallText(flags.texts[0], 100);
  flags.num_contexts = 3;
  flags.context = 500;
  flags.num_queries = 1;
  flags.num_threads = 1;
  flags.tasks = {"rooms", "text"};
  flags.query_stats = TempPath("small.qstats");
  ASSERT_OK_AND_ASSIGN(const std::string stats, RunProfile(flags));
  const std::string measured =
      "model small, measured on 3 texts of 500 tokens (rooms, text; seed 1) "
      "out of book.txt";
  EXPECT_THAT(stats, HasSubstr(measured));
  EXPECT_THAT(stats, HasSubstr("2 layers of 4 query heads of 64 elements"));
  flags.tables = {flags.query_stats};
  flags.query_stats.clear();
  flags.output = TempPath("small.lukv");
  flags.scorer = "expected_attention(stats=small)";
  ASSERT_OK_AND_ASSIGN(const std::string table, RunProfile(flags));
  EXPECT_THAT(table, HasSubstr(measured));
  EXPECT_THAT(table, HasSubstr("2 layers of 2 KV heads; 3 queries on 500"));
  // Without the table nothing is measured.
  flags.tables.clear();
  EXPECT_THAT(RunProfile(flags), IsInvalid("--table"));
  flags.scorer = "keydiff";
  flags.texts.clear();
  EXPECT_THAT(RunProfile(flags), IsInvalid("--text: expected a file"));
}

TEST(ProfileTest, RefusesModelsWithWindows) {
  ProfileFlags flags;
  flags.model_file = TempPath("windows.gguf");
  WriteSmallModel(flags.model_file, "gemma3");
  flags.texts = {TempPath("words.txt")};
  WriteSmallText(flags.texts[0], 20);
  flags.tasks = {"text"};
  flags.num_contexts = 1;
  flags.context = 64;
  flags.scorer = "keydiff";
  EXPECT_THAT(MakeProfile(flags), IsInvalid("has a window of"));
}

TEST(ProfileTest, NamesTheFlagThatIsWrong) {
  const auto error = [](auto change) {
    ProfileFlags flags = FileFlags();
    flags.output = TempPath("never.lukv");
    change(flags);
    return RunProfile(flags).status();
  };
  using F = ProfileFlags;
  EXPECT_THAT(error([](F& f) { f.keep_ratio = "2"; }),
              StatusIs(kInvalidArgument,
                       StartsWith("--keep-ratio: expected a decimal")));
  EXPECT_THAT(error([](F& f) { f.output.clear(); }), IsInvalid("--output"));
  EXPECT_THAT(error([](F& f) { f.output = "/no/such/folder/file"; }),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("--output")));
  EXPECT_THAT(error([](F& f) { f.json = f.compare_exact = true; }),
              IsInvalid("--json: expected a profile alone"));
  EXPECT_THAT(error([](F& f) { f.output = TempPath("never.json"); }),
              IsInvalid("--output: expected a name that ends in "
                        ".lukv, for an LU-KV profile"));
  EXPECT_THAT(error([](F& f) { f.oracles.clear(); }), IsInvalid("exactly one"));
  EXPECT_THAT(error([](F& f) { f.tiny = true; }), IsInvalid("exactly one"));
  EXPECT_THAT(error([](F& f) { f.scores.clear(); }), IsInvalid("--scores"));
  EXPECT_THAT(error([](F& f) { f.scorer.clear(); }), IsInvalid("--scorer"));
  EXPECT_THAT(error([](F& f) { f.scorer = "magic"; }), IsInvalid("--scorer"));
  EXPECT_THAT(error([](F& f) { f.oracles = f.scores; }), IsInvalid("--oracle"));
  EXPECT_THAT(error([](F& f) {
                f.scores = {WriteArray("other.npy", {2, 2, 99})};
              }),
              IsInvalid("[2, 2, 99]"));
  EXPECT_THAT(error([](F& f) { f.oracles.push_back(f.oracles[0]); }),
              IsInvalid("--scores: expected one per --oracle, 2"));
  EXPECT_THAT(ReadFile(TempPath("never.lukv")),
              StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(error([](F& f) { f.unit = 0; }), IsInvalid("unit"));
  EXPECT_THAT(error([](F& f) {
                f.oracles.clear();
                f.show = "/no/such/file";
              }),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("--show")));
}

// Of 100 entries. What the scorer protects, nobody typed.
TEST(ProfileTest, SaysWhatTheScorerProtectsWhereThatIsTooMuch) {
  ProfileFlags flags = FileFlags();
  flags.scorer = "snapkv(window=101)";
  EXPECT_THAT(MakeProfile(flags),
              IsInvalid("--sinks, --window: expected at most 100 "
                        "together, the entries of a context, got "
                        "sinks 0 (not given: what --scorer keeps), "
                        "window 101 (not given: what"));
  flags.sinks = 60;
  flags.window = 41;
  EXPECT_THAT(MakeProfile(flags), IsInvalid("sinks 60, window 41"));
  flags.window = 40;
  EXPECT_THAT(MakeProfile(flags), IsOk());
}

TEST(ProfileTest, NamesTheFileThatIsDamaged) {
  ProfileFlags flags;
  flags.show = WriteArray("no_profile.npy", {2, 2});
  EXPECT_THAT(MakeProfile(flags),
              IsInvalid(absl::StrCat("--show ", flags.show)));
}

CommandOutcome RunProfileCommand(std::vector<std::string> words) {
  words.insert(words.begin(), "profile");
  return RunEvictCommand(AddProfileCommand, std::move(words));
}

TEST(ProfileTest, CommandParsesItsFlags) {
  const ProfileFlags flags = FileFlags();
  const std::string output = TempPath("command.lukv");
  EXPECT_EQ(RunProfileCommand({"--oracle", flags.oracles[0], "--scores",
                               flags.scores[0], "--scorer", "knorm", "--output",
                               output, "--unit", "4", "--keep-ratio", "0.5"})
                .exit_status,
            0);
  ProfileFlags show;
  show.show = output;
  EXPECT_THAT(MakeProfile(show), IsOk());
}

TEST(ProfileTest, CommandRefusesWhatItsSourceDoesNotLookAt) {
  const ProfileFlags flags = FileFlags();
  const std::string profile = TempPath("shown.lukv");
  const std::string output = TempPath("never.lukv");
  ASSERT_EQ(RunProfileCommand({"--oracle", flags.oracles[0], "--scores",
                               flags.scores[0], "--scorer", "knorm", "--output",
                               profile})
                .exit_status,
            0);
  const std::vector<std::vector<std::string>> lines = {
      {"--show", profile, "--output", output},
      {"--show", profile, "--model-name", "other"},
      {"--show", profile, "--unit", "4"},
      {"--import-kvpress", "x.npy", "--sinks", "3", "--output", output}};
  for (const std::vector<std::string>& line : lines) {
    const CommandOutcome outcome = RunProfileCommand(line);
    EXPECT_EQ(outcome.exit_status, 1);
    EXPECT_THAT(outcome.errors,
                HasSubstr(line[2] + ": expected with another source"));
    EXPECT_FALSE(ReadFile(output).ok());
  }
  const CommandOutcome outcome = RunProfileCommand(
      {"--tiny", "--tasks", "text", "--scorer", "knorm", "--output", output});
  EXPECT_EQ(outcome.exit_status, 1);
  EXPECT_THAT(outcome.errors, HasSubstr("--tasks: expected with --model"));
}

}  // namespace
}  // namespace blockmgr
