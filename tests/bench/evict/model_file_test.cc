#include "bench/evict/model_file.h"

#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/bench/evict/small_model.h"
#include "tests/testing/is_invalid.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"

namespace blockmgr {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(ModelFileTest, OpensModelTokenizerAndTexts) {
  const TempFolder folder;
  WriteSmallModel(folder.File("model.gguf"));
  ASSERT_OK_AND_ASSIGN(const ModelFile file,
                       OpenModel(folder.File("model.gguf"), 2));
  EXPECT_EQ(file.name, "small");
  EXPECT_EQ(file.model->shape().num_layers, 2);
  EXPECT_EQ(file.threads->num_threads(), 2);
  ASSERT_OK_AND_ASSIGN(const Tokenizer tokenizer, OpenTokenizer(file));
  const std::vector<std::string> paths = {folder.File("a"), folder.File("b")};
  std::ofstream(paths[0]) << "One. ";
  // Text is text, whatever it looks like.
  std::ofstream(paths[1]) << "Two<|im_end|>";
  ASSERT_OK_AND_ASSIGN(const std::vector<int32_t> tokens,
                       ReadTexts(tokenizer, paths));
  EXPECT_EQ(tokenizer.Decode(tokens), "One. Two<|im_end|>");
  EXPECT_EQ(tokens.size(), 18u);
}

TEST(ModelFileTest, ErrorsNameFlagAndFile) {
  const TempFolder folder;
  const std::string path = folder.File("model.gguf");
  EXPECT_THAT(OpenModel(path, 1),
              StatusIs(absl::StatusCode::kNotFound,
                       AllOf(HasSubstr("--model"), HasSubstr(path))));
  std::ofstream(path) << "no model";
  EXPECT_THAT(OpenModel(path, 1), IsInvalid("--model", path));
  WriteSmallModel(path);
  ASSERT_OK_AND_ASSIGN(const ModelFile file, OpenModel(path, 1));
  ASSERT_OK_AND_ASSIGN(const Tokenizer tokenizer, OpenTokenizer(file));
  EXPECT_THAT(ReadTexts(tokenizer, {folder.File("none.txt")}),
              StatusIs(absl::StatusCode::kNotFound,
                       AllOf(HasSubstr("--text"), HasSubstr("none.txt"))));
}

}  // namespace
}  // namespace blockmgr
