#include "bench/evict/tensor_flags.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "blockmgr/base/npy.h"
#include "blockmgr/base/status_macros.h"
#include "tests/bench/evict/small_model.h"
#include "tests/testing/is_invalid.h"
#include "tests/testing/parse_flags.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"

namespace blockmgr {
namespace {

absl::StatusOr<Tensors> Read(std::vector<std::string> arguments) {
  CLI::App app;
  TensorFlags flags;
  AddTensorFlags(app, &flags);
  BM_RETURN_IF_ERROR(ParseFlags(&app, std::move(arguments)));
  return ReadTensors(flags);
}

void ExpectRefused(const std::vector<std::string>& arguments,
                   const std::string& why) {
  EXPECT_THAT(Read(arguments), IsInvalid(why));
}

TEST(TensorFlagsTest, MakesSyntheticTensors) {
  ASSERT_OK_AND_ASSIGN(const Tensors tensors,
                       Read({"--synthetic", "2x6x3x40x8", "--seed", "5",
                             "--rope-theta", "500000"}));
  EXPECT_EQ(tensors.num_layers(), 2);
  EXPECT_EQ(tensors.num_q_heads, 6);
  EXPECT_EQ(tensors.num_heads, 3);
  EXPECT_EQ(tensors.length, 40);
  EXPECT_EQ(tensors.head_dim, 8);
  EXPECT_EQ(tensors.rope_theta, 500000);
  ASSERT_OK_AND_ASSIGN(const Tensors other,
                       Read({"--synthetic", "2x6x3x40x8"}));
  EXPECT_NE(other.layers[0].keys, tensors.layers[0].keys);
}

TEST(TensorFlagsTest, TheBaseOfTheRotationIsANumber) {
  for (const char* text : {"nan", "inf", "0.5", "-1", "x"}) {
    ExpectRefused({"--synthetic", "1x2x1x8x4", "--rope-theta", text},
                  absl::StrCat("finite number of at least 1, got ", text));
  }
}

TEST(TensorFlagsTest, ASeedIsOfMadeUpTensors) {
  ExpectRefused({"--keys", "k.npy", "--seed", "3"}, "--synthetic");
}

TEST(TensorFlagsTest, ReadsFiles) {
  const TempFolder folder;
  NpyArray keys;
  keys.shape = {1, 2, 4};
  keys.values.resize(8, 0.5f);
  ASSERT_THAT(WriteNpy(folder.File("k.npy"), keys), IsOk());
  ASSERT_OK_AND_ASSIGN(const Tensors tensors,
                       Read({"--keys", folder.File("k.npy")}));
  EXPECT_EQ(tensors.layers[0].keys, keys.values);
}

TEST(TensorFlagsTest, WantsEitherFilesOrAShape) {
  ExpectRefused({}, "got 0");
  ExpectRefused({"--keys", "k.npy", "--synthetic", "1x1x1x1x4"}, "got 2");
}

TEST(TensorFlagsTest, ComputesATextWithAModel) {
  const TempFolder folder;
  const std::string model = folder.File("model.gguf");
  const std::string text = folder.File("text");
  WriteSmallModel(model);
  WriteSmallText(text, 3);
  const std::vector<std::string> arguments = {"--model", model,       "--text",
                                              text,      "--threads", "1"};
  ASSERT_OK_AND_ASSIGN(const Tensors all, Read(arguments));
  // "This is sentence number 0. "
  EXPECT_EQ(all.length, 81);
  EXPECT_EQ(all.num_layers(), 2);
  EXPECT_EQ(all.num_q_heads, 4);
  EXPECT_EQ(all.num_heads, 2);
  EXPECT_EQ(all.layers[1].output_projection.size(), 4u * 64 * 256);
  std::vector<std::string> some = arguments;
  some.insert(some.end(), {"--context", "10"});
  ASSERT_OK_AND_ASSIGN(const Tensors first, Read(some));
  EXPECT_EQ(first.length, 10);
  EXPECT_EQ(first.layers[0].keys[5], all.layers[0].keys[5]);
  EXPECT_TRUE(first.layers[0].scores.empty());
  some.emplace_back("--replay-scores");
  ASSERT_OK_AND_ASSIGN(const Tensors scored, Read(some));
  ASSERT_EQ(scored.layers[1].scores.size(), 2u * 10);
  EXPECT_GT(*std::ranges::max_element(scored.layers[1].scores), 0.05f);
  some.pop_back();
  some.back() = "82";
  ExpectRefused(some, "--context: expected at most 81");
  ExpectRefused({"--model", model}, "--text: expected a file");
  ExpectRefused({"--text", text, "--synthetic", "1x1x1x4x4"}, "--model");
  some = arguments;
  some.insert(some.end(), {"--synthetic", "1x1x1x4x4"});
  ExpectRefused(some, "got 2");
}

// Each context is what a text that begins there would give.
TEST(TensorFlagsTest, VisitsContextsThatLieEvenlyInTheText) {
  const TempFolder folder;
  TensorFlags flags;
  flags.model = folder.File("model.gguf");
  flags.texts = {folder.File("text")};
  flags.num_threads = 1;
  flags.context = 20;
  WriteSmallModel(flags.model);
  WriteSmallText(flags.texts[0], 3);
  std::vector<ModelOracle> visited;
  ContextCut cut{.num_contexts = 3, .query_tokens = 5};
  const auto visit = [&](ModelOracle oracle) {
    visited.push_back(std::move(oracle));
    return absl::OkStatus();
  };
  ASSERT_THAT(VisitContexts(flags, cut, visit), IsOk());
  ASSERT_EQ(visited.size(), 3u);
  std::ifstream file(flags.texts[0]);
  const std::string all((std::istreambuf_iterator<char>(file)), {});
  for (size_t i = 0; i < visited.size(); ++i) {
    flags.texts = {folder.File("part")};
    std::ofstream(flags.texts[0]) << all.substr(i * 27);
    ASSERT_OK_AND_ASSIGN(const ModelOracle alone, ReadOracle(flags, 5));
    EXPECT_EQ(visited[i].tensors.length, 20);
    EXPECT_EQ(visited[i].tensors.layers[1].keys, alone.tensors.layers[1].keys);
    EXPECT_EQ(visited[i].importances, alone.importances);
    EXPECT_EQ(visited[i].importances.size(), 2u * 2 * 20);
  }
  flags.texts = {folder.File("text")};
  cut = {.num_contexts = 5};
  EXPECT_THAT(VisitContexts(flags, cut, visit),
              IsInvalid("--num-contexts: expected at most 4"));
  flags.model.clear();
  EXPECT_THAT(VisitContexts(flags, cut, visit), IsInvalid("--model"));
}

TEST(TensorFlagsTest, RefusesShapesThatAreNone) {
  for (const char* shape :
       {"4x8x2x1024", "4x8x2x1024x64x2", "4x8x2xax64", "0x8x2x1024x64",
        "4x8x2x-1x64", "4x8x2x99999999999x64"}) {
    ExpectRefused({"--synthetic", shape}, "--synthetic: expected LAYERS");
  }
  ExpectRefused({"--synthetic", "1x3x2x8x8"}, "a multiple of the 2 KV heads");
  ExpectRefused({"--synthetic", "1000x64x8x1000000x128"},
                "expected at most 1.6e+10 values");
  ExpectRefused({"--synthetic", "1x1x1x4x4", "--rope-theta", "0"},
                "--rope-theta");
}

}  // namespace
}  // namespace blockmgr
