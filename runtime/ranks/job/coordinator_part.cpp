// See coordinator_part.h.
#include "runtime/ranks/job/coordinator_part.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <future>
#include <string>
#include <thread>

#include "runtime/base/clock.h"
#include "runtime/base/log.h"
#include "runtime/ranks/draft/engine.h"
#include "runtime/ranks/job/abort.h"
#include "runtime/ranks/job/async_drafting.h"
#include "runtime/ranks/loading/draft_pair.h"
#include "runtime/ranks/loading/engine_sizes.h"

namespace outrider {
namespace {

// mpirun ends the job about a second after a rank has died.
constexpr std::chrono::milliseconds kTimeToTellClients{700};

void record_memory(const Model::Memory& memory, ServingMetrics& metrics) {
  metrics.weight_bytes.set(static_cast<double>(memory.weights));
  metrics.kv_cache_bytes.set(static_cast<double>(memory.kv));
  metrics.buffer_bytes.set(static_cast<double>(memory.buffers));
}

// In vLLM's labels and words: whoever reads them takes num_gpu_blocks for the number of KV blocks.
void record_cache_config(const PlannerConfig& planner,
                         const RunConfig& config,
                         ServingMetrics& metrics) {
  const int64_t num_tokens = int64_t{planner.num_blocks} * planner.block_size;
  const double num_sequences = static_cast<double>(num_tokens) / planner.max_model_len;
  metrics.set_cache_config({
      {"block_size", std::to_string(planner.block_size)},
      {"num_gpu_blocks", std::to_string(planner.num_blocks)},
      {"kv_cache_size_tokens", std::to_string(num_tokens)},
      {"kv_cache_max_concurrency", fmt::format("{:.2f}", num_sequences)},
      {"cache_dtype", config.kv_cache_dtype},
      {"enable_prefix_caching", planner.enable_prefix_caching ? "True" : "False"},
  });
}

AsyncDrafting async_drafting_of(const JobRank& rank, const Topology& topology) {
  const auto num_cpus = static_cast<int>(std::thread::hardware_concurrency());
  const AsyncDrafting async_drafting =
      resolve_async_drafting(rank.config, rank.layout, topology, num_cpus);
  if (rank.layout.has_draft)
    log_info("asynchronous drafting: {}", async_drafting_name(async_drafting));
  return async_drafting;
}

// While it lives, clients are told of a lost rank at once, whatever the round's thread waits for.
class LastWords {
 public:
  LastWords(World& world, Coordinator& coordinator) : world_(world) {
    world.when_lost([&coordinator](const std::string& reason) { coordinator.fail(reason); });
  }
  ~LastWords() { world_.when_lost({}); }
  LastWords(const LastWords&) = delete;
  LastWords& operator=(const LastWords&) = delete;

 private:
  World& world_;
};

// Where drafts attach; null where none may.
std::unique_ptr<DraftServer> serve_drafts(const JobRank& rank,
                                          const ServingResources& resources,
                                          const PlannerConfig& planner,
                                          const ModelConfig& model) {
  if (!resources.draft_listener) return nullptr;
  const RunConfig& config = rank.config;
  const EngineSizes sizes = engine_sizes(config, model, rank.layout);
  const VocabularyDigest vocabulary = vocabulary_digest(config.model, Role::kTarget);
  return std::make_unique<DraftServer>(
      *resources.draft_listener,
      DraftDemands{.key = config.draft_key,
                   .vocabulary = vocabulary.text,
                   .num_tokens = vocabulary.num_tokens},
      DraftTerms{.target_vocab_size = model.vocab_size,
                 .num_candidates = planner.num_draft_candidates,
                 .longest_draft_len = planner.num_speculative_tokens,
                 .max_model_len = sizes.max_model_len,
                 .max_rows = sizes.max_rows,
                 .blocks_per_sequence = sizes.blocks_per_sequence,
                 .num_blocks = sizes.num_blocks,
                 .block_size = config.block_size,
                 .max_num_seqs = config.max_num_seqs});
}

// The rounds here, the front end on a thread of its own, until both are done.
int run_both(World& world, Coordinator& coordinator, const std::function<int()>& front_end) {
  const LastWords last_words(world, coordinator);
  int exit_code = 0;
  std::exception_ptr problem;
  std::promise<void> has_ended;
  std::thread front([&, reserved = ClockSeat::reserve()] {
    const ClockSeat assignment(reserved);
    set_thread_log_name("front");
    ops::leave_pinning();  // its own threads inherit where it may run
    try {
      exit_code = front_end();
    } catch (...) {
      problem = std::current_exception();
    }
    // A front end that failed leaves nobody to read what still runs.
    coordinator.request_stop(problem ? Coordinator::Stop::kNow : Coordinator::Stop::kWhenIdle);
    has_ended.set_value();
  });
  try {
    coordinator.loop();
  } catch (const std::exception& error) {
    coordinator.deliver_decided();
    coordinator.fail(error.what());
    has_ended.get_future().wait_for(kTimeToTellClients);
    abort_job(world, error.what());
  }
  front.join();
  const std::string summary = speedup_summary(coordinator.speedup_totals());
  if (!summary.empty()) log_info("{}", summary);
  if (problem) std::rethrow_exception(problem);
  return exit_code;
}

}  // namespace

int run_coordinator(const JobRank& rank,
                    TargetRank& target,
                    const ServingResources& resources,
                    const Topology& topology,
                    const FrontEnd& front_end) {
  const RunConfig& config = rank.config;
  const SpeculativeConfig& speculative = config.speculative;
  const ModelConfig& model_config = target.model().config();
  const PlannerConfig planner =
      planner_config(config, rank.layout, model_config, topology.num_kv_blocks, resources);
  const EngineInfo info = engine_info(config, rank.layout, planner);
  ServingMetrics metrics(
      info.served_model_name, info.max_model_len, std::max(1, info.num_speculative_tokens));
  record_memory(target.model().memory(), metrics);
  record_cache_config(planner, config, metrics);
  const std::unique_ptr<DraftServer> draft_server =
      serve_drafts(rank, resources, planner, model_config);
  Coordinator coordinator(
      {.world = rank.world,
       .layout = rank.layout,
       .target = target,
       .planner = planner,
       .info = info,
       .metrics = metrics,
       .max_num_queued_reqs = config.max_num_queued_reqs,
       .verify_mode = verify_mode_from_name(speculative.rejection_sample_method).value(),
       .async_drafting = async_drafting_of(rank, topology),
       .draft_translates = topology.draft_translates,
       .epoch = kFirstDraftEpoch,
       .draft_server = draft_server.get(),
       .draft_patience_s = speculative.draft_patience_s,
       .chooses_draft_len = speculative.num_speculative_tokens == kAutoDraftLen,
       .checks = resources.checks});
  const FrontEndContext context{.config = config,
                                .engine = coordinator,
                                .tokenizer = resources.tokenizer,
                                .chat_template = resources.chat_template,
                                .answer_formats = resources.answer_formats,
                                .model_config = model_config,
                                .grammars = resources.grammars,
                                .defaults = resources.defaults,
                                .metrics = metrics,
                                .topology = topology};
  return run_both(rank.world, coordinator, [&] { return front_end(context); });
}

}  // namespace outrider
