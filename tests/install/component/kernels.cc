#include <blockmgr/kernels/backend.h>

int main() {
  const blockmgr::ModelLayout layout = {.num_layers = 2,
                                        .num_heads = 2,
                                        .num_q_heads = 4,
                                        .head_dim = 16,
                                        .num_blocks = 8};
  return blockmgr::CreateCpuBackend(layout).ok() ? 0 : 1;
}
