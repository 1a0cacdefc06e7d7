#include "kernels/cuda/host/cublas_products.h"

#include <dlfcn.h>

#include <cstddef>
#include <string>

#include <absl/strings/str_cat.h>
#include <absl/strings/string_view.h>

#include "blockmgr/base/status_macros.h"

#if defined(__has_include) && __has_include(<cublas_v2.h>)
#include <cublas_v2.h>
#define BLOCKMGR_HAS_CUBLAS_HEADER 1
#else
#define BLOCKMGR_HAS_CUBLAS_HEADER 0
#endif

namespace blockmgr {

#if BLOCKMGR_HAS_CUBLAS_HEADER

namespace {

// NVIDIA's advice for Hopper. Without a workspace of its own, the library
// allocates one in a captured graph.
constexpr std::size_t kWorkspaceBytes = std::size_t{32} << 20;

absl::Status ToStatus(cublasStatus_t status, absl::string_view what) {
  if (status == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("cuBLAS: ", what, ": status ", static_cast<int>(status)));
}

// Looks in the paths of the loader, then where the toolkit puts it.
absl::StatusOr<void*> OpenLibrary() {
  const std::string file = absl::StrCat("libcublas.so.", CUDART_VERSION / 1000);
  for (const char* folder : {"", "/usr/local/cuda/lib64/"}) {
    void* library =
        dlopen(absl::StrCat(folder, file).c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) return library;
  }
  // NOLINTNEXTLINE(concurrency-mt-unsafe): of this thread, in glibc
  const char* const why = dlerror();
  return absl::UnavailableError(
      absl::StrCat("cuBLAS: ", why == nullptr ? file : std::string(why)));
}

template <typename Function>
absl::Status FindFunction(void* library, const char* name, Function* function) {
  void* symbol = dlsym(library, name);
  if (symbol == nullptr) {
    return absl::UnavailableError(
        absl::StrCat("cuBLAS: the library has no ", name));
  }
  *function = reinterpret_cast<Function>(symbol);
  return absl::OkStatus();
}

}  // namespace

// The functions that are used. The library stays loaded.
struct CublasProducts::Library {
  decltype(&cublasCreate_v2) create = nullptr;
  decltype(&cublasDestroy_v2) destroy = nullptr;
  decltype(&cublasGetVersion_v2) get_version = nullptr;
  decltype(&cublasSetStream_v2) set_stream = nullptr;
  decltype(&cublasSetWorkspace_v2) set_workspace = nullptr;
  // Overloaded in the header.
  cublasStatus_t (*gemm)(cublasHandle_t, cublasOperation_t, cublasOperation_t,
                         int, int, int, const void*, const void*, cudaDataType,
                         int, const void*, cudaDataType, int, const void*,
                         void*, cudaDataType, int, cublasComputeType_t,
                         cublasGemmAlgo_t) = nullptr;

  static absl::StatusOr<const Library*> Load() {
    static const auto& loaded = *new absl::StatusOr<Library>(LoadNow());
    BM_RETURN_IF_ERROR(loaded.status());
    return &*loaded;
  }

 private:
  static absl::StatusOr<Library> LoadNow() {
    BM_ASSIGN_OR_RETURN(void* file, OpenLibrary());
    Library library;
    BM_RETURN_IF_ERROR(FindFunction(file, "cublasCreate_v2", &library.create));
    BM_RETURN_IF_ERROR(
        FindFunction(file, "cublasDestroy_v2", &library.destroy));
    BM_RETURN_IF_ERROR(
        FindFunction(file, "cublasGetVersion_v2", &library.get_version));
    BM_RETURN_IF_ERROR(
        FindFunction(file, "cublasSetStream_v2", &library.set_stream));
    BM_RETURN_IF_ERROR(
        FindFunction(file, "cublasSetWorkspace_v2", &library.set_workspace));
    BM_RETURN_IF_ERROR(FindFunction(file, "cublasGemmEx", &library.gemm));
    return library;
  }
};

absl::StatusOr<std::unique_ptr<CublasProducts>> CublasProducts::Create(
    cudaStream_t stream) {
  BM_ASSIGN_OR_RETURN(const Library* library, Library::Load());
  std::unique_ptr<CublasProducts> products(new CublasProducts());
  products->library_ = library;
  cublasHandle_t handle = nullptr;
  BM_RETURN_IF_ERROR(ToStatus(library->create(&handle), "creating a handle"));
  products->handle_ = handle;
  if (cudaMalloc(&products->workspace_, kWorkspaceBytes) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    products->workspace_ = nullptr;
    return absl::UnavailableError("cuBLAS: no room for its workspace");
  }
  BM_RETURN_IF_ERROR(
      ToStatus(library->set_stream(handle, stream), "setting the stream"));
  // After the stream, which resets it.
  BM_RETURN_IF_ERROR(ToStatus(
      library->set_workspace(handle, products->workspace_, kWorkspaceBytes),
      "setting the workspace"));
  int version = 0;
  BM_RETURN_IF_ERROR(
      ToStatus(library->get_version(handle, &version), "asking its version"));
  products->name_ = absl::StrCat("cuBLAS ", version);
  return products;
}

CublasProducts::~CublasProducts() {
  if (handle_ != nullptr) {
    static_cast<void>(library_->destroy(static_cast<cublasHandle_t>(handle_)));
  }
  if (workspace_ != nullptr) static_cast<void>(cudaFree(workspace_));
}

absl::Status CublasProducts::Multiply(const ProductParams& params,
                                      ElementType type) {
  if (params.num_rows == 0 || params.out == 0) return absl::OkStatus();
  const cudaDataType element =
      type == ElementType::kHalf ? CUDA_R_16F : CUDA_R_16BF;
  const float one = 1.0f;
  const float zero = 0.0f;
  // The library's matrices are column by column: output^T = weights * input^T,
  // where our rows of weights are columns of the transposed matrix.
  return ToStatus(
      library_->gemm(static_cast<cublasHandle_t>(handle_), CUBLAS_OP_T,
                     CUBLAS_OP_N, params.out, params.num_rows, params.in, &one,
                     params.weights, element, params.in, params.input, element,
                     params.in, &zero, params.output, CUDA_R_32F, params.out,
                     CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
      "product");
}

#else  // BLOCKMGR_HAS_CUBLAS_HEADER

struct CublasProducts::Library {};

absl::StatusOr<std::unique_ptr<CublasProducts>> CublasProducts::Create(
    cudaStream_t /*stream*/) {
  return absl::UnavailableError(
      "cuBLAS: this was built where its header was missing");
}

CublasProducts::~CublasProducts() = default;

absl::Status CublasProducts::Multiply(const ProductParams& /*params*/,
                                      ElementType /*type*/) {
  return absl::UnavailableError("cuBLAS: not built");
}

#endif  // BLOCKMGR_HAS_CUBLAS_HEADER

}  // namespace blockmgr
