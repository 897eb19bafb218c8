// A whole job, a thread for each rank and one for the clients; see simulation.h.
#include <fmt/format.h>

#include <thread>

#include "runtime/base/log.h"
#include "runtime/base/virtual_clock.h"
#include "runtime/comm/world/world.h"
#include "runtime/ranks/coordinator/coordinator.h"
#include "runtime/ranks/draft/loop.h"
#include "runtime/ranks/messages/round_wire.h"
#include "runtime/ranks/target/agreement.h"
#include "runtime/ranks/target/loop.h"
#include "tests/simulation/clients.h"
#include "tests/simulation/draft_life.h"
#include "tests/simulation/faulty_pipe.h"
#include "tests/simulation/job_parts.h"
#include "tests/simulation/simulation.h"

namespace outrider::test {
namespace {

// What the threads share. One of them runs at a time, handed on by the virtual clock.
struct Job {
  explicit Job(const Setting& of)
      : setting(of), witness(of), clients(of, witness, false), limits(of, witness) {}

  const Setting& setting;
  Witness witness;
  Clients clients;
  RoundLimits limits;
  bool is_over = false;
  SimulationResult result;
};

// The world of threads, with something in between.
class ForwardingWorld : public World {
 public:
  ForwardingWorld(World& world, Job& job) : world_(world), job_(job) {}
  int rank() const override { return world_.rank(); }
  int size() const override { return world_.size(); }
  std::string host() const override { return world_.host(); }
  int num_ranks_here(int num_ranks) const override { return world_.num_ranks_here(num_ranks); }
  void post(int to, Bytes message) override { world_.post(to, std::move(message)); }
  std::optional<Bytes> poll(int from) override { return world_.poll(from); }
  void pause_watching(Backoff& backoff, int descriptor) override {
    world_.pause_watching(backoff, descriptor);
  }
  size_t num_unsent_bytes(int to) override { return world_.num_unsent_bytes(to); }
  [[noreturn]] void abort(const std::string& reason) override {
    world_.abort(reason);
    throw Error(reason);
  }
  void check_alive(int num_ranks) override { world_.check_alive(num_ranks); }
  std::unique_ptr<TargetGroup> make_target_group(int num_ranks) override {
    return world_.make_target_group(num_ranks);
  }
  void end_unresponsive(int rank) override { world_.end_unresponsive(rank); }
  void finish(int exit_code) override { world_.finish(exit_code); }

 protected:
  int draft_rank() const { return job_.setting.num_targets; }
  // The next frame of the draft's link, through this end's pipe.
  std::optional<Bytes> poll_through(FaultyPipe& pipe, int from) {
    const int64_t now_ns = JobClock::now_ns();
    while (auto bytes = world_.poll(from)) {
      Frame frame;
      const bool is_last = decode_frame(*bytes, &frame) && frame.kind == FrameKind::kShutdown;
      is_last ? pipe.send_whole(std::move(*bytes), now_ns) : pipe.send(std::move(*bytes), now_ns);
    }
    auto bytes = pipe.receive(now_ns);
    if (const auto next_ns = pipe.next_ns(); !bytes && next_ns)
      JobClock::record_event(std::chrono::nanoseconds(*next_ns - now_ns));
    return bytes;
  }

  World& world_;
  Job& job_;
};

class CoordinatorWorld final : public ForwardingWorld {
 public:
  CoordinatorWorld(World& world, Job& job)
      : ForwardingWorld(world, job), pipe_(job.setting.from_draft, mix_seed(job.setting.seed, 2)) {}
  ~CoordinatorWorld() override { job_.result.num_link_faults += pipe_.num_faults(); }

  std::optional<Bytes> poll(int from) override {
    job_.limits.see_time();
    if (from != draft_rank()) return world_.poll(from);
    auto bytes = poll_through(pipe_, from);
    Frame frame;
    if (!bytes || !life_.takes(*bytes, &frame)) return bytes;
    try {
      job_.witness.note_offered(decode_draft_reply(frame.payload));
    } catch (const Error&) {
    }
    return bytes;
  }
  void post(int to, Bytes message) override {
    world_.post(to, std::move(message));
    if (to == draft_rank()) job_.limits.see_unsent(world_.num_unsent_bytes(to));
  }
  void check_alive(int num_ranks) override {
    job_.limits.see_time();
    world_.check_alive(num_ranks);
  }
  void end_unresponsive(int) override {
    job_.is_over = true;
    JobClock::record_event();
  }

