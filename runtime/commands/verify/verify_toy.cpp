// See verify_toy.h.
#include "runtime/commands/verify/verify_toy.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "runtime/base/error.h"
#include "runtime/ranks/job/signals.h"
#include "scheduler/exactness/law_cases.h"

namespace outrider {
namespace {

constexpr int32_t kLeastControlSamples = 100000;
constexpr unsigned kMostThreads = 8;

struct Job {
  LawCase law_case;
  CheckKind kind = CheckKind::kLaw;
};

std::string words(std::string name) {
  std::replace(name.begin(), name.end(), '_', ' ');
  return name;
}

// Every kind of block, with bonus draft tokens. That each sampler judges bonus draft tokens as it
// judges draft tokens is left to the program's own tests but for one.
std::vector<LawCase> cases_of(VerifyMode mode) {
  std::vector<LawCase> cases = sampler_cases(mode);
  if (mode == VerifyMode::kCoupled) return cases;  // takes no notice of bonus draft tokens
  for (LawCase& law_case : bonus_draft_cases(mode)) {
    const bool same_blocks = law_case.block_size == BlockSize::kWhole &&
                             law_case.bonus_drafts == BonusDrafts::kSometimes;
    if (same_blocks && law_case.name != "proposed_all_filters") continue;
    cases.push_back(std::move(law_case));
  }
  return cases;
}

std::vector<Job> jobs_of(const ToyChecks& options) {
  std::vector<Job> jobs;
  const ChiSquareRule rule{kFalseAlarm, kLeastExpected};
  for (VerifyMode mode : {VerifyMode::kStandard, VerifyMode::kBlock, VerifyMode::kCoupled}) {
    for (LawCase& law_case : cases_of(mode)) {
      law_case.num_samples = options.num_samples;
      law_case.fault = options.broken_rule;
      // Sharded decisions are compared where the rule and the filters differ most.
      if (law_case.name == "plain" || law_case.name == "all_filters" ||
          law_case.name == "prepared_and_proposed" || law_case.name == "grammar") {
        law_case.shard_counts = {1, 2};
      }
      jobs.push_back({std::move(law_case), CheckKind::kLaw});
    }
  }
  for (LawCase& law_case : negative_controls()) {
    law_case.num_samples = std::max(options.num_samples, kLeastControlSamples);
    jobs.push_back({std::move(law_case), CheckKind::kControl});
  }
  for (Job& job : jobs) job.law_case.rule = rule;
  return jobs;
}

void refuse_too_few(const std::vector<Job>& jobs, int num_samples) {
  int least = 0;
  for (const Job& job : jobs) least = std::max(least, least_samples(job.law_case));
  if (num_samples < least)
    throw Error(fmt::format("verify needs at least {} samples, not {}", least, num_samples));
}

CheckRow run(const Job& job) {
  const LawCase& law_case = job.law_case;
  const LawResult result = sample_law(law_case);
  const char* part = job.kind == CheckKind::kControl ? "control" : "toy";
  CheckRow row = law_row(job.kind,
                         fmt::format("{}: {}", part, words(law_case.name)),
                         verify_mode_name(law_case.params.verify_mode),
                         result.test);
  row.num_sequences = law_case.num_samples;
  row.found_distance = smallest_found_distance(result.test, law_case.num_samples);
  if (law_case.draft != DraftKind::kNone) {
    const DraftCounts drafts = {result.num_examined + result.num_bonus_drafts,
                                result.num_accepted + result.num_accepted_bonus_drafts,
                                result.num_bonus_drafts};
    row.drafts = drafts;
    if (drafts.num_accepted == 0 || drafts.num_accepted == drafts.num_examined) {
      row.problem =
          "Not both accepted and refused draft tokens: one side of the rule was not tried.";
    }
  }
  if (result.num_unlike > 0) {
    row.problem =
        fmt::format("{} decisions came out otherwise on 2 shards than on 1.", result.num_unlike);
  }
  return row;
}

}  // namespace

std::vector<CheckRow> run_toy_checks(const ToyChecks& options, const Progress& progress) {
  const std::vector<Job> jobs = jobs_of(options);
  refuse_too_few(jobs, options.num_samples);
  std::vector<CheckRow> rows(jobs.size());
  std::atomic<size_t> next{0};
  std::atomic<size_t> num_done{0};
  std::atomic<bool> stopping{false};
  const auto work = [&] {
    while (!stopping) {
      const size_t index = next++;
      if (index >= jobs.size()) return;
      rows[index] = run(jobs[index]);
      ++num_done;
    }
  };
  std::vector<std::thread> threads;
  const unsigned num_threads = std::clamp(std::thread::hardware_concurrency(), 1u, kMostThreads);
  threads.reserve(num_threads);
  for (unsigned i = 0; i < num_threads; ++i) threads.emplace_back(work);
  size_t told = 0;
  while (num_done < jobs.size() && !stopping) {
    if (wait_stop_signal(std::chrono::milliseconds(50))) stopping = true;
    if (num_done / 10 == told / 10) continue;
    told = num_done;
    progress(fmt::format("toy models: {} of {} laws", told, jobs.size()));
  }
  for (std::thread& thread : threads) thread.join();
  if (stopping) throw Error("stopped by a signal");
  return rows;
}

}  // namespace outrider
