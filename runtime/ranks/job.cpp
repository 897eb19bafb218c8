// See job.h.
#include "runtime/ranks/job.h"

#include <thread>

#include "models/simulated_spec.h"
#include "runtime/base/clock.h"
#include "runtime/base/files.h"
#include "runtime/base/log.h"
#include "runtime/ranks/draft.h"
#include "runtime/ranks/draft/loop.h"
#include "runtime/ranks/draft_corpus.h"
#include "runtime/ranks/draft_engine.h"
#include "runtime/ranks/engine_sizes.h"
#include "runtime/ranks/gpu_call.h"
#include "runtime/ranks/gpu_demands.h"
#include "runtime/ranks/model_loader.h"
#include "runtime/ranks/model_names.h"
#include "runtime/ranks/ride_ahead.h"
#include "runtime/ranks/roll_call.h"
#include "runtime/ranks/signals.h"
#include "runtime/ranks/trace_gather.h"

namespace outrider {
namespace {

constexpr int kExitUsage = 2;
constexpr int kExitAborted = 70;
constexpr size_t kMaxTemplateFileBytes = size_t{1} << 20;
// One life of the engine per job, for now; a draft that comes back after a restart would carry
// another.
constexpr uint32_t kEpoch = 1;

// What a job is for: a front end with its engine, or something of the targets' own.
struct Purpose {
  FrontEnd front_end;
  OnTargets on_targets;
  InProcessLink link = {};
};

// The draft works while the targets wait and the other way round, so it does not count: its CPUs
// are the targets' too.
ops::ThreadPlan threads_of_rank(const RunConfig& config,
                                const World& world,
                                const RankLayout& layout,
                                Role role) {
  const int num_targets = layout.num_targets;
  const int before = role == Role::kDraft ? num_targets : world.rank();
  return ops::plan_threads(
      {.num_threads = config.threads,
       .cpu_bind = config.cpu_bind,
       .on_host = {world.num_ranks_here(before), world.num_ranks_here(num_targets)},
       .on_cpus = {world.num_ranks_on_these_cpus(before),
                   world.num_ranks_on_these_cpus(num_targets)}});
}

HostPlace place_on_host(const World& world, const RankLayout& layout, Role role) {
  const int num_targets = world.num_ranks_here(layout.num_targets);
  return {.index = role == Role::kDraft ? num_targets : world.num_ranks_here(world.rank()),
          .num_targets = num_targets,
          .has_draft = world.num_ranks_here(layout.num_ranks()) > num_targets};
}

// For the report of a draft rank whose child computes, and says so itself when there is a problem.
int num_threads_of_draft(const RunConfig& config, const World& world, const RankLayout& layout) {
  try {
    return threads_of_rank(config, world, layout, Role::kDraft).num_threads;
  } catch (const Error&) {
    return 0;
  }
}

// What rank 0 needs beside its shard.
struct FrontDesk {
  std::shared_ptr<const Tokenizer> tokenizer;
  std::optional<ChatTemplate> chat_template;
  GenerationDefaults defaults;
  std::shared_ptr<const BigramModel> draft_corpus;  // null without one
  Checks checks;
  Topology topology;
};

FrontDesk open_front_desk(const RunConfig& config) {
  // A synthetic or simulated model has no tokenizer; the embedded one's ids lie within its
  // vocabulary, which is enough to bench.
  const auto folder =
      model_folder(has_no_files(config.model) ? "embedded" : config.model, Role::kTarget);
  FrontDesk desk;
  desk.checks = Checks::from_environment();
  desk.tokenizer = Tokenizer::load(folder);
  desk.chat_template =
      config.chat_template.empty()
          ? ChatTemplate::load(folder)
          : ChatTemplate::parse(read_text_file(config.chat_template, kMaxTemplateFileBytes));
  if (config.generation_config == "auto") desk.defaults = load_generation_defaults(folder);
  desk.draft_corpus = learn_draft_corpus(
      config.speculative, *desk.tokenizer, model_config_of(config.model, Role::kTarget).vocab_size);
  return desk;
}

DraftMethod draft_method(const RunConfig& config, const RankLayout& layout) {
  if (layout.has_draft) return DraftMethod::kDraftModel;
  if (config.speculative.method == "ngram") return DraftMethod::kNgram;
  if (config.speculative.method == "unigram") return DraftMethod::kUnigram;
  if (config.speculative.method == "bigram") return DraftMethod::kBigram;
  return DraftMethod::kNone;
}

PlannerConfig planner_config(const RunConfig& config,
                             const RankLayout& layout,
                             const Model& model,
                             int32_t num_blocks) {
  const EngineSizes sizes = engine_sizes(config, model.config(), layout);
  PlannerConfig planner;
  planner.block_size = config.block_size;
  planner.num_blocks = num_blocks;
  planner.max_num_seqs = config.max_num_seqs;
  planner.max_num_batched_tokens = sizes.max_rows;
  planner.max_model_len = sizes.max_model_len;
  planner.enable_prefix_caching = config.enable_prefix_caching;
  planner.scheduling_policy =
      config.scheduling_policy == "fcfs" ? SchedulingPolicy::kFcfs : SchedulingPolicy::kPriority;
  planner.priority_aging_rounds = config.priority_aging_rounds;
  planner.capacity_policy = config.capacity_scheduler_policy == "guaranteed_no_evict"
                                ? CapacityPolicy::kGuaranteedNoEvict
                                : CapacityPolicy::kMaxUtilization;
  planner.vocab_size = model.config().vocab_size;
  planner.draft_method = draft_method(config, layout);
  planner.num_speculative_tokens = config.speculative.longest_draft_len();
  planner.prompt_lookup_max = config.speculative.prompt_lookup_max;
  planner.prompt_lookup_min = config.speculative.prompt_lookup_min;
  planner.num_draft_candidates = config.speculative.num_draft_candidates;
  return planner;
}

EngineInfo engine_info(const RunConfig& config,
                       const RankLayout& layout,
                       const PlannerConfig& planner) {
  EngineInfo info;
  info.model_root = config.model;
  info.served_model_name = config.served_model_name;
  if (info.served_model_name.empty()) {
    info.served_model_name = config.model == "embedded" ? "outrider-embedded"
                             : is_simulated(config.model)
                                 ? "outrider-simulated"
                                 : std::filesystem::path(config.model).filename().string();
  }
  if (info.served_model_name.empty()) info.served_model_name = config.model;
  info.max_model_len = planner.max_model_len;
  info.vocab_size = planner.vocab_size;
  info.num_target_ranks = layout.num_targets;
  if (planner.draft_method == DraftMethod::kDraftModel) {
    info.draft = config.speculative.model;
  } else if (planner.draft_method != DraftMethod::kNone) {
    info.draft = config.speculative.method;
  }
  info.num_speculative_tokens = info.draft.empty() ? 0 : planner.num_speculative_tokens;
  return info;
}

// An error in the middle of rounds: the other ranks may be inside a collective, so there is no
// orderly way out.
[[noreturn]] void end_job(World& world, const std::string& reason) {
  try {
    world.abort(reason);
  } catch (const std::exception&) {  // threads of this process: they end with it
    log_error("{}", reason);
  }
  std::_Exit(kExitAborted);
}

int run_coordinator(World& world,
                    const RunConfig& config,
                    const RankLayout& layout,
                    TargetRank& target,
                    const FrontDesk& desk,
                    const FrontEnd& front_end) {
  PlannerConfig planner =
      planner_config(config, layout, target.model(), desk.topology.num_kv_blocks);
  planner.draft_corpus = desk.draft_corpus;
  planner.tells_emptied_blocks = desk.checks.poison;
  const EngineInfo info = engine_info(config, layout, planner);
  ServingMetrics metrics(
      info.served_model_name, info.max_model_len, std::max(1, info.num_speculative_tokens));
  const Model::Memory& memory = target.model().memory();
  metrics.weight_bytes.set(static_cast<double>(memory.weights));
  metrics.kv_cache_bytes.set(static_cast<double>(memory.kv));
  metrics.buffer_bytes.set(static_cast<double>(memory.buffers));
  const RideAhead ride_ahead = resolve_ride_ahead(
      config, layout, desk.topology, static_cast<int>(std::thread::hardware_concurrency()));
  if (layout.has_draft)
    log_info("while the targets verify, the draft rides ahead: {}", ride_ahead_name(ride_ahead));
  Coordinator coordinator(
      {.world = world,
       .layout = layout,
       .target = target,
       .planner = planner,
       .info = info,
       .metrics = metrics,
       .max_num_queued_reqs = config.max_num_queued_reqs,
       .verify_mode = verify_mode_from_name(config.speculative.rejection_sample_method).value(),
       .ride_ahead = ride_ahead,
       .epoch = kEpoch,
       .draft_patience_s = config.speculative.draft_patience_s,
       .chooses_draft_len = config.speculative.num_speculative_tokens == kAutoDraftLen,
       .checks = desk.checks});
  const FrontEndContext context{.config = config,
                                .engine = coordinator,
                                .tokenizer = desk.tokenizer,
                                .chat_template = desk.chat_template,
                                .model_config = target.model().config(),
                                .defaults = desk.defaults,
                                .metrics = metrics,
                                .topology = desk.topology};
  int exit_code = 0;
  std::exception_ptr problem;
  std::thread front([&, reserved = ClockSeat::reserve()] {
    const ClockSeat seat(reserved);
    set_thread_log_name("front");
    ops::leave_pinning();  // its own threads inherit where it may run
    try {
      exit_code = front_end(context);
    } catch (...) {
      problem = std::current_exception();
    }
    // A front end that failed leaves nobody to read what still runs.
    coordinator.request_stop(problem ? Coordinator::Stop::kNow : Coordinator::Stop::kWhenIdle);
  });
  try {
    coordinator.loop();
  } catch (const std::exception& error) {
    end_job(world, error.what());
  }
  front.join();
  const std::string summary = speedup_summary(coordinator.speedup_totals());
  if (!summary.empty()) log_info("{}", summary);
  if (problem) std::rethrow_exception(problem);
  return exit_code;
}

// What the draft says to the other ranks while it starts: of its GPU, and that it is ready or why
// not.
struct DraftStart {
  std::function<Bytes(const Bytes& claim)> call_gpus;
  std::function<void(const std::string& problem)> report;
};

// A rank's GPU, or none where it computes elsewhere. Throws what all ranks stop with.
GpuSeat agreed_seat(const std::function<GpuSeat()>& take,
                    const std::function<Bytes(const Bytes& claim)>& call) {
  GpuSeat seat;
  GpuClaim claim;
  try {
    seat = take();
    claim = claim_of(seat);
  } catch (const std::exception& error) {
    claim.problem = error.what();
  }
  settle_seat(call(encode_claim(claim)), seat);
  return seat;
}

GpuSeat draft_seat(const World& world, const RunConfig& config, const RankLayout& layout) {
  if (!is_draft_on_gpu(config) || is_simulated(config.speculative.model)) return {};
  return take_gpu_seat(config, place_on_host(world, layout, Role::kDraft), true);
}

// The draft with its model, until the job is over.
void run_draft(World& world,
               const RunConfig& config,
               const RankLayout& layout,
               JobTrace& trace,
               const DraftStart& start) {
  GpuSeat seat = agreed_seat([&] { return draft_seat(world, config, layout); }, start.call_gpus);
  LoadedModel loaded;
  ModelConfig target_config;
  Checks checks;
  std::string problem;
  try {
    checks = Checks::from_environment();
    loaded = load_draft(
        config, layout, threads_of_rank(config, world, layout, Role::kDraft), std::move(seat));
    target_config = model_config_of(config.model, Role::kTarget);
  } catch (const std::exception& error) {
    problem = error.what();
  }
  start.report(problem);
  if (!problem.empty()) return;
  DraftWorker worker(*loaded.model,
                     {.target_vocab_size = target_config.vocab_size,
                      .num_candidates = config.speculative.num_draft_candidates,
                      .vocabulary = loaded.vocabulary.get(),
                      .checks = checks});
  const ThreadTrace recording(trace.ring());
  run_draft_loop(world, kEpoch, worker);
  trace.hand_over(world);
}

// What decides how a target rank cuts the model, sizes its memory and folds its sums.
std::vector<std::string> shared_settings(const RunConfig& config, const LoadedModel& loaded) {
  const bool rounds =
      loaded.context != nullptr && loaded.context->activations() == ops::Activations::kBF16;
  return {fmt::format("device {}", config.device),
          fmt::format("device_sums {}", config.device_sums),
          fmt::format("numerics {}", config.numerics),
          fmt::format("quantization {}", config.quantization),
          fmt::format("tensor_parallel_size {}", config.tensor_parallel_size),
          fmt::format("max_model_len {}", config.max_model_len),
          fmt::format("max_num_seqs {}", config.max_num_seqs),
          fmt::format("max_num_batched_tokens {}", config.max_num_batched_tokens),
          fmt::format("block_size {}", config.block_size),
          fmt::format("kv_cache_memory_bytes {}", config.kv_cache_memory_bytes),
          fmt::format("num_speculative_tokens {}", config.speculative.num_speculative_tokens),
          fmt::format("trace {}", config.trace.empty() ? "off" : "on"),
          fmt::format("activation_dtype {}", rounds ? "bfloat16" : "float32")};
}

int run_on_this_target(const TargetContext& context, const OnTargets& body) {
  try {
    return body(context);
  } catch (const std::exception& error) {
    if (context.num_targets == 1) throw;
    end_job(context.world, error.what());
  }
}

// Coordinator or target.
int run_target(World& world,
               const RunConfig& config,
               const RankLayout& layout,
               JobTrace& trace,
               const Purpose& purpose) {
  const bool coordinates = layout.role(world.rank()) == Role::kCoordinator;
  LoadedModel loaded;
  FrontDesk desk;
  Faults faults;
  std::string problem;
  ops::ThreadPlan threads = 0;
  GpuSeat seat = agreed_seat(
      [&]() -> GpuSeat {
        threads = threads_of_rank(config, world, layout, Role::kTarget);
        faults = Faults::from_environment(world.rank(), layout.num_targets);
        if (config.device != "cuda" || is_simulated(config.model)) return {};
        return take_gpu_seat(
            config, place_on_host(world, layout, Role::kTarget), is_draft_on_gpu(config));
      },
      [&](const Bytes& claim) { return call_gpus(world, layout, claim); });
  try {
    loaded = load_target(config,
                         layout,
                         world.rank(),
                         threads,
                         world.make_target_group(layout.num_targets),
                         std::move(seat));
    if (coordinates && purpose.front_end) {
      desk = open_front_desk(config);
      trace.open_file();
    }
  } catch (const std::exception& error) {
    problem = error.what();
  }
  desk.topology =
      roll_call(world,
                layout,
                {.problem = problem,
                 .settings = shared_settings(config, loaded),
                 .num_threads = threads.num_threads,
                 .num_kv_blocks = loaded.model ? loaded.model->options().num_blocks : 0});
  try {  // what can hang when a rank is missing comes after the roll call
    begin_together(loaded, config, [&] { world.check_alive(layout.num_targets); });
  } catch (const std::exception& error) {
    problem = error.what();
  }
  go_on_together(world, layout, problem);
  if (purpose.on_targets) {
    return run_on_this_target({.config = config,
                               .world = world,
                               .num_targets = layout.num_targets,
                               .loaded = loaded,
                               .topology = desk.topology},
                              purpose.on_targets);
  }
  trace.compare_clocks(world, layout);
  const ThreadTrace recording(trace.ring());
  TargetRank target(*loaded.model, *loaded.group, std::move(faults));
  if (coordinates) {
    const int code = run_coordinator(world, config, layout, target, desk, purpose.front_end);
    trace.gather(world, layout, desk.topology);
    return code;
  }
  try {
    run_target_loop(world, layout, target);
    trace.hand_over(world);
  } catch (const std::exception& error) {
    end_job(world, error.what());
  }
  return 0;
}

// engine: the draft rank's child under MPI; null for a draft that is a thread, or whose launcher
// did not say early enough which rank this is.
int run_rank(World& world,
             const RunConfig& config,
             const RankLayout& layout,
             DraftEngine* engine,
             const Purpose& purpose) {
  set_thread_log_name(layout.name(world.rank()));
  JobTrace trace(purpose.front_end ? config.trace : "");
  if (layout.role(world.rank()) != Role::kDraft) {
    return run_target(world, config, layout, trace, purpose);
  }
  const auto report_to_all = [&](const std::string& problem) {
    roll_call(world, layout, {problem, {}, num_threads_of_draft(config, world, layout)});
    go_on_together(world, layout, "");
    trace.compare_clocks(world, layout);
  };
  if (engine == nullptr) {
    run_draft(world,
              config,
              layout,
              trace,
              {.call_gpus = [&](const Bytes& claim) { return call_gpus(world, layout, claim); },
               .report = report_to_all});
  } else {
    const auto claim = engine->wait_message();
    const Bytes answer = call_gpus(
        world, layout, claim ? *claim : encode_claim({.problem = engine->why_not_started()}));
    engine->send(answer);
    if (const std::string refusal = refusal_in(answer); !refusal.empty()) throw Error(refusal);
    report_to_all(engine->wait_report());  // the engine's clock is this host's
    engine->relay(world, kEpoch);
    if (trace.on()) engine->relay_rest(world, kEpoch);
  }
  return 0;
}

// The engine must be forked before MPI_Init, when only the environment says which rank this is.
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
  return DraftEngine::start(layout.draft_rank(), [&config, layout](World& parent) {
    set_process_log_name("draft engine");
    JobTrace trace(config.trace);
    const auto call = [&](const Bytes& claim) {
      parent.post(0, claim);
      Bytes answer = receive(parent, 0, 1);
      if (!refusal_in(answer).empty()) std::_Exit(kExitUsage);  // its rank says why
      return answer;
    };
    run_draft(parent,
              config,
              layout,
              trace,
              {.call_gpus = call,
               .report = [&](const std::string& problem) { report_ready(parent, problem); }});
  });
}

// A rank that is a process, to its end.
int run_process(World& world,
                const RunConfig& config,
                DraftEngine* engine,
                const Purpose& purpose) {
  int exit_code = 0;
  std::string problem;
  try {
    const RankLayout layout = make_layout(config, world.size());
    exit_code = run_rank(world, config, layout, engine, purpose);
  } catch (const std::exception& error) {
    problem = error.what();
  }
  if (!problem.empty()) exit_code = kExitUsage;
  world.finish(exit_code);
  if (!problem.empty() && world.rank() == 0) throw Error(problem);
  return exit_code;
}

int run_mpi_job(const RunConfig& config, int* argc, char*** argv, const Purpose& purpose) {
  const std::unique_ptr<DraftEngine> engine = start_draft_engine(config);
  const std::unique_ptr<World> world = make_mpi_world(argc, argv);
  return run_process(*world, config, engine.get(), purpose);
}

int run_for(const RunConfig& config, int* argc, char*** argv, const Purpose& purpose) {
  block_stop_signals();
  if (launched_by_mpi()) {
    if (JobClock::is_virtual() || purpose.link.latency.count() > 0)
      throw Error("virtual time and made-up links need all ranks in one process, without mpirun");
    return run_mpi_job(config, argc, argv, purpose);
  }
  const RankLayout layout = make_layout(config, 0);
  int exit_code = 0;
  run_in_process(
      layout.num_ranks(),
      [&](World& world) {
        const int code = run_rank(world, config, layout, nullptr, purpose);
        if (world.rank() == 0) exit_code = code;
      },
      purpose.link);
  return exit_code;
}

}  // namespace

int run_job(const RunConfig& config,
            int* argc,
            char*** argv,
            const FrontEnd& front_end,
            const InProcessLink& link) {
  return run_for(config, argc, argv, {.front_end = front_end, .on_targets = {}, .link = link});
}

int run_job_in(World& world, const RunConfig& config, const FrontEnd& front_end) {
  block_stop_signals();
  return run_process(world, config, nullptr, {.front_end = front_end, .on_targets = {}});
}

int run_on_targets(const RunConfig& config, int* argc, char*** argv, const OnTargets& body) {
  if (is_simulated(config.model))
    throw Error("a simulated model computes nothing to measure: give --model a real one");
  RunConfig without_draft = config;
  without_draft.speculative.method = "none";
  return run_for(without_draft, argc, argv, {.front_end = {}, .on_targets = body});
}

}  // namespace outrider
