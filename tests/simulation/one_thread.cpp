// A whole job on one thread; see simulation.h. The other target ranks compute when the coordinator
// asks for their digests, the draft lives on whenever the coordinator looks at its link.
#include <fmt/format.h>

#include <deque>

#include "runtime/base/log.h"
#include "runtime/base/virtual_clock.h"
#include "runtime/ranks/coordinator/coordinator.h"
#include "runtime/ranks/messages/round_wire.h"
#include "runtime/ranks/target/agreement.h"
#include "tests/simulation/clients.h"
#include "tests/simulation/draft_life.h"
#include "tests/simulation/job_parts.h"
#include "tests/simulation/simulation.h"

namespace outrider::test {
namespace {

Faults faults_of(const Setting& setting, const Clients& clients, int rank) {
  std::string text = clients.spoiling();
  if (setting.sabotage == Sabotage::kFlipDecision && rank == 1)
    text = "flip_decision:rank=0,round=9";
  return text.empty() ? Faults() : Faults::parse(text, 0, 1);
}

// A target rank other than 0, with the whole vocabulary instead of a shard.
class Replica {
 public:
  Replica(const Setting& setting, const Clients& clients, int rank)
      : setting_(setting),
        group_(make_solo_group()),
        model_(options_of(setting), 0, 1, setting.target_sizes()),
        target_(model_, *group_, faults_of(setting, clients, rank)),
        rank_(rank) {}

  std::deque<Bytes>& inbox() { return inbox_; }
  const ToyModel& model() const { return model_; }
  // The round that it was last told of, as run_target_loop does it.
  void execute() {
    RoundPlan next = decode_round_plan(take());
    round_ = next.round;
    decision_ = {};
    if (next.num_probe_rows > 0) return target_.probe(next.num_probe_rows);
    if (setting_.sabotage == Sabotage::kForeignBlock) take_foreign_block(next);
    target_.begin(std::move(next));
    if (target_.plan().candidates_follow) target_.add_candidates(take());
    target_.prepare();
    if (target_.awaits_bonus_drafts()) target_.add_late_tokens(decode_late_draft_tokens(take()));
    decision_ = target_.finish();
  }
  const RoundPlan& plan() const { return target_.plan(); }
  const RoundDecision& decision() const { return decision_; }
  Bytes report() const {
    WireWriter out;
    out.put(std::vector<DigestReport>{{rank_, round_, digest(round_, decision_)}});
    return out.take();
  }

 private:
  static ToyModel::Options options_of(const Setting& setting) {
    ToyModel::Options options = setting.target;
    options.step_ns = options.row_ns = options.jitter_ns = 0;  // rank 0's is time enough
    return options;
  }
  Bytes take() {
    OUTRIDER_CHECK(!inbox_.empty());
    Bytes message = std::move(inbox_.front());
    inbox_.pop_front();
    return message;
  }
  void take_foreign_block(RoundPlan& plan) const {
    if (plan.round % 16 != 15 || plan.sequences.size() < 2) return;
    auto& blocks = plan.sequences[0].new_blocks;
    if (!blocks.empty()) blocks.back() = (blocks.back() + 1) % setting_.planner.num_blocks;
  }

  const Setting& setting_;
  const std::unique_ptr<TargetGroup> group_;
  ToyModel model_;
  TargetRank target_;
  const int rank_;
  std::deque<Bytes> inbox_;
  uint64_t round_ = 0;
  RoundDecision decision_;
};

// Rank 0's world: the others live in it.
class OneThreadWorld final : public World {
 public:
  OneThreadWorld(const Setting& setting, Witness& witness, Clients& clients)
      : setting_(setting),
        witness_(witness),
        clients_(clients),
        limits_(setting, witness),
        draft_(setting, witness) {
    for (int rank = 1; rank < setting.num_targets; ++rank)
      replicas_.push_back(std::make_unique<Replica>(setting, clients, rank));
  }
  void set_coordinator(Coordinator& coordinator) { coordinator_ = &coordinator; }

  int rank() const override { return 0; }
  int size() const override { return setting_.num_targets + 1; }
  std::string host() const override { return "simulation"; }
  int num_ranks_here(int num_ranks) const override { return num_ranks; }

  void post(int to, Bytes message) override {
    if (to != setting_.num_targets)
      return replicas_[index_of(to)]->inbox().push_back(std::move(message));
    limits_.see_unsent(draft_.inbox().num_bytes());
    Frame frame;
    const bool is_last = decode_frame(message, &frame) && frame.kind == FrameKind::kShutdown;
    if (is_last) return draft_.inbox().send_whole(std::move(message), JobClock::now_ns());
    draft_.inbox().send(std::move(message), JobClock::now_ns());
  }

