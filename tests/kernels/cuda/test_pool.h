// A pool of any strides, for kernels, next to the CPU backend that says what
// must be in it.
#ifndef TESTS_KERNELS_CUDA_TEST_POOL_H_
#define TESTS_KERNELS_CUDA_TEST_POOL_H_

#include <cstdint>
#include <string>
#include <vector>

#include "blockmgr/base/ids.h"
#include "blockmgr/base/model_layout.h"
#include "kernels/backend.h"
#include "kernels/cuda/paged_pool.h"
#include "kernels/cuda/simt.h"
#include "tests/kernels/cuda/test_device.h"
#include "tests/testing/random.h"

namespace blockmgr {

// Forward, reverse, and two random schedules drawn from `rng`.
std::vector<simt::Schedule> SomeSchedules(Rng& rng);

class TestPool {
 public:
  // All bytes 0xFF, positions -1. Unless the order is our own, each layer has
  // its own base, with padding behind it.
  TestPool(const ModelLayout& layout, KvTensorOrder order);

  const PagedPool& pool() const { return pool_; }
  int64_t num_slots() const { return pool_.num_slots(); }
  SharedVector<int32_t>& positions() { return positions_; }

  // What the backend has in every slot.
  void CopyFrom(const Backend& backend);
  // Empty if every slot has the bits of the backend's, and nothing else was
  // written; else the first difference.
  std::string Difference(const Backend& backend) const;
  // K row, then V row, as ReadSlot gives them.
  std::vector<float> ReadSlot(SlotIndex slot) const;
  // The bytes of K and V of a slot.
  std::vector<char> SlotBytes(SlotIndex slot) const;

 private:
  char* KeyRow(SlotIndex slot) const;
  int64_t LayerBytes() const;

  ModelLayout layout_;
  PagedPool pool_;
  SharedVector<simt::Vector16> bytes_;  // aligned
  int64_t num_bytes_ = 0;
  SharedVector<char*> layer_bases_;
  SharedVector<int32_t> positions_;
};

}  // namespace blockmgr

#endif  // TESTS_KERNELS_CUDA_TEST_POOL_H_
