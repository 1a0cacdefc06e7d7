// Needs no GPU: of no rows nothing is launched.
#include <blockmgr/kernels/cuda/rows/row_mover_launch.h>

int main() {
  blockmgr::MoveRows no_moves{};
  no_moves.pool.num_layers = 1;
  no_moves.pool.num_blocks = 8;
  no_moves.pool.num_heads = 1;
  no_moves.pool.page_size = 16;
  no_moves.pool.row_bytes = 256;
  return blockmgr::LaunchMove(no_moves, 1, nullptr) == cudaSuccess ? 0 : 1;
}
