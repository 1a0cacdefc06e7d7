// CudaKernels: the pool, streams, and copies of rows.
#include "python/core/cuda_kernels.h"

#include <span>
#include <string>
#include <utility>

#include <absl/strings/str_cat.h>
#include <nanobind/stl/pair.h>

#include "blockmgr/base/dtype.h"
#include "kernels/cuda/host/cuda_backend.h"
#include "kernels/cuda/host/row_error.h"
#include "python/core/cuda_devices.h"
#include "python/core/errors.h"
#include "python/core/kernel_checks.h"

namespace blockmgr::python {
namespace {

// Kernels copy rows in pieces of so many bytes.
constexpr size_t kRowAlignment = 16;
// The error word has these bytes to itself, so that addresses follow aligned.
constexpr int64_t kErrorBytes = 16;

[[noreturn]] void ThrowNoStream(nb::handle value) {
  throw nb::type_error(
      absl::StrCat("stream: expected a cudaStream_t as an int, or an object "
                   "with __cuda_stream__ or cuda_stream, got ",
                   nb::type_name(value.type()).c_str())
          .c_str());
}

void* StreamOf(nb::handle value) {
  nb::object handle = nb::borrow(value);
  if (nb::hasattr(value, "__cuda_stream__")) {
    nb::object pair = value.attr("__cuda_stream__");
    if (PyCallable_Check(pair.ptr()) != 0) pair = pair();
    std::pair<int64_t, uint64_t> protocol;
    if (!nb::try_cast(pair, protocol, false)) ThrowNoStream(value);
    if (protocol.first != 0) {
      ThrowInvalid("stream: expected version 0 of __cuda_stream__, got ",
                   protocol.first);
    }
    return reinterpret_cast<void*>(static_cast<uintptr_t>(protocol.second));
  }
  if (nb::hasattr(value, "cuda_stream")) handle = value.attr("cuda_stream");
  uint64_t number = 0;
  if (nb::isinstance<nb::bool_>(handle) || !nb::isinstance<nb::int_>(handle) ||
      !nb::try_cast(handle, number, false)) {
    ThrowNoStream(value);
  }
  return reinterpret_cast<void*>(static_cast<uintptr_t>(number));
}

// Returns the bytes from one element of a dimension to the next.
int64_t StrideOf(const AnyArray& tensor, size_t dimension) {
  return tensor.shape(dimension) > 1
             ? tensor.stride(dimension) *
                   static_cast<int64_t>(tensor.itemsize())
             : 0;
}

bool HaveSameStrides(const AnyArray& a, const AnyArray& b) {
  for (size_t i = 0; i < a.ndim(); ++i) {
    if (StrideOf(a, i) != StrideOf(b, i)) return false;
  }
  return true;
}

const ModelLayout& CheckedDeviceLayout(const ModelLayout& layout) {
  ThrowIfError(CudaBackend::CheckLayout(CheckedLayout(layout)));
  return layout;
}

}  // namespace

PyCudaKernels::PyCudaKernels(const ModelLayout& layout, nb::handle pool)
    : layout_(CheckedDeviceLayout(layout)) {
  ImportPool(pool);
  shape_ = {.type = layout_.dtype == DType::kFloat16 ? ElementType::kHalf
                                                     : ElementType::kBFloat16,
            .head_dim = layout_.head_dim};
  runtime_ = ValueOrThrow(Devices().create(device_));
  // A device that cannot run the kernels says so here.
  num_decode_ctas_ =
      std::max(1, runtime_->CountDecodeCtas(shape_, layout_.group_size()));
  std::vector<char*> words(kErrorBytes / sizeof(char*), nullptr);
  for (const AnyArray& tensor : tensors_) words.push_back(DataOf<char>(tensor));
  const auto bytes = std::as_writable_bytes(std::span(words));
  memory_ = ValueOrThrow(runtime_->Allocate(std::ssize(bytes)));
  runtime_->Upload(memory_, bytes);
  runtime_->Download(bytes, memory_);  // waits
  if (!runtime_->status().ok()) {
    const absl::Status status = runtime_->status();
    runtime_->Free(memory_);
    ThrowIfError(status);
  }
  if (tensors_.size() > 1) {
    pool_.base = nullptr;
    pool_.layer_bases = reinterpret_cast<char* const*>(memory_ + kErrorBytes);
  }
}

PyCudaKernels::~PyCudaKernels() {
  // The stream of the last call may not exist any more.
  runtime_->UseStream(nullptr);
  runtime_->Free(memory_);
}

void PyCudaKernels::ImportPool(nb::handle pool) {
  const std::initializer_list<nb::dlpack::dtype> dtypes = {
      ElementTypeOf(layout_.dtype)};
  const TensorUse use = {
      .is_written = true, .contiguous_from = 5, .alignment = kRowAlignment};
  if (!nb::isinstance<nb::list>(pool) && !nb::isinstance<nb::tuple>(pool)) {
    tensors_.push_back(
        ImportTensor("pool", {pool}, kAnyDevice, dtypes,
                     {layout_.num_layers, layout_.num_blocks, layout_.num_heads,
                      2, layout_.page_size, layout_.head_dim},
                     use));
    device_ = tensors_[0].device_id();
    pool_ = PoolOf(tensors_[0], 1);
    pool_.layer_stride = StrideOf(tensors_[0], 0);
    return;
  }
  for (const nb::handle layer : nb::borrow<nb::sequence>(pool)) {
    const std::string name = absl::StrCat("pool[", tensors_.size(), "]");
    TensorUse layer_use = use;
    layer_use.contiguous_from = 4;
    tensors_.push_back(ImportTensor(
        name.c_str(), {layer}, tensors_.empty() ? kAnyDevice : device_, dtypes,
        {layout_.num_blocks, layout_.num_heads, 2, layout_.page_size,
         layout_.head_dim},
        layer_use));
    device_ = tensors_[0].device_id();
    if (!HaveSameStrides(tensors_[0], tensors_.back())) {
      ThrowInvalid(name, ": expected the strides of pool[0], got others");
    }
  }
  if (std::ssize(tensors_) != layout_.num_layers) {
    ThrowInvalid("pool: expected ", layout_.num_layers,
                 " tensors, one for each layer, got ", tensors_.size());
  }
  pool_ = PoolOf(tensors_[0], 0);
}

PagedPool PyCudaKernels::PoolOf(const AnyArray& tensor,
                                size_t first_dimension) const {
  PagedPool pool;
  pool.base = DataOf<char>(tensor);
  pool.block_stride = StrideOf(tensor, first_dimension);
  pool.head_stride = StrideOf(tensor, first_dimension + 1);
  pool.kv_stride = StrideOf(tensor, first_dimension + 2);
  pool.token_stride = StrideOf(tensor, first_dimension + 3);
  pool.num_layers = layout_.num_layers;
  pool.num_blocks = layout_.num_blocks;
  pool.num_heads = layout_.num_heads;
  pool.page_size = layout_.page_size;
  pool.row_bytes = static_cast<int32_t>(layout_.row_bytes());
  return Prepared(pool);
}

AnyArray PyCudaKernels::ImportRows(const char* name, TensorArgument argument,
                                   std::initializer_list<int64_t> shape,
                                   bool is_written) const {
  return Import(name, argument, {ElementTypeOf(layout_.dtype)}, shape,
                {.is_written = is_written, .alignment = kRowAlignment});
}

AnyArray PyCudaKernels::ImportWorkspace(TensorArgument argument, int64_t bytes,
                                        const char* function) const {
  AnyArray workspace =
      Import("workspace", argument, {nb::dtype<uint8_t>()}, {-1},
             {.is_written = true, .alignment = kRowAlignment});
  const auto size = static_cast<int64_t>(workspace.size());
  if (size < bytes) {
    ThrowInvalid("workspace: expected at least ", bytes, " bytes (", function,
                 "), got ", size);
  }
  return workspace;
}

std::unique_lock<std::mutex> PyCudaKernels::TakeTurn(
    const StreamArgument& stream) {
  void* const handle = StreamOf(stream.value);  // may run Python code
  std::unique_lock<std::mutex> turn(mutex_, std::try_to_lock);
  if (!turn.owns_lock()) {
    const nb::gil_scoped_release release;
    turn.lock();
  }
  runtime_->UseStream(handle);
  return turn;
}

void PyCudaKernels::Check(const StreamArgument& stream) {
  uint32_t error = 0;
  Launch(stream, [&](DeviceRuntime& runtime) {
    const nb::gil_scoped_release release;
    runtime.Download(std::as_writable_bytes(std::span(&error, 1)), memory_);
    if (error != 0) runtime.Fill(memory_, 0, sizeof(error));
  });
  if (error != 0) {
    ThrowInvalid("lists: expected ids of ", layout_.ToString(), ", got ",
                 RowErrorText(error));
  }
}

void PyCudaKernels::Append(int32_t layer, TensorArgument slot_mapping,
                           TensorArgument keys, TensorArgument values,
                           const StreamArgument& stream) {
  CheckLayer(layout_, layer);
  const AnyArray slots = ImportOf<int64_t>("slot_mapping", slot_mapping, {-1});
  const auto num_tokens = static_cast<int64_t>(slots.size());
  const auto import = [&](const char* name, TensorArgument argument) {
    return Import(name, argument,
                  {ElementTypeOf(layout_.dtype), nb::dtype<float>()},
                  {num_tokens, layout_.num_heads, layout_.head_dim},
                  {.contiguous_from = 2, .alignment = kRowAlignment});
  };
  const AnyArray key_rows = import("keys", keys);
  const AnyArray value_rows = import("values", values);
  if (key_rows.dtype() != value_rows.dtype() ||
      !HaveSameStrides(key_rows, value_rows)) {
    ThrowInvalid("values: expected the dtype and the strides of keys");
  }
  AppendRows append;
  append.pool = pool_;
  append.layer = layer;
  append.num_tokens = num_tokens;
  append.slot_mapping = DataOf<const int64_t>(slots);
  append.keys = DataOf<const char>(key_rows);
  append.values = DataOf<const char>(value_rows);
  append.token_stride = StrideOf(key_rows, 0);
  append.head_stride = StrideOf(key_rows, 1);
  append.error = reinterpret_cast<uint32_t*>(memory_);
  RowConversion conversion = RowConversion::kNone;
  if (key_rows.dtype() == nb::dtype<float>()) {
    conversion = layout_.dtype == DType::kFloat16
                     ? RowConversion::kFloatToHalf
                     : RowConversion::kFloatToBFloat16;
  }
  Launch(stream,
         [&](DeviceRuntime& runtime) { runtime.Append(append, conversion); });
}

void PyCudaKernels::Gather(TensorArgument slots, TensorArgument out,
                           const StreamArgument& stream) {
  const AnyArray ids = ImportOf<int64_t>("slots", slots, {-1});
  const auto num_rows = static_cast<int64_t>(ids.size());
  const AnyArray rows =
      Import("out", out, {ElementTypeOf(layout_.dtype), nb::dtype<float>()},
             {num_rows, 2, layout_.head_dim},
             {.is_written = true, .alignment = kRowAlignment});
  GatherRows gather;
  gather.pool = pool_;
  gather.rows.count = num_rows;
  gather.slots = DataOf<const int64_t>(ids);
  gather.out = DataOf<char>(rows);
  gather.error = reinterpret_cast<uint32_t*>(memory_);
  RowConversion conversion = RowConversion::kNone;
  if (rows.dtype() == nb::dtype<float>()) {
    conversion = layout_.dtype == DType::kFloat16
                     ? RowConversion::kHalfToFloat
                     : RowConversion::kBFloat16ToFloat;
  }
  Launch(stream,
         [&](DeviceRuntime& runtime) { runtime.Gather(gather, conversion); });
}

void PyCudaKernels::Move(TensorArgument moves, TensorArgument staged,
                         const StreamArgument& stream) {
  const AnyArray pairs = ImportOf<int64_t>("moves", moves, {-1, 2});
  const auto num_rows = static_cast<int64_t>(pairs.shape(0));
  MoveRows move;
  move.pool = pool_;
  move.rows.count = num_rows;
  static_assert(sizeof(RowMove) == 2 * sizeof(int64_t));
  move.moves = DataOf<const RowMove>(pairs);
  move.error = reinterpret_cast<uint32_t*>(memory_);
  AnyArray rows;
  if (!staged.is_none()) {
    rows = ImportRows("staged", staged, {-1, 2, layout_.head_dim}, true);
    if (static_cast<int64_t>(rows.shape(0)) < num_rows) {
      ThrowInvalid("staged: expected room for ", num_rows,
                   " rows, one for each move, got ", rows.shape(0));
    }
    move.staged = DataOf<char>(rows);
  }
  Launch(stream, [&](DeviceRuntime& runtime) { runtime.Move(move); });
}

void PyCudaKernels::CopyBlocks(TensorArgument pairs,
                               const StreamArgument& stream) {
  const AnyArray blocks = ImportOf<int32_t>("pairs", pairs, {-1, 2});
  CopyBlockRows copy;
  copy.pool = pool_;
  copy.num_pairs = static_cast<int64_t>(blocks.shape(0));
  static_assert(sizeof(BlockPair) == 2 * sizeof(int32_t));
  copy.pairs = DataOf<const BlockPair>(blocks);
  copy.error = reinterpret_cast<uint32_t*>(memory_);
  Launch(stream, [&](DeviceRuntime& runtime) { runtime.CopyBlocks(copy); });
}

void PyCudaKernels::StagePagesOf(TensorArgument pages, TensorArgument staged,
                                 bool packs, const StreamArgument& stream) {
  const AnyArray ids = ImportOf<int32_t>("pages", pages, {-1});
  const auto num_pages = static_cast<int64_t>(ids.size());
  const AnyArray rows =
      ImportRows("staged", staged,
                 {num_pages, 2, layout_.page_size, layout_.head_dim}, packs);
  StagePages stage;
  stage.pool = pool_;
  stage.num_pages = num_pages;
  stage.pages = DataOf<const int32_t>(ids);
  stage.staged = DataOf<char>(rows);
  stage.error = reinterpret_cast<uint32_t*>(memory_);
  Launch(stream, [&](DeviceRuntime& runtime) {
    packs ? runtime.PackPages(stage) : runtime.UnpackPages(stage);
  });
}

void PyCudaKernels::PackPages(TensorArgument pages, TensorArgument staged,
                              const StreamArgument& stream) {
  StagePagesOf(pages, staged, true, stream);
}

void PyCudaKernels::UnpackPages(TensorArgument pages, TensorArgument staged,
                                const StreamArgument& stream) {
  StagePagesOf(pages, staged, false, stream);
}

}  // namespace blockmgr::python
