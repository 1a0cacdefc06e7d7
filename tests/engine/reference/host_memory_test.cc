#include "engine/reference/host_memory.h"

#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>

#include <absl/strings/string_view.h>
#include <gtest/gtest.h>

#include "tests/testing/is_invalid.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"

namespace blockmgr {
namespace {

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

class GroupMemoryTest : public ::testing::Test {
 protected:
  void Write(const std::string& path, absl::string_view text) {
    std::filesystem::create_directories(
        std::filesystem::path(root_.File(path)).parent_path());
    root_.Write(path, text);
  }
  int64_t Bytes() const { return GroupMemoryBytes(root_.path()); }

  const TempFolder root_;
};

TEST_F(GroupMemoryTest, WithoutGroupsThereIsNoLimit) {
  EXPECT_EQ(Bytes(), kNoLimit);
}

TEST_F(GroupMemoryTest, TheLeastLimitOfTheGroupsAboveCounts) {
  Write("proc/self/cgroup", "0::/a.slice/b:c\n");
  EXPECT_EQ(Bytes(), kNoLimit);
  Write("sys/fs/cgroup/a.slice/b:c/memory.max", "max\n");
  EXPECT_EQ(Bytes(), kNoLimit);
  Write("sys/fs/cgroup/a.slice/memory.max", "3000\n");
  EXPECT_EQ(Bytes(), 3000);
  Write("sys/fs/cgroup/a.slice/b:c/memory.max", "2000\n");
  EXPECT_EQ(Bytes(), 2000);
  // As a container sees its own.
  Write("sys/fs/cgroup/memory.max", "1000\n");
  EXPECT_EQ(Bytes(), 1000);
}

TEST_F(GroupMemoryTest, KnowsVersionOne) {
  Write("proc/self/cgroup",
        "9:name=systemd:/\n4:memory:/a/b\n3:cpuset:/\n0::/\n");
  Write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(Bytes(), 9223372036854771712);
  Write("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "5000\n");
  EXPECT_EQ(Bytes(), 5000);
}

TEST(MemoryBytesTest, TheProcessHasSomeOfIt) {
  EXPECT_GT(ResidentBytes(), 0);
  EXPECT_LT(ResidentBytes(), MemoryBytes());
  EXPECT_LE(MemoryBytes(), GroupMemoryBytes());
}

TEST(CheckHostBlocksTest, WeightsAndPoolTakeTheirPart) {
  const ModelLayout layout{.num_layers = 1,
                           .num_heads = 1,
                           .num_q_heads = 1,
                           .head_dim = 16,
                           .page_size = 16,
                           .dtype = DType::kFloat32,
                           .num_blocks = 8};
  ASSERT_EQ(layout.block_bytes(), 2048);
  EXPECT_OK(CheckHostBlocks(layout, 5, 10240, 0));
  EXPECT_OK(CheckHostBlocks(layout, 2, 10240, 5000));
  EXPECT_THAT(CheckHostBlocks(layout, 3, 10240, 5000),
              IsInvalid("num_host_blocks: expected at most 2, as 10240 bytes "
                        "of memory have room for 5240 beside weights and "
                        "pool, and a block has 2048; got 3"));
  EXPECT_OK(CheckHostBlocks(layout, 0, 10240, 20000));
  EXPECT_THAT(CheckHostBlocks(layout, 1, 10240, 20000),
              IsInvalid("expected at most 0"));
}

}  // namespace
}  // namespace blockmgr
