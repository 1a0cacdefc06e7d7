// The pools of cases for attention and scores, in any of the orders that
// engines have.
#ifndef TESTS_KERNELS_CUDA_CASE_POOL_H_
#define TESTS_KERNELS_CUDA_CASE_POOL_H_

#include <cstdint>

#include <gtest/gtest.h>

#include "blockmgr/base/ids.h"
#include "blockmgr/base/model_layout.h"
#include "kernels/cuda/paged_pool.h"
#include "tests/kernels/cuda/test_device.h"

namespace blockmgr {

// CasePool has rows of elements of two bytes. Until a row is written all of its
// bits are set, which is NaN in bf16 and fp16. All but kPages and kNhdApart
// have an address per layer, with something between layers; kNhdApart has V
// before K, so that strides are negative.
class CasePool {
 public:
  // far: blocks are a GiB apart, of which no more than their rows is touched,
  // so that offsets do not fit 32 bits.
  CasePool(const ModelLayout& layout, KvTensorOrder order, bool far);
  CasePool(const CasePool&) = delete;
  CasePool& operator=(const CasePool&) = delete;
  ~CasePool();

  // What the constructor takes of AllocateShared.
  static int64_t CountBytes(const ModelLayout& layout, KvTensorOrder order,
                            bool far);

  uint16_t* Row(SlotIndex slot, bool is_value) const;
  // Borrows the pool.
  PagedPool View() const;

 private:
  struct Places;
  static Places PlacesOf(const ModelLayout& layout, KvTensorOrder order,
                         bool far);

  const ModelLayout layout_;
  KvPoolLayout strides_;
  int64_t num_bytes_ = 0;
  char* memory_ = nullptr;
  char* first_key_ = nullptr;
  SharedVector<char*> layer_bases_;
};

// Calls check(shape) with the shape's pool in every order, far and not. Where
// the device has no room for one of them, the test is skipped but for the
// others.
template <typename Shape, typename Check>
void ForEveryPool(Shape shape, const Check& check) {
  bool has_room = true;
  for (const bool far : {false, true}) {
    for (const KvTensorOrder order : kAllKvTensorOrders) {
      SCOPED_TRACE(testing::Message()
                   << "order " << static_cast<int>(order) << " far " << far);
      shape.order = order;
      shape.far = far;
      if (PoolBytes(shape) > FreeSharedBytes()) {
        has_room = false;
        continue;
      }
      check(shape);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
  if (!has_room) GTEST_SKIP() << "no GPU: none with so much memory free";
}

}  // namespace blockmgr

#endif  // TESTS_KERNELS_CUDA_CASE_POOL_H_