 private:
  FaultyPipe pipe_;
  KnownLife life_;
};

// Rank 1's: shows the witness each plan, whole.
class SpyingWorld final : public ForwardingWorld {
 public:
  using ForwardingWorld::ForwardingWorld;
  std::optional<Bytes> poll(int from) override {
    auto bytes = world_.poll(from);
    if (bytes && from == 0) see(*bytes);
    return bytes;
  }

 private:
  void see(const Bytes& bytes) {
    if (plan_) {
      decode_candidates(bytes, *plan_);
    } else {
      try {
        plan_ = decode_round_plan(bytes);
      } catch (const Error&) {
        return;  // late draft tokens
      }
      if (plan_->candidates_follow) return;
    }
    if (!plan_->sequences.empty()) {
      job_.witness.see_plan(*plan_, false);
      job_.limits.see_progress(job_.clients.num_rows_needed());
    }
    plan_.reset();
  }
  std::optional<RoundPlan> plan_;
};

// Not an exception that the draft's loop would catch.
struct Died {};

class DraftWorld final : public ForwardingWorld {
 public:
  DraftWorld(World& world, Job& job)
      : ForwardingWorld(world, job),
        dice_(mix_seed(job.setting.seed, 0xD8AF)),
        pipe_(job.setting.to_draft, mix_seed(job.setting.seed, 1)) {}
  ~DraftWorld() override { job_.result.num_link_faults += pipe_.num_faults(); }

  std::optional<Bytes> poll(int from) override {
    if (job_.is_over) throw Died();
    auto bytes = poll_through(pipe_, from);
    const DraftFaults& faults = job_.setting.draft_faults;
    if (!bytes) return bytes;
    if (dice_.chance(faults.stalls)) rest(dice_.below(faults.longest_away_us));
    if (dice_.chance(faults.deaths)) throw Died();
    return bytes;
  }
  void post(int to, Bytes message) override {
    Frame frame;
    const bool is_reply = decode_frame(message, &frame) && frame.kind == FrameKind::kReply;
    if (is_reply && job_.setting.draft_faults.lies > 0) {
      DraftReply reply = unpacked(decode_draft_reply(frame.payload));
      job_.result.num_lies += tell_lies(reply, job_.setting.draft_faults.lies, dice_);
      frame.payload = encode(reply);
      message = encode_frame(frame);
    }
    world_.post(to, std::move(message));
  }

  // Lives until the job is over.
  void live() {
    rest(job_.setting.draft_faults.joins_after_us);
    while (!job_.is_over) {
      if (live_once()) return;
      if (dice_.chance(500)) say(FrameKind::kGone);
      rest(dice_.below(job_.setting.draft_faults.longest_away_us));
      while (dice_.chance(900) && world_.poll(0)) {
      }
    }
  }

 private:
  void say(FrameKind kind) {
    post(0, encode_frame({.kind = kind, .epoch = epoch_, .payload = {}}));
  }
  void rest(int64_t us) {
    const auto end = JobClock::now() + std::chrono::microseconds(us);
    while (!job_.is_over && JobClock::now() < end)
      JobClock::sleep_until(std::min(end, JobClock::now() + std::chrono::milliseconds(5)));
  }
  // True when it has said goodbye.
  bool live_once() {
    ++job_.result.num_lives;
    const Setting& setting = job_.setting;
    ToyModel model(setting.draft, 0, 1, setting.draft_sizes());
    DraftWorker worker(model, worker_options(setting));
    if (job_.result.num_lives > 1) ++epoch_;
    say(FrameKind::kHello);
    bool has_left = true;
    try {
      run_draft_loop(*this, epoch_, false, worker);
    } catch (const Died&) {
      has_left = false;
    }
    if (const std::string wrong = worker.fault(); !wrong.empty())
      job_.witness.fault("the draft's books: " + wrong);
    if (!model.fault().empty()) job_.witness.fault("the draft: " + model.fault());
    return has_left;
  }

