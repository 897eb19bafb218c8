// See comm_cases.h.
#include "runtime/commands/bench/comm/comm_cases.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/numbers/fold_tree.h"
#include "runtime/base/numbers/mix.h"
#include "runtime/ranks/messages/round_wire.h"
#include "runtime/ranks/target/agreement.h"

namespace outrider {
namespace {

constexpr uint32_t kEpoch = 1;

// Any number, the same on every rank.
uint64_t noise(uint64_t turn, uint64_t member, uint64_t place) {
  return mix64(turn * 0x9e3779b97f4a7c15u + member * 0xbf58476d1ce4e5b9u + place + 1);
}

template <typename T>
T value_of(uint64_t turn, int member, size_t place) {
  const uint64_t bits = noise(turn, static_cast<uint64_t>(member), place);
  if constexpr (std::is_same_v<T, float>) {
    // In [-1, 1) with 24 bits, so that sums round and their order shows.
    return static_cast<float>(static_cast<int32_t>(bits >> 40) - (1 << 23)) * 0x1p-23f;
  } else {
    return static_cast<T>(bits);
  }
}

template <typename T>
void fill(std::span<T> values, uint64_t turn, int member) {
  for (size_t i = 0; i < values.size(); ++i) values[i] = value_of<T>(turn, member, i);
}

template <typename T>
uint64_t num_different(std::span<const T> left, std::span<const T> right) {
  const size_t common = std::min(left.size(), right.size());
  uint64_t count = std::max(left.size(), right.size()) - common;
  for (size_t i = 0; i < common; ++i)
    count += std::memcmp(&left[i], &right[i], sizeof(T)) != 0 ? 1 : 0;
  return count;
}

enum class Redop { kSum, kMax };

// What the members' values of this turn come to, in the first count elements.
template <typename T>
std::vector<T> expected_reduction(
    uint64_t turn, int num_members, size_t count, Redop redop, Fold fold) {
  std::vector<T> slots(count * static_cast<size_t>(num_members));
  for (int r = 0; r < num_members; ++r)
    fill(std::span<T>(slots).subspan(count * static_cast<size_t>(r), count), turn, r);
  if constexpr (std::is_same_v<T, float>) {
    if (fold == Fold::kTree) {
      fold_in_tree(slots.data(), static_cast<size_t>(num_members), count);
      return slots;
    }
  }
  for (size_t at = count; at < slots.size(); ++at) {
    T& to = slots[at % count];
    to = redop == Redop::kSum ? to + slots[at] : std::max(to, slots[at]);
  }
  return slots;
}

// made has its message, its place on the axis and its count.
template <typename T>
CommCase reduction(TargetGroup& group, CommCase made, Redop redop, Fold fold = Fold::kRankOrder) {
  const auto values = std::make_shared<std::vector<T>>(made.count);
  made.num_bytes = made.count * sizeof(T);
  made.type = std::is_same_v<T, float> ? "float" : "uint64";
  made.redop = redop == Redop::kSum ? "sum" : "max";
  made.bus_factor = 2.0 * (group.size() - 1) / group.size();
  made.run = [=, &group] {
    const std::span<T> all(*values);
    if constexpr (std::is_same_v<T, float>) {
      group.all_reduce_sum(all, fold);
    } else if (redop == Redop::kSum) {
      group.all_reduce_sum(all);
    } else {
      group.all_reduce_max(all);
    }
  };
  made.num_wrong = [=, &group, run = made.run](uint64_t turn) {
    fill(std::span<T>(*values), turn, group.rank());
    run();
    const std::vector<T> expected =
        expected_reduction<T>(turn, group.size(), values->size(), redop, fold);
    return num_different<T>(*values, std::span<const T>(expected).first(values->size()));
  };
  return made;
}

CommCase gather(TargetGroup& group,
                const std::string& message,
                int32_t num_seqs,
                size_t num_bytes_of_rank) {
  struct State {
    std::vector<std::byte> mine;
    std::vector<std::byte> all;
  };
  const auto members = static_cast<size_t>(group.size());
  const auto state = std::make_shared<State>();
  state->mine.resize(num_bytes_of_rank);
  state->all.resize(num_bytes_of_rank * members);
  const auto num_wrong = [&group, state, members](uint64_t turn) {
    fill(std::span<std::byte>(state->mine), turn, group.rank());
    group.all_gather(state->mine, state->all);
    uint64_t count = 0;
    std::vector<std::byte> expected(state->mine.size());
    for (size_t r = 0; r < members; ++r) {
      fill(std::span<std::byte>(expected), turn, static_cast<int>(r));
      count += num_different<std::byte>(
          expected,
          std::span<const std::byte>(state->all).subspan(r * expected.size(), expected.size()));
    }
    return count;
  };
  return {.message = message,
          .x_name = "sequences",
          .x = num_seqs,
          .num_bytes = state->all.size(),
          .count = state->all.size(),
          .type = "uint8",
          .redop = "none",
          .bus_factor = static_cast<double>(members - 1) / static_cast<double>(members),
          .run = [&group, state] { group.all_gather(state->mine, state->all); },
          .num_wrong = num_wrong};
}

// ---- messages as the round makes them, with contents that depend on the turn

std::vector<DraftToken> draft_tokens(const CommSizes& sizes, uint64_t turn, uint64_t sequence) {
  const auto vocab_size = static_cast<uint64_t>(sizes.vocab_size);
  std::vector<DraftToken> tokens(static_cast<size_t>(sizes.draft_len));
  uint64_t place = 0;
  for (DraftToken& token : tokens) {
    for (int32_t i = 0; i < sizes.num_candidates; ++i) {
      const uint64_t bits = noise(turn, sequence, place++);
      token.candidates.push_back({.token = static_cast<int32_t>(bits % vocab_size),
                                  .draft_prob = static_cast<float>(bits >> 40) * 0x1p-24f});
    }
    token.token = static_cast<int32_t>(noise(turn, sequence, place++) % vocab_size);
  }
  return tokens;
}

// A round in which every sequence verifies a block, as most rounds are.
Bytes plan_of(const CommSizes& sizes, int32_t num_seqs, uint64_t turn) {
  RoundPlan plan;
  plan.round = turn;
  for (int32_t i = 0; i < num_seqs; ++i) {
    SequencePlan sequence;
    sequence.sequence_id = static_cast<uint64_t>(i);
    sequence.round = static_cast<uint32_t>(turn);
    sequence.first_position = i;
    sequence.draft = draft_tokens(sizes, turn, sequence.sequence_id);
    plan.sequences.push_back(std::move(sequence));
  }
  // Both parts as one message.
  Bytes bytes = encode(plan);
  const Bytes candidates = encode_candidates(plan);
  bytes.insert(bytes.end(), candidates.begin(), candidates.end());
  return bytes;
}

// After a round in which every draft was accepted.
Bytes draft_request_of(const CommSizes& sizes, int32_t num_seqs, uint64_t turn) {
  DraftRequest request;
  request.serial = turn;
  for (int32_t i = 0; i < num_seqs; ++i) {
    DraftCommit commit;
    commit.sequence_id = static_cast<uint64_t>(i);
    commit.round = static_cast<uint32_t>(turn);
    for (const DraftToken& token : draft_tokens(sizes, turn, commit.sequence_id))
      commit.tokens.push_back(token.token);
    commit.tokens.push_back(0);
    commit.draft_len = sizes.draft_len;
    request.commits.push_back(std::move(commit));
  }
  return encode_frame({FrameKind::kRequest, kEpoch, encode(request)});
}

Bytes draft_reply_of(const CommSizes& sizes, int32_t num_seqs, uint64_t turn) {
  DraftReply reply;
  reply.serial = turn;
  for (int32_t i = 0; i < num_seqs; ++i) {
    const auto id = static_cast<uint64_t>(i);
    reply.blocks.push_back({.sequence_id = id,
                            .round = static_cast<uint32_t>(turn),
                            .base_len = i,
                            .tokens = draft_tokens(sizes, turn, id)});
  }
  return encode_frame({FrameKind::kReply, kEpoch, encode(reply)});
}

CommCase message_case(const char* message, int32_t num_seqs, size_t num_bytes) {
  return {.message = message,
          .x_name = "sequences",
          .x = num_seqs,
          .num_bytes = num_bytes,
          .count = num_bytes,
          .type = "uint8",
          .redop = "none"};
}

// As in a round: along the tree of target/agreement.h.
CommCase plan_and_digests(World& world, const CommSizes& sizes, int32_t num_seqs) {
  struct State {
    uint64_t turn = 0;
    Bytes plan;
    Bytes received;
    uint64_t num_disagreements = 0;
  };
  const auto state = std::make_shared<State>();
  state->plan = plan_of(sizes, num_seqs, 0);
  const RankLayout layout{.num_targets = world.size()};
  CommCase made =
      message_case("plan, digests back", num_seqs, state->plan.size() + sizeof(DigestReport));
  made.run = [&world, state, layout] {
    const int rank = world.rank();
    state->received =
        rank == 0 ? state->plan : receive(world, tree_parent(rank), layout.num_targets);
    post_down(world, layout, state->received);
    const uint64_t digest = noise(state->turn, 0, 0);
    if (rank > 0) return report_digest(world, layout, state->turn, digest);
    try {
      check_agreement(world, layout, state->turn, digest);
    } catch (const Error&) {
      ++state->num_disagreements;
    }
  };
  made.num_wrong = [state, sizes, num_seqs, run = made.run](uint64_t turn) {
    state->turn = turn;
    state->plan = plan_of(sizes, num_seqs, turn);
    run();
    return num_different<std::byte>(state->received, state->plan) +
           std::exchange(state->num_disagreements, 0);
  };
  return made;
}

// Between rank 0 and the last one, which plays the draft.
CommCase draft_round_trip(World& world, const CommSizes& sizes, int32_t num_seqs) {
  // Both are made before the time counts; what came in stays to be looked at.
  struct State {
    Bytes request;
    Bytes reply;
    Bytes received;
  };
  const auto state = std::make_shared<State>();
  const auto prepare = [state, sizes, num_seqs](uint64_t turn) {
    state->request = draft_request_of(sizes, num_seqs, turn);
    state->reply = draft_reply_of(sizes, num_seqs, turn);
  };
  prepare(0);
  CommCase made =
      message_case("draft request, reply", num_seqs, state->request.size() + state->reply.size());
  made.run = [&world, state] {
    const int last = world.size() - 1;
    if (world.rank() == 0) {
      world.post(last, state->request);
      state->received = receive(world, last, world.size());
    } else if (world.rank() == last) {
      state->received = receive(world, 0, world.size());
      world.post(0, state->reply);
    }
  };
  made.num_wrong = [&world, state, prepare, run = made.run](uint64_t turn) -> uint64_t {
    prepare(turn);
    run();
    if (world.rank() == 0) return num_different<std::byte>(state->received, state->reply);
    if (world.rank() != world.size() - 1) return 0;
    return num_different<std::byte>(state->received, state->request);
  };
  return made;
}

// Words of scheduler/verification/verify: per row a maximum; per draft token its mass and value, or
// the mass and all candidates, two to a word; per sequence the correction's maximum; per row
// top-p's table.
void add_sampling(TargetGroup& group,
                  const CommSizes& sizes,
                  int32_t seqs,
                  std::vector<CommCase>* to) {
  const auto num_drafted = static_cast<size_t>(seqs) * static_cast<size_t>(sizes.draft_len);
  const size_t num_rows = num_drafted + static_cast<size_t>(seqs);
  const auto block_words = 1 + (static_cast<size_t>(sizes.num_candidates) + 1) / 2;
  const auto words = [&](const char* message, size_t count, Redop redop) {
    to->push_back(reduction<uint64_t>(
        group, {.message = message, .x_name = "sequences", .x = seqs, .count = count}, redop));
  };
  words("sampling: row maxima", num_rows, Redop::kMax);
  words("sampling: masses, standard", 2 * num_drafted, Redop::kSum);
  words("sampling: masses, block", block_words * num_drafted, Redop::kSum);
  words("sampling: corrections", static_cast<size_t>(seqs), Redop::kMax);
  constexpr size_t kTopPBytes = 268;
  to->push_back(gather(group, "sampling: top-p", seqs, kTopPBytes * num_rows));
}

}  // namespace

std::vector<CommCase> comm_cases(World& world, TargetGroup& group, const CommSizes& sizes) {
  OUTRIDER_CHECK(world.size() >= 2 && group.size() == world.size());
  OUTRIDER_CHECK(sizes.draft_len >= 1 && sizes.vocab_size >= 1);
  std::vector<CommCase> cases;
  for (const int32_t rows : sizes.rows) {
    const size_t count = static_cast<size_t>(rows) * static_cast<size_t>(sizes.hidden_dim);
    cases.push_back(
        reduction<float>(group,
                         {.message = "partial sums", .x_name = "rows", .x = rows, .count = count},
                         Redop::kSum,
                         sizes.fold));
  }
  for (const int32_t seqs : sizes.num_seqs) {
    cases.push_back(plan_and_digests(world, sizes, seqs));
    cases.push_back(draft_round_trip(world, sizes, seqs));
  }
  for (const int32_t seqs : sizes.num_seqs) add_sampling(group, sizes, seqs, &cases);
  return cases;
}

}  // namespace outrider