  std::optional<Bytes> poll(int from) override {
    if (from != setting_.num_targets) return digest_of(*replicas_[index_of(from)], from == 1);
    limits_.see_time();
    const int64_t now_ns = JobClock::now_ns();
    draft_.live_until(now_ns);
    auto bytes = draft_.outbox().receive(now_ns);
    Frame frame;
    if (!bytes || !life_.takes(*bytes, &frame)) return bytes;
    try {
      const PackedReply reply = decode_draft_reply(frame.payload);
      witness_.note_offered(reply);
      if (setting_.sabotage == Sabotage::kLateBlock) return as_if_in_time(reply, frame.epoch);
    } catch (const Error&) {
    }
    return bytes;
  }

  void pause_watching(Backoff& backoff, int) override {
    backoff.pause();
    if (setting_.sabotage == Sabotage::kSlowLook)
      JobClock::sleep_for(std::chrono::milliseconds(80));
  }
  size_t num_unsent_bytes(int) override { return draft_.inbox().num_bytes(); }
  [[noreturn]] void abort(const std::string& reason) override { throw Error(reason); }
  // Rank 0 asks when it has nothing to do.
  void check_alive(int) override {
    limits_.see_time();
    if (!coordinator_) return;
    limits_.see_progress(clients_.num_rows_needed());
    stop_when_done(clients_.act_idle(*coordinator_));
  }
  std::unique_ptr<TargetGroup> make_target_group(int) override { return make_solo_group(); }
  void end_unresponsive(int) override {}
  void finish(int) override {}

  void check_end() {
    for (const auto& replica : replicas_) limits_.see_model(replica->model());
  }
  void add_to(SimulationResult* result) {
    result->num_link_faults = draft_.inbox().num_faults() + draft_.outbox().num_faults();
    result->num_lies = draft_.num_lies();
    result->num_lives = draft_.num_lives();
    result->num_waits = limits_.num_waits();
  }

 private:
  static size_t index_of(int rank) { return static_cast<size_t>(rank - 1); }

  std::optional<Bytes> digest_of(Replica& replica, bool is_witnessed) {
    replica.execute();
    if (is_witnessed && !replica.decision().sequences.empty()) {
      witness_.see_plan(replica.plan(), true);
      witness_.see_decision(replica.plan(), replica.decision());
      limits_.see_model(replica.model());
      limits_.see_progress(clients_.num_rows_needed());
      limits_.see_waits(*coordinator_);
      stop_when_done(clients_.act(*coordinator_));
    }
    return replica.report();
  }
  void stop_when_done(bool goes_on) {
    if (clients_.wants_stop()) {
      clients_.note_stopped();
      coordinator_->request_stop(Coordinator::Stop::kNow);
    }
    if (is_stopped_ || goes_on) return;
    is_stopped_ = true;
    coordinator_->request_stop(Coordinator::Stop::kWhenIdle);
  }

  // Each block for the round that its sequence samples next, whichever it was made for.
  Bytes as_if_in_time(const PackedReply& reply, uint32_t epoch) {
    DraftReply changed = unpacked(reply);
    for (DraftBlock& block : changed.blocks) {
      const auto place = witness_.place_of(block.sequence_id);
      if (place && block.round + 1 == place->round)
        block = {block.sequence_id, place->round, place->num_tokens, std::move(block.tokens)};
    }
    return encode_frame({.kind = FrameKind::kReply, .epoch = epoch, .payload = encode(changed)});
  }

  const Setting& setting_;
  Witness& witness_;
  Clients& clients_;
  RoundLimits limits_;
  DraftLife draft_;
  KnownLife life_;
  std::vector<std::unique_ptr<Replica>> replicas_;
  Coordinator* coordinator_ = nullptr;
  bool is_stopped_ = false;
};

}  // namespace

SimulationResult simulate_rounds(uint64_t seed, Sabotage sabotage) {
  set_log_level(LogLevel::kError);
  const Setting setting = random_setting(seed, sabotage);
  VirtualClock clock;
  const ClockSeat seat(ClockSeat::reserve());
  const auto begin = JobClock::now();
  Witness witness(setting);
  Clients clients(setting, witness, true);
  SimulationResult result;
  {
    OneThreadWorld world(setting, witness, clients);
    const auto group = make_solo_group();
    ToyModel model(setting.target, 0, 1, setting.target_sizes());
    TargetRank target(model, *group, faults_of(setting, clients, 0));
    ServingMetrics metrics(
        "toy", setting.planner.max_model_len, setting.planner.num_speculative_tokens);
    Coordinator coordinator(coordinator_parts(setting, world, target, metrics));
    world.set_coordinator(coordinator);
    run_coordinator_loop(coordinator, witness);
    clients.act(coordinator);
    clients.check_end();
    world.check_end();
    check_books(metrics, witness);
    result.num_hits = static_cast<uint64_t>(metrics.speculation_cache_hits.value());
    if (!model.fault().empty()) witness.fault("rank 0: " + model.fault());
    world.add_to(&result);
  }
  result.seconds = std::chrono::duration<double>(JobClock::now() - begin).count();
  add_counts(witness, clients, &result);
  return result;
}

}  // namespace outrider::test
