// The subcommand: its flags, its problems, and what it says without a GPU.
#include "bench/kernels.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "blockmgr/base/npy.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"

namespace blockmgr {
namespace {

bool Parses(const std::string& arguments, KernelBenchOptions* options) {
  CLI::App app;
  AddKernelFlags(&app, options);
  try {
    app.parse(arguments);
  } catch (const CLI::ParseError&) {
    return false;
  }
  return true;
}

struct Problems {
  std::vector<std::string> names;
  std::vector<KernelProblem> problems;
};

// The problems that a command line makes.
Problems ProblemsOf(const std::string& arguments) {
  KernelBenchOptions options;
  EXPECT_TRUE(Parses(arguments, &options)) << arguments;
  Problems made;
  auto problems = KernelProblems(options, &made.names);
  EXPECT_OK(problems);
  if (problems.ok()) made.problems = *std::move(problems);
  return made;
}

TEST(KernelsTest, FlagsMakeTheProblems) {
  const Problems made = ProblemsOf(
      "--kv-mib 1,2 --distribution ragged,uniform --group-size 1,8 "
      "--mean-length 64");
  ASSERT_EQ(made.problems.size(), 8u);
  EXPECT_EQ(made.names.front(), "ragged");
  EXPECT_EQ(made.names.back(), "uniform");
  EXPECT_EQ(made.problems.back().group_size, 8);
  EXPECT_EQ(made.problems.back().kv_bytes(), 2 << 20);
  EXPECT_EQ(made.problems.back().element_type, ElementType::kBFloat16);
  EXPECT_EQ(made.problems.back().tail_tokens(), 0);
  for (const std::string bad :
       {"--dtype fp32", "--dtype float16", "--tail -1", "--tail x",
        "--kv-mib 0", "--group-size 17", "--head-dim 96", "--page-size 8",
        "--num-samples 0", "--what"}) {
    KernelBenchOptions unused;
    EXPECT_FALSE(Parses(bad, &unused)) << bad;
  }
  KernelBenchOptions options;
  options.distributions = {"normal"};
  std::vector<std::string> names;
  EXPECT_FALSE(KernelProblems(options, &names).ok());
}

TEST(KernelsTest, SizesOutOfRangeAreRefusedByFlag) {
  struct Case {
    const char* arguments;
    const char* flag;
  };
  for (const Case& c :
       {Case{"--kv-mib 1048576", "kv-mib"},
        Case{"--kv-mib 1048575 --mean-length 1", "mean-length"},
        Case{"--kv-mib 1 --mean-length 1073741824", ""},
        Case{"--kv-mib 1 --mean-length 1 --tail 1048576", "tail"},
        Case{"--distribution prompt --prompt-length 1073741824 "
             "--prompt-layers 1024 --num-heads 1024 --head-dim 256",
             "prompt-length"}}) {
    KernelBenchOptions options;
    ASSERT_TRUE(Parses(c.arguments, &options)) << c.arguments;
    std::vector<std::string> names;
    const absl::Status status = KernelProblems(options, &names).status();
    if (std::string(c.flag).empty()) {
      EXPECT_TRUE(status.ok()) << c.arguments << ": " << status;
    } else {
      EXPECT_TRUE(absl::StrContains(status.message(), c.flag)) << status;
    }
  }
  for (const char* value : {"-1", "nan", "inf", "1e300", "99999999999"}) {
    for (const char* flag :
         {"--kv-mib", "--group-size", "--num-heads", "--head-dim",
          "--page-size", "--mean-length", "--prompt-length", "--prompt-layers",
          "--device", "--tail", "--num-samples"}) {
      KernelBenchOptions unused;
      EXPECT_FALSE(Parses(absl::StrCat(flag, "=", value), &unused))
          << flag << " " << value;
    }
  }
}

TEST(KernelsTest, ElementsAndTailsAreOfEveryProblem) {
  const Problems made = ProblemsOf(
      "--kv-mib 1 --distribution ragged,prompt --group-size 4 "
      "--mean-length 64 --prompt-length 100 --dtype fp16 --tail 50");
  ASSERT_EQ(made.problems.size(), 2u);
  for (const KernelProblem& problem : made.problems) {
    EXPECT_EQ(problem.element_type, ElementType::kHalf);
    EXPECT_EQ(problem.tail_tokens(), 50 * problem.num_sequences);
  }
  KernelBenchOptions options;
  options.dtype = "fp32";
  std::vector<std::string> names;
  EXPECT_THAT(KernelProblems(options, &names),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

// One sequence of all heads, whatever sizes the others have.
TEST(KernelsTest, APromptIsOneSequence) {
  const Problems made = ProblemsOf(
      "--kv-mib 1,2 --distribution uniform,prompt --group-size 4 "
      "--prompt-length 1000 --page-size 32");
  EXPECT_EQ(made.names,
            (std::vector<std::string>{"uniform", "uniform", "prompt"}));
  const KernelProblem& prompt = made.problems.back();
  EXPECT_EQ(prompt.num_sequences, 1);
  EXPECT_EQ(prompt.lengths, std::vector<int32_t>(8, 1000));
}

// Which are the sequences of the problem: as many lists of the same length.
TEST(KernelsTest, APromptMayHaveSeveralLayers) {
  const Problems made = ProblemsOf(
      "--distribution prompt --group-size 4 --prompt-length 1000 "
      "--prompt-layers 3");
  ASSERT_EQ(made.problems.size(), 1u);
  EXPECT_EQ(made.problems.front().num_sequences, 3);
  EXPECT_EQ(made.problems.front().lengths, std::vector<int32_t>(24, 1000));
  KernelBenchOptions unused;
  EXPECT_FALSE(Parses("--prompt-layers 0", &unused));
}

TEST(KernelsTest, ACheckTakesNoProblems) {
  KernelBenchOptions options;
  ASSERT_TRUE(
      Parses("--check --device 1 --dtype fp16 --seed 3 --num-samples 5 --json "
             "--output f.json",
             &options));
  EXPECT_TRUE(options.check);
  EXPECT_EQ(options.output, "f.json");
  for (const std::string other :
       {"--kv-mib 1", "--distribution prompt", "--prompt-layers 2",
        "--kernels decode", "--problem file", "--tail 3", "--group-size 4",
        "--head-dim 64", "--page-size 16"}) {
    KernelBenchOptions unused;
    EXPECT_FALSE(Parses("--check " + other, &unused)) << other;
  }
}

TEST(KernelsTest, ACheckOfLengthsTakesTheModelsShape) {
  KernelBenchOptions options;
  ASSERT_TRUE(
      Parses("--check --lengths a.npy --lengths b.npy --lengths-layer 0,3 "
             "--group-size 8 --head-dim 64 --page-size 32 --tensor-order hnd",
             &options));
  EXPECT_EQ(options.lengths, (std::vector<std::string>{"a.npy", "b.npy"}));
  EXPECT_EQ(options.lengths_layers, (std::vector<int32_t>{0, 3}));
  for (const std::string other :
       {"--kv-mib 1", "--kernels decode", "--problem file", "--tail 3"}) {
    KernelBenchOptions unused;
    EXPECT_FALSE(Parses("--check --lengths a.npy " + other, &unused)) << other;
  }
}

// Three prompts of two layers. The second layer is the more ragged one.
std::string WriteLengths(const TempFolder& folder) {
  return folder.Write(
      "kept.npy",
      EncodeNpyInts(std::vector<int64_t>{3, 2, 2},
                    std::vector<int32_t>{500, 500, 901, 33, 400, 410, 17, 800,
                                         700, 710, 1000, 48}));
}

TEST(KernelsTest, ListsHaveTheCountsOfTheFile) {
  const TempFolder folder;
  // 4096 tokens of 256 bytes.
  const std::string flags =
      absl::StrCat("--kv-mib 1 --group-size 2,8 --head-dim 64 --lengths ",
                   WriteLengths(folder));
  const Problems made = ProblemsOf(flags);
  EXPECT_EQ(made.names, (std::vector<std::string>{
                            "kept layer 1", "kept layer 1, uniform",
                            "kept layer 1", "kept layer 1, uniform"}));
  ASSERT_EQ(made.problems.size(), 4u);
  const KernelProblem& ragged = made.problems[2];
  const KernelProblem& even = made.problems[3];
  // 934 + 817 + 1048 and 934 entries are too few.
  EXPECT_EQ(ragged.lengths, (std::vector<int32_t>{901, 33, 17, 800, 1000, 48,
                                                  901, 33, 17, 800}));
  EXPECT_EQ(even.lengths, std::vector<int32_t>(10, 455));
  for (const KernelProblem* problem : {&ragged, &even}) {
    EXPECT_EQ(problem->num_sequences, 5);
    EXPECT_EQ(problem->num_heads, 2);
    EXPECT_EQ(problem->group_size, 8);
    EXPECT_EQ(problem->head_dim, 64);
    EXPECT_EQ(problem->kv_bytes(), 4550 * 256);
  }
  EXPECT_EQ(made.problems[0].group_size, 2);
  const Problems other = ProblemsOf(flags + " --lengths-layer 1,0");
  EXPECT_EQ(other.names.front(), "kept layer 1");
  EXPECT_EQ(other.names.back(), "kept layer 0, uniform");
  EXPECT_EQ(other.problems[4].lengths,
            (std::vector<int32_t>{500, 500, 400, 410, 700, 710, 500, 500}));
}

TEST(KernelsTest, WithoutALayerTheMedianAndTheMostRaggedAreTaken) {
  const TempFolder folder;
  const std::string path = folder.Write(
      "kept.npy",
      EncodeNpyInts(std::vector<int64_t>{1, 3, 2},
                    std::vector<int32_t>{9000, 1000, 5000, 5000, 6000, 4000}));
  EXPECT_EQ(
      ProblemsOf("--kv-mib 1 --group-size 4 --lengths " + path).names,
      (std::vector<std::string>{"kept layer 2", "kept layer 2, uniform",
                                "kept layer 0", "kept layer 0, uniform"}));
}

TEST(KernelsTest, LengthsThatCannotBeAreRefused) {
  const TempFolder folder;
  const std::string path = WriteLengths(folder);
  const auto refusal = [&](const std::string& more) {
    KernelBenchOptions options;
    EXPECT_TRUE(Parses(absl::StrCat("--lengths ", path, " ", more), &options))
        << more;
    std::vector<std::string> names;
    return std::string(KernelProblems(options, &names).status().message());
  };
  EXPECT_EQ(refusal("--lengths-layer 2"),
            "--lengths-layer: expected 0 to 1, a layer of " + path + ", got 2");
  EXPECT_EQ(refusal("--kv-mib 1048576 --head-dim 64"),
            "kept layer 1: lists: expected at most 65535 (sequences times "
            "heads), got more for 4294967296 entries");
  EXPECT_EQ(refusal("--kv-mib 512 --tail 1048576 --head-dim 64"),
            path +
                ", kv-mib, tail: tail_tokens: expected fewer than 2^31 "
                "tokens in all lists, got 1048576");
  EXPECT_NE(refusal("--lengths /nowhere.npy --kv-mib 1").find("/nowhere.npy"),
            std::string::npos);
  for (const char* other :
       {"--distribution ragged", "--num-heads 2", "--mean-length 64",
        "--prompt-length 64", "--prompt-layers 2", "--lengths-layer -1",
        "--lengths-layer x"}) {
    KernelBenchOptions unused;
    EXPECT_FALSE(Parses(absl::StrCat("--lengths a.npy ", other), &unused))
        << other;
  }
  KernelBenchOptions unused;
  EXPECT_FALSE(Parses("--lengths-layer 1", &unused));
}

TEST(KernelsTest, AProblemFileMayHaveTheLengthsOfAModel) {
  const TempFolder folder;
  const std::string flags =
      absl::StrCat("--lengths ", WriteLengths(folder),
                   " --kv-mib 1,2 --problem ", folder.File("problem"));
  const Problems written = ProblemsOf(flags);
  EXPECT_EQ(written.names, std::vector<std::string>{"kept layer 1"});
  const Problems read = ProblemsOf(flags);
  EXPECT_EQ(read.names, std::vector<std::string>{"file"});
  EXPECT_EQ(read.problems, written.problems);
}

TEST(KernelsTest, AProblemFileIsOfOurOwnOrder) {
  for (const char* name :
       {"hnd", "nhd", "hnd-apart", "nhd-apart", "hnd-pairs", "nhd-pairs"}) {
    KernelBenchOptions options;
    EXPECT_TRUE(Parses(absl::StrCat("--tensor-order ", name), &options));
    EXPECT_EQ(options.tensor_order, name);
    options.problem = "/nowhere/problem";
    std::vector<std::string> names;
    EXPECT_EQ(KernelProblems(options, &names).status().message(),
              absl::StrCat("--tensor-order: expected pages with --problem, "
                           "whose format says where every element is in this "
                           "order, got ",
                           name));
  }
  KernelBenchOptions options;
  EXPECT_TRUE(Parses("--tensor-order pages", &options));
  EXPECT_FALSE(Parses("--tensor-order nhd_pairs", &options));
}

// The names of what the figures and the papers speak of.
TEST(KernelsTest, KernelsAreChosenByName) {
  KernelBenchOptions options;
  EXPECT_TRUE(
      Parses("--kernels decode,decode_invariant,snapkv,select_uniform,"
             "select_adakv,select_floor,select_global,select_critical",
             &options));
  EXPECT_EQ(options.kernels.size(), 8u);
  EXPECT_FALSE(Parses("--kernels decoed", &options));
}

TEST(KernelsTest, AHeadMayHaveAMillionEntries) {
  const Problems made = ProblemsOf(
      "--distribution prompt --num-heads 1 --prompt-length 1048576 "
      "--group-size 4");
  ASSERT_EQ(made.problems.size(), 1u);
  EXPECT_EQ(made.problems[0].lengths, std::vector<int32_t>{1048576});
}

TEST(KernelsTest, AProblemFileIsWrittenOnceAndThenRead) {
  KernelBenchOptions options;
  options.kv_mib = {1, 2};
  const TempFolder folder;
  options.problem = folder.File("problem");
  std::vector<std::string> names;
  const auto written = KernelProblems(options, &names);
  ASSERT_TRUE(written.ok()) << written.status();
  ASSERT_EQ(written->size(), 1u);
  EXPECT_EQ(names, std::vector<std::string>{"uniform"});
  options.kv_mib = {5};
  const auto read = KernelProblems(options, &names);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(names, std::vector<std::string>{"file"});
  EXPECT_EQ(*read, *written);
}

// On a machine with a GPU too: nobody has so many.
TEST(KernelsTest, SaysWhyThereIsNothingToMeasure) {
  KernelBenchOptions options;
  options.device = 1 << 20;
  nlohmann::ordered_json report;
  const absl::Status status = RunKernels(options, &report);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(status.message().find("CUDA"), std::string::npos);
  EXPECT_TRUE(report.empty());
}

}  // namespace
}  // namespace blockmgr
