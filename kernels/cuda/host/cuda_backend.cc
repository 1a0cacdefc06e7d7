#include "kernels/cuda/host/cuda_backend.h"

#include <algorithm>
#include <utility>

#include "blockmgr/base/bits.h"
#include "blockmgr/base/check.h"
#include "blockmgr/base/invalid.h"
#include "blockmgr/base/status_macros.h"
#include "kernels/cpu/query_statistics.h"
#include "kernels/cuda/host/row_error.h"

namespace blockmgr {
namespace {

constexpr int32_t kMaxGroupSize = 16;

absl::Status Expected(absl::string_view field, absl::string_view expected,
                      int64_t got) {
  return Invalid(field, ": expected ", expected,
                 " (what has CUDA kernels), got ", got);
}

DevicePool MakePool(const ModelLayout& layout, char* base,
                    DeviceRuntime* runtime, CallMemory* memory) {
  DevicePool pool;
  pool.layout = layout;
  pool.pool = MakePagedPool(layout, KvPoolLayout::PageContiguous(layout), base);
  pool.shape.type = layout.dtype == DType::kFloat16 ? ElementType::kHalf
                                                    : ElementType::kBFloat16;
  pool.shape.head_dim = layout.head_dim;
  pool.runtime = runtime;
  pool.memory = memory;
  return pool;
}

}  // namespace

absl::Status CudaBackend::CheckLayout(const ModelLayout& layout) {
  BM_RETURN_IF_ERROR(layout.Validate());
  if (layout.dtype == DType::kFloat32) {
    return absl::InvalidArgumentError(
        "dtype: expected bfloat16 or float16 (what has CUDA kernels), got "
        "float32");
  }
  if (layout.num_shards != 1) {
    return Invalid("num_shards: expected the layout of one shard, got ",
                   layout.num_shards, " shards");
  }
  const int32_t dim = layout.head_dim;
  if (dim != 64 && dim != 128 && dim != 256) {
    return Expected("head_dim", "64, 128 or 256", dim);
  }
  if (layout.page_size != 16 && layout.page_size != 32) {
    return Expected("page_size", "16 or 32", layout.page_size);
  }
  if (layout.group_size() > kMaxGroupSize) {
    return Expected("num_q_heads / num_heads", "1 to 16", layout.group_size());
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<CudaBackend>> CudaBackend::Create(
    const ModelLayout& layout, const CudaBackendOptions& options,
    std::shared_ptr<DeviceRuntime> runtime) {
  BM_RETURN_IF_ERROR(CheckLayout(layout));
  BM_RETURN_IF_ERROR(runtime->status());
  BM_ASSIGN_OR_RETURN(char* pool, runtime->Allocate(layout.pool_bytes()));
  std::unique_ptr<CudaBackend> backend(
      new CudaBackend(layout, options, std::move(runtime), pool));
  // A device that cannot run the kernels says so when it is asked how many of
  // their CTAs it holds.
  BM_RETURN_IF_ERROR(backend->runtime_->status());
  // Nor may the first call find that the pool has left no room at all.
  BM_RETURN_IF_ERROR(backend->Flush());
  return backend;
}

CudaBackend::CudaBackend(const ModelLayout& layout,
                         const CudaBackendOptions& options,
                         std::shared_ptr<DeviceRuntime> runtime, char* pool)
    : options_(options),
      runtime_(std::move(runtime)),
      memory_(runtime_.get()),
      pool_(MakePool(layout, pool, runtime_.get(), &memory_)),
      scorer_(&pool_),
      selector_(&pool_),
      num_decode_ctas_(std::max(
          1, runtime_->CountDecodeCtas(pool_.shape, layout.group_size()))),
      decode_step_(
          &pool_,
          {.is_chunked = options.decode == CudaBackendOptions::Decode::kChunked,
           .num_ctas = num_decode_ctas_,
           .chunk_tiles =
               options.decode == CudaBackendOptions::Decode::kInvariant
                   ? kInvariantChunkTiles
                   : 0}) {}

CudaBackend::~CudaBackend() { runtime_->Free(pool_.pool.base); }

void CudaBackend::Append(const AppendBatch& batch) {
  const ModelLayout& shape = layout();
  BM_CHECK(batch.layer >= 0 && batch.layer < shape.num_layers);
  const int64_t num_tokens = std::ssize(batch.slot_mapping);
  if (num_tokens == 0) return;
  const bool on_device = batch.device_keys != nullptr;
  const int64_t token_floats = int64_t{shape.num_heads} * shape.head_dim;
  const std::size_t num_floats =
      on_device ? 0 : static_cast<std::size_t>(num_tokens * token_floats);
  memory_.Begin();
  const auto mapping = memory_.InputOf(batch.slot_mapping);
  const auto keys = memory_.InputOf(std::span(batch.keys, num_floats));
  const auto values = memory_.InputOf(std::span(batch.values, num_floats));
  pool_.Send();
  AppendRows append;
  append.pool = pool_.pool;
  append.layer = batch.layer;
  append.num_tokens = num_tokens;
  append.slot_mapping = memory_.Device(mapping);
  append.error = memory_.device_error();
  if (on_device) {
    append.keys = static_cast<const char*>(batch.device_keys);
    append.values = static_cast<const char*>(batch.device_values);
    append.token_stride = batch.device_token_stride;
    append.head_stride = shape.row_bytes();
    runtime_->Append(append, RowConversion::kNone);
    return;
  }
  append.keys = reinterpret_cast<const char*>(memory_.Device(keys));
  append.values = reinterpret_cast<const char*>(memory_.Device(values));
  append.token_stride = token_floats * int64_t{sizeof(float)};
  append.head_stride = shape.head_dim * int64_t{sizeof(float)};
  runtime_->Append(append, shape.dtype == DType::kFloat16
                               ? RowConversion::kFloatToHalf
                               : RowConversion::kFloatToBFloat16);
}

void CudaBackend::AddQueries(const float* queries, int32_t num_tokens,
                             QueryStatistics* statistics) {
  AddQueriesTo(layout(), queries, num_tokens, statistics);
}

std::vector<int32_t> CudaBackend::Compact(const Compaction& compaction) {
  CompactionMoves moves;
  std::vector<int32_t> positions = PlaceSurvivors(layout(), compaction, &moves);
  Move(moves);
  return positions;
}

void CudaBackend::MoveAtOnce(std::span<const SlotMove> moves, bool staged) {
  static_assert(sizeof(SlotMove) == sizeof(RowMove));
  if (moves.empty()) return;
  memory_.Begin();
  const auto sent = memory_.InputOf(moves);
  const auto rows = memory_.Work<std::byte>(
      staged ? std::ssize(moves) * 2 * layout().row_bytes() : 0);
  pool_.Send();
  MoveRows move;
  move.pool = pool_.pool;
  move.rows.count = sent.count;
  move.moves = reinterpret_cast<const RowMove*>(memory_.Device(sent));
  if (staged) move.staged = reinterpret_cast<char*>(memory_.Device(rows));
  move.error = memory_.device_error();
  runtime_->Move(move);
}

void CudaBackend::Move(const CompactionMoves& moves) {
  const std::span<const SlotMove> all = moves.moves;
  if (!moves.in_place) {
    MoveAtOnce(all, false);
    return;
  }
  // Each launch takes as many whole groups as the staging memory has room for.
  const int64_t most_rows = options_.staged_bytes / (2 * layout().row_bytes());
  int64_t begin = 0;
  int64_t end = 0;
  for (const int64_t group_end : moves.group_ends) {
    if (end > begin && group_end - begin > most_rows) {
      MoveAtOnce(all.subspan(begin, end - begin), true);
      begin = end;
    }
    end = group_end;
  }
  MoveAtOnce(all.subspan(begin, end - begin), true);
}

void CudaBackend::CopyBlocks(std::span<const BlockCopy> copies) {
  if (copies.empty()) return;
  memory_.Begin();
  const auto pairs = memory_.Input<BlockPair>(std::ssize(copies));
  std::ranges::transform(
      copies, memory_.Host(pairs).begin(), [](const BlockCopy& copy) {
        return BlockPair{Index(copy.source), Index(copy.destination)};
      });
  pool_.Send();
  CopyBlockRows copy;
  copy.pool = pool_.pool;
  copy.num_pairs = pairs.count;
  copy.pairs = memory_.Device(pairs);
  copy.error = memory_.device_error();
  runtime_->CopyBlocks(copy);
}

void CudaBackend::ReadSlot(SlotIndex slot, std::span<float> out) const {
  BM_CHECK(std::ssize(out) == int64_t{2} * layout().head_dim);
  memory_.Begin();
  const auto slots = memory_.InputOf(std::span<const SlotIndex>(&slot, 1));
  const auto rows = memory_.Result<float>(std::ssize(out));
  pool_.Send();
  GatherRows gather;
  gather.pool = pool_.pool;
  gather.rows.count = 1;
  gather.slots = memory_.Device(slots);
  gather.out = reinterpret_cast<char*>(memory_.Device(rows));
  gather.error = memory_.device_error();
  runtime_->Gather(gather, layout().dtype == DType::kFloat16
                               ? RowConversion::kHalfToFloat
                               : RowConversion::kBFloat16ToFloat);
  pool_.Receive();
  std::ranges::copy(memory_.Host(rows), out.begin());
}

void CudaBackend::Poison() {
  // All bits set is a NaN.
  runtime_->Fill(pool_.pool.base, 0xFF, layout().pool_bytes());
}

absl::Status CudaBackend::Flush() {
  memory_.Begin();
  BM_RETURN_IF_ERROR(memory_.Send());
  memory_.Receive();
  BM_RETURN_IF_ERROR(runtime_->status());
  const uint32_t error = memory_.error();
  if (error == 0) return absl::OkStatus();
  memory_.ClearError();
  return Invalid("ids: expected those of ", layout().ToString(), ", got ",
                 RowErrorText(error));
}

}  // namespace blockmgr
