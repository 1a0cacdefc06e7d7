#include <blockmgr/engine/tables/tables.h>

// One prompt of 40 tokens in three blocks, computed.
int main() {
  const blockmgr::ModelLayout layout = {.num_layers = 2,
                                        .num_heads = 2,
                                        .num_q_heads = 4,
                                        .head_dim = 16,
                                        .num_blocks = 8};
  constexpr blockmgr::SequenceSlot kSlot{0};
  blockmgr::EngineTables tables(layout, 1);
  blockmgr::StepPlan plan;
  plan.starts = {{.slot = kSlot, .num_tokens = 40}};
  plan.start_tokens.assign(40, 5);
  plan.slots = {kSlot};
  plan.positions = {0};
  plan.num_tokens = {40};
  plan.samples = {1};
  plan.block_offsets = {0, 3};
  plan.blocks = {blockmgr::BlockId{1}, blockmgr::BlockId{2},
                 blockmgr::BlockId{3}};
  if (!tables.Apply(plan).ok()) return 1;
  return tables.row(kSlot).num_computed == 40 ? 0 : 1;
}
