// See attached_draft.h.
#include "runtime/ranks/job/attached_draft.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "runtime/base/clock.h"
#include "runtime/base/error.h"
#include "runtime/base/log.h"
#include "runtime/comm/world/socket_world.h"
#include "runtime/ranks/checks.h"
#include "runtime/ranks/draft/loop.h"
#include "runtime/ranks/draft/restarts.h"
#include "runtime/ranks/draft/worker.h"
#include "runtime/ranks/loading/draft_pair.h"
#include "runtime/ranks/loading/grammar_loader.h"
#include "runtime/ranks/loading/model_loader.h"
#include "runtime/ranks/messages/draft_hello.h"
#include "runtime/ranks/messages/round_wire.h"

namespace outrider {
namespace {

using Clock = JobClock;

constexpr double kConnectS = 5;
constexpr double kWelcomeS = 5;
constexpr double kFirstPauseS = 0.1;
constexpr double kLongestPauseS = 5;
constexpr int kNumProbes = 5;

// Without a rank the draft is the only one on its host, as far as it knows.
constexpr RankLayout kLayout{.num_targets = 1, .has_draft = true};

// Microseconds of a step of one row, the fastest of a few: a first one is always slow.
uint64_t probe_step_us(Model& model) {
  int32_t block = 0;
  Batch batch;
  batch.block_tables.emplace_back(std::span(&block, 1));
  batch.tokens = {0};
  batch.positions = {0};
  batch.sequence_of_row = {0};
  batch.logit_rows = {0};
  int64_t best_us = INT64_MAX;
  for (int i = 0; i < kNumProbes; ++i) {
    const auto begin = Clock::now();
    model.forward(batch);
    best_us = std::min(best_us, static_cast<int64_t>(1e6 * seconds_since(begin)));
  }
  return static_cast<uint64_t>(std::max<int64_t>(best_us, 1));
}

class AttachedDraft {
 public:
  explicit AttachedDraft(const AttachedDraftOptions& options)
      : options_(options),
        config_(options.config),
        vocabulary_(vocabulary_digest(config_.speculative.model, Role::kDraft)),
        checks_(Checks::from_environment()),
        pauses_(kFirstPauseS, kLongestPauseS) {}

  int run() {
    while (!options_.is_over()) {
      begin_ = Clock::now();
      served_since_.reset();
      const std::string why = attach_and_serve();
      if (options_.is_over()) break;
      say_once(why);
      pause(pauses_.pause_s(served_since_ ? seconds_since(*served_since_) : 0));
    }
    log_info("the draft leaves");
    return 0;
  }

 private:
  // One connection; returns why it is over.
  std::string attach_and_serve() {
    std::unique_ptr<SocketWorld> world;
    DraftWelcome welcome;
    try {
      const int descriptor = connect_tcp(options_.job, kConnectS, options_.is_over);
      world = std::make_unique<SocketWorld>(
          descriptor,
          SocketWorld::Place{.peer = "the job at " + text_of(options_.job),
                             .is_over = options_.is_over});
      world->post(0, encode(hello()));
      welcome = decode_draft_welcome(receive(*world, 0, 1, kWelcomeS));
    } catch (const Error& error) {
      return error.what();
    }
    if (!welcome.refusal.empty())
      throw Error(fmt::format("{} refused this draft: {}", text_of(options_.job), welcome.refusal));
    load(welcome.terms);
    try {
      serve(*world, welcome.epoch);
      return "the job has ended";
    } catch (const Error& error) {
      return error.what();
    }
  }

  DraftHello hello() const {
    char host[256] = {};
    gethostname(host, sizeof(host) - 1);
    const std::string& model = config_.speculative.model;
    const std::string file = std::filesystem::path(model).filename().string();
    return {.key = config_.draft_key,
            .vocabulary = vocabulary_.text,
            .num_rows = vocabulary_.num_rows,
            .name = fmt::format("{} on {}", file.empty() ? model : file, host)};
  }

  // Once for all jobs with the same terms.
  void load(const DraftTerms& terms) {
    if (terms_ == terms) return;
    terms_.reset();
    loaded_.reset();
    config_.block_size = terms.block_size;
    config_.max_num_seqs = terms.max_num_seqs;
    config_.speculative.num_speculative_tokens = terms.longest_draft_len;
    config_.speculative.num_draft_candidates = terms.num_candidates;
    const EngineSizes sizes{.max_model_len = terms.max_model_len,
                            .max_rows = terms.max_rows,
                            .blocks_per_sequence = terms.blocks_per_sequence,
                            .num_blocks = terms.num_blocks};
    const ops::ThreadPlan threads = ops::plan_threads({.num_threads = config_.threads,
                                                       .cpu_bind = config_.cpu_bind,
                                                       .on_host = {0, 1},
                                                       .on_cpus = {0, 1}});
    loaded_.emplace(load_draft(config_, kLayout, {.sizes = sizes}, threads, {}));
    grammars_ = load_grammar_engine_of_draft(config_.speculative.model, terms.target_vocab_size);
    step_us_ = probe_step_us(*loaded_->model);
    log_info("the draft is loaded: {:.3f} ms a step", 1e-3 * static_cast<double>(step_us_));
    terms_ = terms;
  }

  void serve(SocketWorld& world, uint32_t epoch) {
    DraftWorker worker(*loaded_->model,
                       {.target_vocab_size = terms_->target_vocab_size,
                        .num_candidates = terms_->num_candidates,
                        .grammars = grammars_.get(),
                        .checks = checks_});
    world.post(
        0,
        encode_frame(
            {.kind = FrameKind::kHello, .epoch = epoch, .payload = encode_draft_speed(step_us_)}));
    pauses_.began(seconds_since(begin_));
    served_since_ = Clock::now();
    said_.clear();
    log_info("the draft serves the job at {}", text_of(options_.job));
    const bool takes_cpu = loaded_->context != nullptr;
    run_draft_loop(world, epoch, takes_cpu, worker);
  }

  void say_once(const std::string& why) {
    if (std::exchange(said_, why) != why) log_warning("{}; trying again", why);
  }

  void pause(double pause_s) const {
    const auto begin = Clock::now();
    while (!options_.is_over() && seconds_since(begin) < pause_s)
      JobClock::sleep_for(std::chrono::milliseconds(20));
  }

  const AttachedDraftOptions& options_;
  RunConfig config_;
  const VocabularyDigest vocabulary_;
  const Checks checks_;
  RestartTimes pauses_;
  std::optional<DraftTerms> terms_;  // that it is loaded for
  std::optional<LoadedModel> loaded_;
  std::shared_ptr<const GrammarEngine> grammars_;
  uint64_t step_us_ = 0;
  Clock::time_point begin_{};
  std::optional<Clock::time_point> served_since_;
  std::string said_;  // the last reason that was logged, since it served
};

}  // namespace

int run_attached_draft(const AttachedDraftOptions& options) { return AttachedDraft(options).run(); }

}  // namespace outrider
