// Command line flags of the simulated model, shared by the programs that have
// one.
#ifndef ENGINE_REFERENCE_SIM_FLAGS_H_
#define ENGINE_REFERENCE_SIM_FLAGS_H_

#include <cstdint>

#include <CLI/CLI.hpp>

#include "engine/reference/sim_engine.h"

namespace blockmgr {

// The heading of these flags in --help.
inline constexpr char kSimModelGroup[] = "Simulated model";

// Adds a flag per field of SimModel but num_shards; the values `model` has now
// are the defaults. `model` is borrowed and must outlive the parsing.
// Out-of-range values are parse errors.
void AddSimModelFlags(CLI::App* app, SimModel* model);

// Adds --num-shards in the same way, for engines of every kind.
void AddShardsFlag(CLI::App* app, int32_t* num_shards);

// Adds --num-host-blocks in the same way, and returns the option.
CLI::Option* AddHostBlocksFlag(CLI::App* app, int32_t* num_host_blocks);

}  // namespace blockmgr

#endif  // ENGINE_REFERENCE_SIM_FLAGS_H_
