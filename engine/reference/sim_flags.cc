#include "engine/reference/sim_flags.h"

#include "blockmgr/engine_abilities.h"
#include "scheduler/server/flag_checks.h"

namespace blockmgr {

void AddShardsFlag(CLI::App* app, int32_t* num_shards) {
  app->add_option("--num-shards", *num_shards,
                  "Shards of tensor parallelism: parts of the KV heads, each "
                  "with a memory of its own; a divisor of the KV heads")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
}

CLI::Option* AddHostBlocksFlag(CLI::App* app, int32_t* num_host_blocks) {
  return app
      ->add_option("--num-host-blocks", *num_host_blocks,
                   "Blocks of host memory for the KV of preempted requests; 0: "
                   "they are computed again")
      ->check(CLI::Range(0, EngineAbilities::kMaxHostBlocks))
      ->capture_default_str();
}

void AddSimModelFlags(CLI::App* app, SimModel* model) {
  const CLI::Range shape(1, 1 << 16);
  const auto add = [app](const char* flag, auto* value, const char* help) {
    return app->add_option(flag, *value, help)
        ->capture_default_str()
        ->group(kSimModelGroup);
  };
  add("--sim-layers", &model->num_layers, "Layers of each group")->check(shape);
  add("--sim-heads", &model->num_heads, "KV heads of a layer")->check(shape);
  add("--sim-q-heads", &model->num_q_heads, "Query heads of a layer")
      ->check(shape);
  add("--sim-head-dim", &model->head_dim, "Elements of one row of K or V")
      ->check(shape);
  add("--sim-page-size", &model->page_size, "Tokens of a page")->check(shape);
  add("--sim-window", &model->window,
      "Tokens that a layer attends to, in a model all of whose layers have a "
      "sliding window; 0: all")
      ->check(CLI::Range(0, ModelLayout::kMaxWindow));
  app->add_option("--sim-group-windows", model->group_windows,
                  "Windows of further layer groups, A,B,...: each has as many "
                  "layers as --sim-layers, which attend to the last so many "
                  "tokens [default: none]")
      ->delimiter(',')
      ->check(CLI::Range(1, ModelLayout::kMaxWindow))
      ->group(kSimModelGroup);
  add("--sim-layer-params", &model->layer_params,
      "Parameters of all layers: every token is multiplied by them")
      ->check(NumberIn(1, SimModel::kMaxParams));
  add("--sim-output-params", &model->output_params,
      "Parameters of the output layer (vocabulary times width): every token "
      "that is sampled from is multiplied by them")
      ->check(NumberIn(0, SimModel::kMaxParams));
  add("--sim-weight-bytes", &model->weight_bytes, "Bytes of one parameter")
      ->check(CLI::Range(1, 8));
  add("--sim-flops", &model->flops, "Effective compute of products, FLOP/s")
      ->check(NumberIn(1, SimModel::kMaxPerSecond));
  add("--sim-attention-flops", &model->attention_flops,
      "Effective compute of attention, FLOP/s")
      ->check(NumberIn(1, SimModel::kMaxPerSecond));
  add("--sim-attention-bandwidth", &model->attention_bandwidth,
      "Effective bandwidth at which attention reads K and V, bytes/s")
      ->check(NumberIn(1, SimModel::kMaxPerSecond));
  add("--sim-bandwidth", &model->bandwidth,
      "Effective bandwidth at which products read parameters, bytes/s")
      ->check(NumberIn(1, SimModel::kMaxPerSecond));
  add("--sim-host-bandwidth", &model->host_bandwidth,
      "Effective bandwidth to host memory, bytes/s")
      ->check(NumberIn(1, SimModel::kMaxPerSecond));
  add("--sim-step-overhead", &model->step_overhead_s,
      "Seconds added to every step")
      ->check(NumberIn(0, SimModel::kMaxStepOverhead));
  add("--head-concentration", &model->head_concentration,
      "How unevenly heads share what an adaptive eviction keeps: sigma of the "
      "lognormal shares; 0: evenly")
      ->check(NumberIn(0, 4));
  add("--sim-drafts", &model->num_drafts,
      "Drafts proposed after every token, for --num-speculative-tokens")
      ->check(CLI::Range(0, 1024));
  add("--sim-draft-acceptance", &model->draft_acceptance,
      "How likely a draft is right when those before it are")
      ->check(NumberIn(0, 1));
}

}  // namespace blockmgr
