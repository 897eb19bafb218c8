// The constants of pacing: how long drafts are, whether a round waits for them, and whether the
// draft works at all. docs/pacing.md says what each one is for and what a sweep in virtual time
// shows when it is halved or doubled (tools/sweep_pacing.py; `bench sim --pacing NAME=VALUE`).
#pragma once

#include <string>
#include <string_view>

namespace outrider {

struct PacingConstants {
  // Averages of times and counts, where nothing else is said: the weight of a new value.
  double average_weight = 0.1;
  // A time counts as so many usual ones at most; a wait is given up after so many expected ones.
  double outlier = 3;

  // Acceptance. Memories: how many of the last tokens count. Priors: as if so many tokens like
  // those of all sequences (of all positions) had been seen before the first.
  double sequence_memory_tokens = 40;
  double shared_memory_tokens = 200;
  double sequence_prior_tokens = 6;
  double position_prior_tokens = 20;
  double prior_acceptance = 0.6;
  // Rounds without evidence after which drafts are tried again; doubled by each try that fails, up
  // to step_memory.
  double retry_after_rounds = 128;
  // A draft token less likely to be accepted gets no row, whatever it costs.
  double least_survival = 0.02;

  // Step times. After so many steps a number of rows counts as never seen, and so does whatever
  // else was not looked at for as many rounds; for so many its own time is the best that is known.
  double step_memory = 2000;
  double step_fresh = 48;
  // What is not known counts as so much cheaper than its neighbours suggest, so that it is tried.
  double unseen_discount = 0.9;
  // Disturbances make steps longer, so a shorter one weighs more.
  double faster_step_weight = 0.3;
  // Slopes by positions count as far as they explain more than so many variances of one step.
  double slope_chance = 50;

  // Rounds with the draft at work and rounds with it idle, measured in turns.
  double rate_memory_rounds = 64;
  double rate_doubt = 0.5;  // relative error of a rate, times the rounds that it was made from
  double warm_up_rounds = 2;
  double rounds_before_trial = 8;
  double least_trial_rounds = 3;
  double most_trial_rounds = 16;
  double first_trial_share = 0.1;  // of the time, that the second trial may take
  double trial_share = 0.005;      // and later ones
  double rounds_between_trials = 32;
  double earlier_trials_weight = 0.5;  // of all together, by the new one's
  double fallen_rate = 0.7;            // of the rate at the last trial: another one is due
  // They must gain more, for their requests end one by one; and begin idle where that is not
  // expected.
  double many_sequences = 8;
  double gain_of_many = 1.05;
  double certain_deviations = 2;  // ends a trial early; half as many change what is in use

  // Before anything was measured.
  double blind_draft_len = 4;
  double blind_wait = 0.5;  // of a plain round

  // What an asynchronous draft prepares, and sends.
  double best_guess_share = 0.4;  // prior chance of the best guess, and of each one among the rest
  double least_outcome_chance = 1e-3;
  double optional_slowdown = 1.1;  // of a step that somebody waits for, by rows nobody waits for
  double prompt_rows_beside_branches = 64;
  double tokens_sent_together = 4;
  double likely_branch = 0.05;  // its tokens are sent as they come

  // Waits on rank 0.
  double overdue = 1.5;             // a wait this many times as long as expected is thought over
  double shortest_look_us = 50;     // between two such thoughts
  double wake_before_end_us = 150;  // of a device's step
  double deliver_before_wait_us = 300;  // a longer wait is used to hand results out first
};

// Set only before a job begins (benchmarks, tests); read by all threads.
inline PacingConstants pacing;

inline void update_average(double* average, double value) {
  *average = *average == 0 ? value : *average + pacing.average_weight * (value - *average);
}

// Throws Error for an unknown name, naming the nearest one, and for a value that is no number > 0.
void set_pacing_constant(std::string_view name, const std::string& value);

}  // namespace outrider
