#include "tests/testing/counted_new.h"

#include <algorithm>
#include <cstdint>
#include <new>
#include <vector>

#include <gtest/gtest.h>

namespace blockmgr {
namespace {

TEST(CountedNewTest, CountsCallsAndBytes) {
  const int64_t allocations = num_allocations();
  const int64_t bytes = AllocatedBytes();
  auto* memory = new std::vector<int32_t>(1000);
  const int64_t allocated = AllocatedBytes() - bytes;
  EXPECT_EQ(num_allocations() - allocations, 2);
  EXPECT_GT(allocated, 4000);  // the elements, and what points to them
  delete memory;
  EXPECT_EQ(AllocatedBytes(), bytes);
}

TEST(CountedNewTest, RemembersThePeak) {
  const int64_t bytes = AllocatedBytes();
  ForgetPeak();
  EXPECT_EQ(PeakAllocatedBytes(), bytes);
  // Calls of the function, which compilers must not leave out as they may do
  // with expressions.
  for (int i = 0; i < 3; ++i) ::operator delete(::operator new(1000));
  EXPECT_EQ(PeakAllocatedBytes(), bytes + 1000);
  ForgetPeak();
  EXPECT_EQ(PeakAllocatedBytes(), bytes);
}

TEST(CountedNewTest, CountsWhatIsAskedForWithoutExceptions) {
  const int64_t allocations = num_allocations();
  const int64_t bytes = AllocatedBytes();
  auto* one = new (std::nothrow) int64_t(1);
  auto* many = new (std::nothrow) int64_t[9];
  const int64_t allocated = AllocatedBytes() - bytes;
  EXPECT_EQ(num_allocations() - allocations, 2);
  EXPECT_EQ(allocated, 80);
  delete one;
  delete[] many;
  EXPECT_EQ(AllocatedBytes(), bytes);
}

// Memory that one operator gave and another takes back ends a sanitized run.
TEST(CountedNewTest, TheLibrarysOwnMemoryIsCounted) {
  std::vector<int32_t> values(1000);
  for (int32_t i = 0; i < 1000; ++i) values[i] = i * 7919 % 1000;
  const int64_t allocations = num_allocations();
  const int64_t bytes = AllocatedBytes();
  std::stable_sort(values.begin(), values.end());
  EXPECT_EQ(num_allocations() - allocations, 1);
  EXPECT_EQ(AllocatedBytes(), bytes);
  EXPECT_TRUE(std::ranges::is_sorted(values));
}

}  // namespace
}  // namespace blockmgr