  Dice dice_;
  FaultyPipe pipe_;
  uint32_t epoch_ = kFirstDraftEpoch;  // of the life
};

Faults faults_of(const Job& job, int rank) {
  std::string text = job.clients.spoiling();
  if (job.setting.sabotage == Sabotage::kFlipDecision) text = "flip_decision:rank=1,round=9";
  return text.empty() ? Faults() : Faults::parse(text, rank, job.setting.num_targets);
}

void play_clients(Job& job, Coordinator& coordinator) {
  const auto pause = std::chrono::nanoseconds(job.setting.target.step_ns);
  while (job.clients.act(coordinator)) {
    job.limits.see_waits(coordinator);
    if (job.clients.is_idle()) job.limits.see_progress(job.clients.num_rows_needed());
    if (job.clients.wants_stop()) {
      job.clients.note_stopped();
      coordinator.request_stop(Coordinator::Stop::kNow);
    }
    JobClock::sleep_for(pause);
  }
  coordinator.request_stop(Coordinator::Stop::kWhenIdle);
}

void coordinate(Job& job, CoordinatorWorld& world, TargetRank& target) {
  const Setting& setting = job.setting;
  ServingMetrics metrics(
      "toy", setting.planner.max_model_len, setting.planner.num_speculative_tokens);
  Coordinator coordinator(coordinator_parts(setting, world, target, metrics));
  bool is_done = false;
  std::thread front([&, reserved = ClockSeat::reserve()] {
    const ClockSeat seat(reserved);
    play_clients(job, coordinator);
    is_done = true;
  });
  const bool is_orderly = run_coordinator_loop(coordinator, job.witness);
  while (!is_done) JobClock::sleep_for(std::chrono::milliseconds(1));
  front.join();
  job.is_over = true;
  job.result.num_waits = job.limits.num_waits();
  if (!is_orderly) world.abort("the simulated job has ended");
  check_books(metrics, job.witness);
  job.result.num_hits = static_cast<uint64_t>(metrics.speculation_cache_hits.value());
}

void run_target_rank(Job& job, ForwardingWorld& world) {
  const Setting& setting = job.setting;
  const auto group = world.make_target_group(setting.num_targets);
  ToyModel model(setting.target, world.rank(), setting.num_targets, setting.target_sizes());
  TargetRank target(model, *group, faults_of(job, world.rank()));
  if (auto* const first = dynamic_cast<CoordinatorWorld*>(&world)) {
    coordinate(job, *first, target);
  } else {
    run_target_loop(world, {.num_targets = setting.num_targets, .has_draft = true}, target);
  }
  job.limits.see_model(model);
}

void run_rank(Job& job, World& world) {
  if (world.rank() == 0) {
    CoordinatorWorld first(world, job);
    return run_target_rank(job, first);
  }
  if (world.rank() == job.setting.num_targets) return DraftWorld(world, job).live();
  if (world.rank() == 1) {
    SpyingWorld spying(world, job);
    return run_target_rank(job, spying);
  }
  ForwardingWorld other(world, job);
  run_target_rank(job, other);
}

}  // namespace

SimulationResult simulate_job(uint64_t seed, Sabotage sabotage) {
  set_log_level(LogLevel::kError);
  Setting setting = random_setting(seed, sabotage);
  if (seed % 10 == 0)
    setting.num_targets = kTreeFanOut + 3;  // some hear of others what rank 0 says
  VirtualClock clock;
  const auto begin = JobClock::now();
  Job job(setting);
  // Target links lose nothing, but take their time.
  Dice dice(mix_seed(seed, 3));
  const InProcessLink link{.latency = std::chrono::microseconds(dice.below(100))};
  try {
    run_in_process(
        setting.num_targets + 1, [&](World& world) { run_rank(job, world); }, link);
  } catch (const std::exception& error) {
    job.witness.fault(fmt::format("a rank ended by an error: {}", error.what()));
  }
  job.clients.check_end();
  job.result.seconds = std::chrono::duration<double>(JobClock::now() - begin).count();
  add_counts(job.witness, job.clients, &job.result);
  job.result.digest = mix_seed(job.result.digest, clock.history());
  return job.result;
}

}  // namespace outrider::test
