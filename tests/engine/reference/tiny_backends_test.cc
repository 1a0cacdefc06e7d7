#include "engine/reference/tiny_backends.h"

#include <memory>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/reference/tiny_model.h"
#include "tests/engine/reference/test_util.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

ModelLayout Layout(int32_t num_shards) {
  ModelLayout layout =
      MakeLayout(SmallModel(1)->shape(), 16, DType::kBFloat16, 8);
  layout.num_shards = num_shards;
  return layout;
}

TEST(TinyBackendsTest, MakesOneForEachShard) {
  for (const int32_t num_shards : {1, 2}) {
    ASSERT_OK_AND_ASSIGN(const std::vector<std::unique_ptr<Backend>> backends,
                         CreateTinyBackends(Layout(num_shards), {}));
    ASSERT_EQ(std::ssize(backends), num_shards);
    for (const std::unique_ptr<Backend>& backend : backends) {
      EXPECT_EQ(backend->layout(), Layout(num_shards).ShardLayout());
    }
  }
}

TEST(TinyBackendsTest, RefusesWhatIsNotThere) {
  EXPECT_FALSE(CreateTinyBackends(Layout(3), {}).ok());
  EXPECT_FALSE(CreateTinyBackends(Layout(3), {.cuda = true}).ok());
  // Rows of 16 elements, which no kernel has.
  const auto backends = CreateTinyBackends(Layout(1), {.cuda = true});
  ASSERT_FALSE(backends.ok());
  EXPECT_THAT(backends.status().message(),
              AnyOf(HasSubstr("head_dim: expected 64, 128 or 256"),
                    HasSubstr("backend: expected cpu")));
}

TEST(TinyBackendsTest, RefusesADeviceThatIsNotThere) {
  ModelLayout layout = Layout(1);
  layout.head_dim = 64;
  EXPECT_FALSE(CreateTinyBackends(layout, {.cuda = true, .device = 1000}).ok());
}

}  // namespace
}  // namespace blockmgr
