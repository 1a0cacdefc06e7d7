// Matrix products by cuBLAS, which is part of the CUDA Toolkit.
//
// The library is looked for when it is asked for, so that neither a build nor a
// machine needs it.
#ifndef KERNELS_CUDA_HOST_CUBLAS_PRODUCTS_H_
#define KERNELS_CUDA_HOST_CUBLAS_PRODUCTS_H_

#include <memory>
#include <string>

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <cuda_runtime_api.h>

#include "kernels/cuda/attention_lists.h"
#include "kernels/cuda/layers/layer_rows.h"

namespace blockmgr {

// CublasProducts runs products on one stream of the current device. Sums are in
// fp32. Their order may depend on the number of rows, so the last bits of a row
// may depend on the batch. The same call gives the same bits, and the calls may
// be captured in a graph. Keeps 32 MiB of device memory for the library.
// Thread-compatible.
class CublasProducts {
 public:
  // Loads libcublas of the CUDA version that this was built with. Errors:
  // Unavailable if there is none, or if it does not work with this device; says
  // why.
  static absl::StatusOr<std::unique_ptr<CublasProducts>> Create(
      cudaStream_t stream);
  CublasProducts(const CublasProducts&) = delete;
  CublasProducts& operator=(const CublasProducts&) = delete;
  // REQUIRES: the stream has done all work.
  ~CublasProducts();

  // Enqueues a product. REQUIRES: the device of Create is current.
  absl::Status Multiply(const ProductParams& params, ElementType type);

  // Returns the library's name and version.
  const std::string& name() const { return name_; }

 private:
  struct Library;

  CublasProducts() = default;

  const Library* library_ = nullptr;
  void* handle_ = nullptr;
  void* workspace_ = nullptr;
  std::string name_;
};

}  // namespace blockmgr

#endif  // KERNELS_CUDA_HOST_CUBLAS_PRODUCTS_H_
