// Bugs planted in what the compiler made: each barrier, each wait for copies
// and the one for earlier kernels is taken out of the PTX of decode attention.
// The interpreter, or the comparison with float64, notices every one.
#include <cstddef>
#include <string>

#include <cuda_runtime_api.h>

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

#include "tests/kernels/cuda/attention/decode_runner.h"
#include "tests/kernels/ptx/ptx_device.h"

namespace blockmgr {
namespace {

// Lists that CTAs share, of regions and tails longer than the stages.
std::string Complaint() {
  for (const int32_t num_ctas : {3, 2}) {
    DecodeRunner<simt::BFloat16> runner({.num_heads = 2,
                                         .group_size = 4,
                                         .head_dim = 64,
                                         .page_size = 16,
                                         .region_lengths = {330, 70, 40, 7},
                                         .tail_lengths = {190, 300}},
                                        1);
    const std::string error = runner.Run({.num_ctas = num_ctas});
    if (!error.empty()) return error;
    const AttentionError found = runner.Error();
    if (!(found.relative <= 4e-3)) return absl::StrCat(found.relative);
    if (!(found.lse <= 2e-5)) return absl::StrCat(found.lse);
  }
  return "";
}

class CompiledBugsTest : public testing::TestWithParam<const char*> {
 protected:
  void TearDown() override { Forget(nullptr); }

  static void Forget(const ptx::Edit& edit) {
    ptx::TheDevice().SetEdit(edit);
    static_cast<void>(cudaGetLastError());
  }
};

TEST_P(CompiledBugsTest, EachIsNoticed) {
  const std::string instruction = GetParam();
  ASSERT_EQ(Complaint(), "");
  std::size_t num_places = 1;
  for (std::size_t place = 0; place < num_places; ++place) {
    std::size_t found = 0;
    Forget([&](const std::string& name, std::string* text) {
      if (!absl::StrContains(name, "15DecodeAttention")) return;
      for (std::size_t at = text->find(instruction); at != text->npos;
           at = text->find(instruction, at + 1)) {
        // A comment from here on: the line stays.
        if (found++ == place) text->replace(at, 2, "//");
      }
    });
    EXPECT_NE(Complaint(), "") << instruction << " " << place;
    num_places = found;
  }
  EXPECT_GE(num_places, 1u);
}

INSTANTIATE_TEST_SUITE_P(All, CompiledBugsTest,
                         testing::Values("bar.sync", "bar.warp.sync",
                                         "cp.async.wait_group",
                                         "griddepcontrol.wait"));

}  // namespace
}  // namespace blockmgr
