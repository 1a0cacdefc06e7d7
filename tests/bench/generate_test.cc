// The text client against a scripted daemon, with a tokenizer whose tokens are
// bytes: token 7 of the daemon is one letter.
#include "bench/serve/generate.h"

#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/bench/fake_daemon.h"
#include "tests/testing/gguf_writer.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int32_t kEnd = 26;  // the token behind the letters

class GenerateTest : public FakeDaemonTest {
 protected:
  GenerateTest() {
    options_.model = folder_.File("model.gguf");
    options_.daemon.address = address_;
    options_.daemon.ready_check_timeout_s = 20;
    options_.max_tokens = 3;
    options_.raw = true;
    WriteModel();
  }

  // The letters a to z are the tokens 0 to 25.
  void WriteModel() const {
    std::vector<std::string> tokens;
    for (char letter = 'a'; letter <= 'z'; ++letter) {
      tokens.emplace_back(1, letter);
    }
    tokens.emplace_back("<|im_end|>");
    std::vector<int32_t> types(tokens.size(), 1);
    types.back() = 3;
    GgufWriter writer;
    writer.Add("tokenizer.ggml.model", "gpt2");
    writer.Add("tokenizer.ggml.pre", "gpt-2");
    writer.Add("tokenizer.ggml.tokens", tokens);
    writer.Add("tokenizer.ggml.token_type", types);
    writer.Add("tokenizer.ggml.merges", std::vector<std::string>());
    writer.Add("tokenizer.ggml.eos_token_id", uint32_t{kEnd});
    std::ofstream(options_.model, std::ios::binary) << writer.Finish();
  }

  // Returns what is printed to standard output.
  std::string Run(int64_t num_failed = 0) {
    testing::internal::CaptureStdout();
    const absl::StatusOr<int64_t> failed = RunGenerate(options_);
    std::string text = testing::internal::GetCapturedStdout();
    EXPECT_OK(failed);
    EXPECT_EQ(failed.value_or(-1), num_failed);
    return text;
  }

  GenerateOptions options_;
};

TEST_F(GenerateTest, PrintsTheTextOfTheTokens) {
  StartDaemon({});
  options_.prompts = {"bad"};
  EXPECT_EQ(Run(), "hhh\n");
  ASSERT_EQ(daemon_->requests().size(), 1u);
  const v1::SubmitRequest request = daemon_->requests().front();
  EXPECT_THAT(request.prompt_token_ids(), ElementsAre(1, 0, 3));
  EXPECT_THAT(request.stop_token_ids(), ElementsAre(kEnd));
  EXPECT_TRUE(request.has_eviction());
  EXPECT_EQ(request.eviction().ByteSizeLong(), 0u);
}

TEST_F(GenerateTest, AsksAllQuestionsInOneRun) {
  StartDaemon({});
  options_.prompts = {"a", "cd"};
  options_.prompt_files = {folder_.Write("question", "ef")};
  options_.json = true;
  options_.eviction.keep_ratio = "0.5";
  const nlohmann::json report = nlohmann::json::parse(Run());
  ASSERT_EQ(report["answers"].size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(report["answers"][i]["text"], "hhh");
    EXPECT_EQ(report["answers"][i]["output_tokens"], 3);
    EXPECT_EQ(report["answers"][i]["prompt_tokens"], i == 0 ? 1 : 2);
  }
  EXPECT_EQ(report["evicted"]["entries"], 0);
  for (const v1::SubmitRequest& request : daemon_->requests()) {
    EXPECT_EQ(request.eviction().mode(), v1::EVICTION_MODE_AFTER_PREFILL);
    EXPECT_EQ(request.eviction().target().keep_ratio(), "0.5");
  }
}

TEST_F(GenerateTest, SaysWhichRequestFailed) {
  StartDaemon({.refused_prompt_tokens = 2});
  options_.prompts = {"a", "cd"};
  options_.json = true;
  const nlohmann::json report = nlohmann::json::parse(Run(/*num_failed=*/1));
  EXPECT_FALSE(report["answers"][0].contains("error"));
  EXPECT_THAT(report["answers"][1]["error"].get<std::string>(),
              HasSubstr("queue full"));
}

TEST_F(GenerateTest, AnswersStayIfTheDaemonGoesAway) {
  options_.prompts = {"a", "cd"};
  options_.json = true;
  StartDaemon({.dies = true});
  const nlohmann::json report = nlohmann::json::parse(Run());
  ASSERT_EQ(report["answers"].size(), 2u);
  EXPECT_EQ(report["answers"][1]["text"], "hhh");
  EXPECT_TRUE(report["evicted"].is_null());
  EXPECT_THAT(report["note"].get<std::string>(),
              HasSubstr("did not answer at the end: gone for good"));
}

TEST_F(GenerateTest, RequestsThatADaemonTookWithItHaveFailed) {
  options_.prompts = {"a", "cd"};
  options_.json = true;
  StartDaemon({.submissions_before_break = 0, .dies = true});
  const nlohmann::json report = nlohmann::json::parse(Run(/*num_failed=*/2));
  ASSERT_EQ(report["answers"].size(), 2u);
  EXPECT_TRUE(report["answers"][0].contains("error"));
  EXPECT_TRUE(report["evicted"].is_null());
}

TEST_F(GenerateTest, CountersOfAnotherDaemonAreNotSubtracted) {
  options_.prompts = {"a"};
  options_.json = true;
  StartDaemon({.restarts = true});
  const nlohmann::json report = nlohmann::json::parse(Run());
  EXPECT_EQ(report["answers"][0]["text"], "hhh");
  EXPECT_TRUE(report["evicted"].is_null());
  EXPECT_THAT(report["note"].get<std::string>(), HasSubstr("started again"));
  StopDaemon();
  StartDaemon({.restarts = true});
  options_.json = false;
  testing::internal::CaptureStderr();
  EXPECT_EQ(Run(), "hhh\n");
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("[what the daemon evicted is not known"));
}

TEST_F(GenerateTest, FlagsWithoutEffectAreRefused) {
  options_.prompts = {"a"};
  options_.system = "Be kind.";
  EXPECT_THAT(RunGenerate(options_).status().message(),
              HasSubstr("system: has no effect with --raw"));
  CLI::App app;
  GenerateOptions options;
  AddGenerateFlags(&app, &options);
  EXPECT_EQ(app.get_option_no_throw("--keep-prefix-cache"), nullptr);
}

TEST_F(GenerateTest, WhatIsMissingIsNamed) {
  const auto expect_error = [this](const std::string& text) {
    EXPECT_THAT(RunGenerate(options_).status().message(), HasSubstr(text));
  };
  expect_error("prompt: expected at least one, or a --prompt-file");
  options_.prompt_files = {"/no/such/file"};
  expect_error("prompt-file: cannot read /no/such/file");
  options_.prompt_files = {folder_.path()};
  expect_error("which is a folder");
  options_.prompt_files = {};
  options_.prompts = {""};
  expect_error("prompt: expected text, got none");
  options_.raw = false;
  expect_error("tokenizer.chat_template");
  options_.model = "/no/such/model";
  expect_error("/no/such/model");
}

}  // namespace
}  // namespace blockmgr
