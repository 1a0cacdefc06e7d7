// Whole blocks to host memory and back: pages of both are staged side by side,
// so that what crosses the link is large and contiguous.

#include <algorithm>

#include "kernels/cuda/host/cuda_backend.h"

namespace blockmgr {
int64_t CudaBackend::CountBlocksPerStaging() const {
  return std::max<int64_t>(1, options_.staged_bytes / layout().block_bytes());
}

void CudaBackend::AddPages(std::span<const BlockTransfer> transfers,
                           Staging* staging) {
  staging->pages = memory_.Input<int32_t>(std::ssize(transfers) *
                                          layout().pages_per_block());
  int32_t* page = memory_.Host(staging->pages).data();
  for (const BlockTransfer& transfer : transfers) {
    // The ids of a block outside the pool would be those of other layers.
    const int32_t block = Index(transfer.block);
    const bool inside = block >= 0 && block < layout().num_blocks;
    for (int32_t layer = 0; layer < layout().num_layers; ++layer) {
      for (int32_t head = 0; head < layout().num_heads; ++head) {
        *page++ =
            inside ? Index(layout().page_id(layer, transfer.block, head)) : -1;
      }
    }
  }
}

StagePages CudaBackend::Stage(const Staging& staging) {
  pool_.Send();
  StagePages stage;
  stage.pool = pool_.pool;
  stage.num_pages = staging.pages.count;
  stage.pages = memory_.Device(staging.pages);
  stage.staged = reinterpret_cast<char*>(memory_.Device(staging.bytes));
  stage.error = memory_.device_error();
  return stage;
}

void CudaBackend::CopyToHost(std::span<const BlockTransfer> transfers,
                             std::span<std::byte> host) {
  const int64_t block_bytes = layout().block_bytes();
  while (!transfers.empty()) {
    const auto batch = transfers.first(
        std::min<int64_t>(CountBlocksPerStaging(), std::ssize(transfers)));
    memory_.Begin();
    Staging staging;
    AddPages(batch, &staging);
    staging.bytes = memory_.Result<std::byte>(std::ssize(batch) * block_bytes);
    runtime_->PackPages(Stage(staging));
    pool_.Receive();
    auto staged = memory_.Host(staging.bytes);
    for (const BlockTransfer& transfer : batch) {
      std::ranges::copy(
          staged.first(block_bytes),
          host.subspan(Index(transfer.host) * block_bytes, block_bytes)
              .begin());
      staged = staged.subspan(block_bytes);
    }
    transfers = transfers.subspan(batch.size());
  }
}

void CudaBackend::CopyFromHost(std::span<const BlockTransfer> transfers,
                               std::span<const std::byte> host) {
  const int64_t block_bytes = layout().block_bytes();
  while (!transfers.empty()) {
    const auto batch = transfers.first(
        std::min<int64_t>(CountBlocksPerStaging(), std::ssize(transfers)));
    memory_.Begin();
    Staging staging;
    AddPages(batch, &staging);
    staging.bytes = memory_.Input<std::byte>(std::ssize(batch) * block_bytes);
    auto staged = memory_.Host(staging.bytes).begin();
    for (const BlockTransfer& transfer : batch) {
      const auto from =
          host.subspan(Index(transfer.host) * block_bytes, block_bytes);
      staged = std::ranges::copy(from, staged).out;
    }
    runtime_->UnpackPages(Stage(staging));
    transfers = transfers.subspan(batch.size());
  }
}

}  // namespace blockmgr
