// See constants.h.
#include "scheduler/pacing/constants.h"

#include <fmt/format.h>

#include <array>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/settings/options.h"

namespace outrider {
namespace {

using Row = std::pair<const char*, double PacingConstants::*>;
constexpr auto kRows = std::to_array<Row>({
    {"average_weight", &PacingConstants::average_weight},
    {"outlier", &PacingConstants::outlier},
    {"sequence_memory_tokens", &PacingConstants::sequence_memory_tokens},
    {"shared_memory_tokens", &PacingConstants::shared_memory_tokens},
    {"sequence_prior_tokens", &PacingConstants::sequence_prior_tokens},
    {"position_prior_tokens", &PacingConstants::position_prior_tokens},
    {"prior_acceptance", &PacingConstants::prior_acceptance},
    {"retry_after_rounds", &PacingConstants::retry_after_rounds},
    {"least_survival", &PacingConstants::least_survival},
    {"step_memory", &PacingConstants::step_memory},
    {"step_fresh", &PacingConstants::step_fresh},
    {"unseen_discount", &PacingConstants::unseen_discount},
    {"faster_step_weight", &PacingConstants::faster_step_weight},
    {"slope_chance", &PacingConstants::slope_chance},
    {"rate_memory_rounds", &PacingConstants::rate_memory_rounds},
    {"rate_doubt", &PacingConstants::rate_doubt},
    {"warm_up_rounds", &PacingConstants::warm_up_rounds},
    {"rounds_before_trial", &PacingConstants::rounds_before_trial},
    {"least_trial_rounds", &PacingConstants::least_trial_rounds},
    {"most_trial_rounds", &PacingConstants::most_trial_rounds},
    {"first_trial_share", &PacingConstants::first_trial_share},
    {"trial_share", &PacingConstants::trial_share},
    {"rounds_between_trials", &PacingConstants::rounds_between_trials},
    {"earlier_trials_weight", &PacingConstants::earlier_trials_weight},
    {"fallen_rate", &PacingConstants::fallen_rate},
    {"many_sequences", &PacingConstants::many_sequences},
    {"gain_of_many", &PacingConstants::gain_of_many},
    {"certain_deviations", &PacingConstants::certain_deviations},
    {"blind_draft_len", &PacingConstants::blind_draft_len},
    {"blind_wait", &PacingConstants::blind_wait},
    {"best_guess_share", &PacingConstants::best_guess_share},
    {"least_outcome_chance", &PacingConstants::least_outcome_chance},
    {"optional_slowdown", &PacingConstants::optional_slowdown},
    {"prompt_rows_beside_branches", &PacingConstants::prompt_rows_beside_branches},
    {"tokens_sent_together", &PacingConstants::tokens_sent_together},
    {"likely_branch", &PacingConstants::likely_branch},
    {"overdue", &PacingConstants::overdue},
    {"shortest_look_us", &PacingConstants::shortest_look_us},
    {"wake_before_end_us", &PacingConstants::wake_before_end_us},
    {"deliver_before_wait_us", &PacingConstants::deliver_before_wait_us},
});

}  // namespace

void set_pacing_constant(std::string_view name, const std::string& value) {
  double parsed = 0;
  const Option number = number_option(std::string(name), &parsed, 1e-9, 1e9, "");
  number.set(value);
  std::vector<std::string> names;
  for (const auto& [known, field] : kRows) {
    if (name == known) {
      pacing.*field = parsed;
      return;
    }
    names.emplace_back(known);
  }
  throw Error(
      fmt::format("no pacing constant '{}'; the nearest is '{}'", name, nearest_name(name, names)));
}

}  // namespace outrider
