// See draft_part.h.
#include "runtime/ranks/job/draft_part.h"

#include <cstdlib>
#include <functional>
#include <string>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/log.h"
#include "runtime/ranks/checks.h"
#include "runtime/ranks/draft/loop.h"
#include "runtime/ranks/draft/worker.h"
#include "runtime/ranks/job/abort.h"
#include "runtime/ranks/loading/grammar_loader.h"
#include "runtime/ranks/loading/model_loader.h"
#include "runtime/ranks/loading/model_names.h"
#include "runtime/ranks/startup/device_check.h"
#include "runtime/ranks/startup/placement.h"
#include "runtime/ranks/startup/ready_barrier.h"

namespace outrider {
namespace {

// What the draft says to the other ranks while it starts: of its GPU, and that it is ready or why
// not.
struct DraftStart {
  std::function<Bytes(const Bytes& descriptor)> check_devices;
  std::function<void(const Readiness& readiness)> report;
  uint32_t epoch = kFirstDraftEpoch;
  bool comes_back = false;  // somebody starts it again when it ends
};

// The targets go on without a draft that has failed.
void serve(const JobRank& rank, const DraftStart& start, bool takes_cpu, DraftWorker& worker) {
  try {
    run_draft_loop(rank.world, start.epoch, takes_cpu, worker);
  } catch (const std::exception& error) {
    if (start.comes_back) throw;
    log_error("the draft worker stopped: {}", error.what());
    wait_for_shutdown(rank.world, start.epoch);
  }
}

// The draft with its model, until the job is over.
void run_worker(const JobRank& rank, const DraftStart& start) {
  const auto& [world, config, layout, trace] = rank;
  DeviceAssignment assignment = agreed_assignment(
      [&] { return draft_assignment(rank.config, rank.world, rank.layout); }, start.check_devices);
  LoadedModel loaded;
  ModelConfig target_config;
  std::shared_ptr<const GrammarEngine> grammars;
  Checks checks;
  Readiness readiness{.shares_gpu = assignment.device != nullptr && assignment.num_targets > 0};
  try {
    checks = Checks::from_environment();
    loaded = load_draft(config,
                        layout,
                        threads_of_rank(config, world, layout, Role::kDraft),
                        std::move(assignment));
    target_config = model_config_of(config.model, Role::kTarget);
    grammars = load_grammar_engine(config);
    readiness.translates = loaded.vocabulary != nullptr;
    readiness.device = loaded.device_name();
  } catch (const std::exception& error) {
    readiness.problem = error.what();
  }
  start.report(readiness);
  if (!readiness.problem.empty()) return;
  DraftWorker worker(*loaded.model,
                     {.target_vocab_size = target_config.vocab_size,
                      .num_candidates = config.speculative.num_draft_candidates,
                      .vocabulary = loaded.vocabulary.get(),
                      .grammars = grammars.get(),
                      .checks = checks});
  const ThreadTrace recording(trace.ring());
  const bool takes_cpu = loaded.context != nullptr;
  serve(rank, start, takes_cpu, worker);
  trace.hand_over(world);
}

void answer_ready_barrier(const JobRank& rank, Readiness readiness) {
  readiness.num_threads = num_threads_of_draft(rank.config, rank.world, rank.layout);
  ready_barrier(rank.world, rank.layout, readiness);
  checked_barrier(rank.world, rank.layout, "");
  rank.trace.compare_clocks(rank.world, rank.layout);  // a child's clock is this host's
}

// The rank whose child computes.
void relay_for(DraftEngine& engine, const JobRank& rank) {
  const auto descriptor = engine.wait_message();
  const Bytes answer = check_devices(
      rank.world,
      rank.layout,
      descriptor ? *descriptor : encode_descriptor({.problem = engine.why_not_started()}));
  engine.send(answer);
  if (const std::string refusal = refusal_in(answer); !refusal.empty()) throw Error(refusal);
  answer_ready_barrier(rank, engine.wait_report());
  engine.relay(rank.world, answer);
  if (rank.trace.on()) engine.relay_rest(rank.world);
}

// The child itself: to it its rank is the world.
void run_child(World& parent, const RunConfig& config, const RankLayout& layout, uint32_t epoch) {
  set_process_log_name("draft engine");
  JobTrace trace(config.trace);
  const auto call = [&](const Bytes& descriptor) {
    parent.post(0, descriptor);
    Bytes answer = receive(parent, 0, 1);
    if (!refusal_in(answer).empty()) std::_Exit(kExitUsage);  // its rank says why
    return answer;
  };
  const auto report = [&](const Readiness& readiness) { report_ready(parent, readiness); };
  run_worker({.world = parent, .config = config, .layout = layout, .trace = trace},
             {.check_devices = call, .report = report, .epoch = epoch, .comes_back = true});
}

}  // namespace

std::unique_ptr<DraftEngine> start_draft_engine(const RunConfig& config) {
  const char* rank = std::getenv("OMPI_COMM_WORLD_RANK");
  const char* size = std::getenv("OMPI_COMM_WORLD_SIZE");
  if (rank == nullptr || size == nullptr) return nullptr;
  RankLayout layout;
  try {
    layout = make_layout(config, std::atoi(size));
  } catch (const Error&) {
    return nullptr;  // said by all ranks together, later
  }
  if (!layout.has_draft || std::atoi(rank) != layout.draft_rank()) return nullptr;
  return DraftEngine::start(layout.draft_rank(), [&config, layout](World& parent, uint32_t epoch) {
    run_child(parent, config, layout, epoch);
  });
}

void run_draft(const JobRank& rank, DraftEngine* engine) {
  if (engine != nullptr) return relay_for(*engine, rank);
  run_worker(
      rank,
      {.check_devices =
           [&](const Bytes& descriptor) {
             return check_devices(rank.world, rank.layout, descriptor);
           },
       .report = [&](const Readiness& readiness) { answer_ready_barrier(rank, readiness); }});
}

}  // namespace outrider
