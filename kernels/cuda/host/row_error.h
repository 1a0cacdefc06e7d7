// Turns a device's error word into text. Host code.
#ifndef KERNELS_CUDA_HOST_ROW_ERROR_H_
#define KERNELS_CUDA_HOST_ROW_ERROR_H_

#include <cstdint>
#include <string>

namespace blockmgr {

// Returns the bits of RowError that are set, in words: "slots outside the pool,
// tiles beyond the room for them". A bit without a name is given as a number.
// Returns an empty text for 0.
std::string RowErrorText(uint32_t error);

}  // namespace blockmgr

#endif  // KERNELS_CUDA_HOST_ROW_ERROR_H_
