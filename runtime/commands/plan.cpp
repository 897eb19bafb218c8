// plan: what a pair would need and take on a cluster of GPUs. One process; no GPU is looked for.
#include <fmt/format.h>

#include <cstdio>
#include <optional>

#include "runtime/base/error.h"
#include "runtime/base/settings/config.h"
#include "runtime/commands/commands.h"
#include "runtime/commands/plan/cluster_plan.h"
#include "runtime/commands/plan/emulated_shard.h"
#include "runtime/ranks/loading/model_names.h"

namespace outrider {
namespace {

struct PlanOptions {
  int32_t gpus = 8;
  int32_t nodes = 1;
  int32_t sequences = 1;
  int32_t context = 1024;
  std::string draft;
  std::string dtype = "bfloat16";
  double acceptance = 0.8;
  double hit_rate = 0.8;
  int32_t tp_emulate = 0;
  ClusterConstants constants;
};

std::vector<Option> rows_of(PlanOptions* options) {
  ClusterConstants& machine = options->constants;
  return {
      integer_option("gpus", &options->gpus, 1, 64, "a node's for the target"),
      integer_option("nodes", &options->nodes, 1, 1024, "of the target"),
      path_option("draft", &options->draft, "the draft's folder or synth:SHAPE, on one more GPU"),
      choice_option("dtype", &options->dtype, {"bfloat16", "fp8"}, "of the matrices"),
      integer_option("sequences", &options->sequences, 1, 1024, "decoded together"),
      integer_option("context", &options->context, 1, 1 << 24, "tokens of each"),
      number_option("acceptance", &options->acceptance, 0.01, 0.99, "of a draft token"),
      number_option("hit_rate", &options->hit_rate, 0, 1, "of prepared outcomes"),
      number_option("memory_gb", &machine.memory_gb, 1, 1e5, "of a GPU, 10^9 bytes"),
      number_option("memory_share", &machine.memory_share, 0.01, 1, "that may be used"),
      number_option("bandwidth_tb_s", &machine.bandwidth_tb_s, 0.01, 1e3, "of its memory"),
      number_option("bandwidth_share", &machine.bandwidth_share, 0.01, 1, "a step reaches"),
      number_option("exchange_us", &machine.exchange_us, 0, 1e6, "small sum in a node"),
      number_option("link_gb_s", &machine.link_gb_s, 0.01, 1e5, "of a GPU in its node"),
      number_option("cross_node_us", &machine.cross_node_us, 0, 1e6, "small sum over nodes"),
      number_option("network_gb_s", &machine.network_gb_s, 0.01, 1e5, "of a GPU, outward"),
      number_option("host_us", &machine.host_us, 0, 1e6, "of a round on the host"),
      integer_option("tp_emulate",
                     &options->tp_emulate,
                     0,
                     1024,
                     "time one rank's shard of so many on this device, sums left out; 0 = do not")};
}

void print(const char* what, const ModelPlan& plan, const ClusterConstants& constants) {
  const RankMemory& m = plan.memory;
  std::printf(
      "%s, each GPU (the fullest): matrices %.2f GB, embedding %.2f GB, buffers %.2f GB, "
      "KV %.1f kB per token\n",
      what,
      m.matrices_bytes / 1e9,
      m.embedding_bytes / 1e9,
      m.buffers_bytes / 1e9,
      m.kv_bytes_per_token / 1e3);
  if (m.kv_tokens < 1) {
    std::printf("  does not fit into %.0f%% of %.0f GB\n",
                100 * constants.memory_share,
                constants.memory_gb);
  } else {
    std::printf("  %.0f tokens of KV fit into what is left of %.0f%% of %.0f GB\n",
                m.kv_tokens,
                100 * constants.memory_share,
                constants.memory_gb);
  }
}

void print(const char* what, const StepPlan& step) {
  std::printf(
      "%s of %d row(s): %.2f ms = read %.2f + sums %.2f; %d sums of %.0f kB, statistics "
      "%.2f kB a rank\n",
      what,
      step.rows,
      step.total_ms(),
      step.read_ms,
      step.sums_ms,
      step.num_sums,
      step.bytes_per_sum / 1e3,
      step.statistics_bytes / 1e3);
}

void print_constants(const ClusterConstants& c) {
  std::printf(
      "All times are predictions from these constants, none of them measured with this program "
      "(docs/cluster.md):\n"
      "  memory_gb %g, memory_share %g, bandwidth_tb_s %g, bandwidth_share %g, exchange_us %g, "
      "link_gb_s %g, cross_node_us %g, network_gb_s %g, host_us %g\n",
      c.memory_gb,
      c.memory_share,
      c.bandwidth_tb_s,
      c.bandwidth_share,
      c.exchange_us,
      c.link_gb_s,
      c.cross_node_us,
      c.network_gb_s,
      c.host_us);
}

ClusterShape shape_of(const PlanOptions& options, int32_t num_ranks) {
  return {.gpus_per_node = options.gpus,
          .num_nodes = options.nodes,
          .num_ranks = num_ranks,
          .weight_bytes = options.dtype == "fp8" ? 1 : 2,
          .num_sequences = options.sequences,
          .context_len = options.context};
}

void print_speculation(const PlanOptions& options,
                       const ModelConfig& target,
                       const ModelConfig& draft,
                       const ClusterShape& shape) {
  ClusterShape alone = shape;
  alone.num_nodes = alone.num_ranks = alone.gpus_per_node = 1;
  print("draft", plan_model(draft, alone, options.constants), options.constants);
  const SpeculationPlan plan = plan_speculation(
      target, draft, shape, options.constants, options.acceptance, options.hit_rate);
  print("draft step", plan_step(draft, alone, options.constants, 1));
  if (plan.draft_len == 0) {
    std::printf("speculation: no draft length is faster than none\n");
    return;
  }
  print("verify", plan.verify);
  std::printf(
      "speculation at acceptance %g, %d draft tokens: %.2f tokens a round, %.2f x plain "
      "decoding\n",
      options.acceptance,
      plan.draft_len,
      plan.tokens_per_round,
      plan.waiting_speedup);
  std::printf("asynchronous drafting, hit rate %g, a verify taken to cost a plain step: %.2f x\n",
              options.hit_rate,
              plan.ahead_speedup);
}

}  // namespace

int plan_command(const CommandLine& line) {
  PlanOptions options;
  const std::vector<Option> rows = rows_of(&options);
  const RunConfig config = load_config(line.arguments, option_rows(rows)).config;
  const int32_t num_gpus = options.gpus * options.nodes;
  const int32_t num_ranks =
      config.tensor_parallel_size > 0 ? config.tensor_parallel_size : num_gpus;
  if (num_ranks > num_gpus) {
    throw Error(fmt::format("tensor_parallel_size {} wants more than {} node(s) of {} GPU(s)",
                            num_ranks,
                            options.nodes,
                            options.gpus));
  }
  if (num_ranks > options.gpus && num_ranks % options.gpus != 0) {
    throw Error(fmt::format(
        "tensor_parallel_size {} leaves a node of {} GPUs partly used", num_ranks, options.gpus));
  }
  const ModelConfig target = model_config_of(config.model, Role::kTarget);
  ClusterShape shape = shape_of(options, num_ranks);
  shape.num_nodes = (num_ranks + options.gpus - 1) / options.gpus;
  const std::string draft = options.draft.empty() ? config.speculative.model : options.draft;
  std::optional<ModelConfig> draft_config;
  if (!draft.empty()) draft_config = model_config_of(draft, Role::kDraft);
  std::printf("%s over %d GPU(s) on %d node(s)%s\n",
              config.model.c_str(),
              num_ranks,
              shape.num_nodes,
              draft.empty() ? "" : fmt::format(", {} on one more", draft).c_str());
  print_constants(options.constants);
  const ModelPlan plan = plan_model(target, shape, options.constants);
  print("target", plan, options.constants);
  print("plain step", plan.plain);
  std::printf("  %.0f tokens/s of %d sequence(s), %.1f a sequence\n",
              1e3 * options.sequences / (plan.plain.total_ms() + options.constants.host_us * 1e-3),
              options.sequences,
              1e3 / (plan.plain.total_ms() + options.constants.host_us * 1e-3));
  if (draft_config) print_speculation(options, target, *draft_config, shape);
  if (options.tp_emulate > 0) {
    std::printf("measured here, on device %s, one rank's shard of %d without its sums:\n",
                config.device.c_str(),
                options.tp_emulate);
    for (const EmulatedStep& step : time_shard(config, options.tp_emulate, {1, 5, 9, 17})) {
      std::printf("  %2d row(s): %.2f ms\n", step.rows, step.median_ms);
    }
  }
  return 0;
}

}  // namespace outrider
