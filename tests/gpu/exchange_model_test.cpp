// The exchange's protocol on a machine that promises less than a GPU, in every order. What a rank
// stores lies in a bag, from which words reach memory in any order and as late as may be; only the
// order of stores to one word is kept. A fence waits until the bag is empty; the end of a launch
// does not. A rank's own loads see what it has stored; each word has one reader. Nothing passes a
// wait: what follows one depends on it. All states of a few small cases are visited; one fence
// less, and some of them end wrong.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "runtime/ops/cuda/exchange/exchange_protocol.h"

namespace outrider::gpu {
namespace {

struct Case {
  int32_t num_ranks = 2;
  uint32_t num_vectors = 1;
  std::vector<bool> two_shots;  // by round
  uint32_t num_words = 1;       // of a vector that arrive by themselves: 1 or 2
  bool has_fences = true;
  bool clears = true;
};

// A word: which rank's memory, and where in it.
using Place = std::pair<int32_t, uint32_t>;
struct Pending {
  Place place;
  uint32_t value = 0;
};

struct Rank {
  uint32_t round = 0;
  // Of the round: loads that ended with these values, stores and fences that are done.
  std::vector<Vector4> seen;
  uint32_t num_stores = 0;
  uint32_t num_fences = 0;
  std::vector<Pending> bag;
};

struct State {
  std::vector<Rank> ranks;
  std::vector<std::vector<uint32_t>> memory;  // by rank
};

// Thrown where the running rank has to stand still.
struct Halt {};

// A rank that goes on by as much as one load; all before it in the round is known.
class Turn {
 public:
  Turn(const Case& of, const std::set<Place>& shared, State& state, int32_t rank)
      : case_(of), shared_(shared), state_(state), rank_(rank) {
    running = this;
  }
  ~Turn() { running = nullptr; }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

  static inline Turn* running = nullptr;
  static inline std::vector<Vector4> addresses[kMaxPeers];  // never looked at
  bool has_moved = false;
  std::set<std::pair<Place, int32_t>> writers;  // of what is stored

  Vector4 load(const Vector4* from) {
    if (num_loads_ < mine().seen.size()) return mine().seen[num_loads_++];
    if (has_loaded_) throw Halt{};
    const Place first = place_of(from);
    const uint32_t low = look({first.first, first.second});
    const uint32_t high = case_.num_words == 1 ? low : look({first.first, first.second + 1});
    // Looks in vain change nothing.
    if (low == kEmptyWord || high == kEmptyWord) throw Halt{};
    has_loaded_ = has_moved = true;
    ++num_loads_;
    mine().seen.push_back({low, low, high, high});
    return mine().seen.back();
  }

  void store(Vector4* to, const Vector4& v) {
    if (num_stores_++ < mine().num_stores) return;
    mine().num_stores = num_stores_;
    has_moved = true;
    const Place first = place_of(to);
    for (uint32_t i = 0; i < case_.num_words; ++i) {
      const Place place = {first.first, first.second + i};
      const uint32_t value = i == 0 ? v.x : v.z;
      writers.insert({place, rank_});
      // What nobody else stores to may be there at once.
      if (shared_.contains(place)) {
        mine().bag.push_back({place, value});
      } else {
        state_.memory[static_cast<size_t>(place.first)][place.second] = value;
      }
    }
  }

  void fence() {
    if (!case_.has_fences || num_fences_++ < mine().num_fences) return;
    if (!mine().bag.empty()) throw Halt{};
    mine().num_fences = num_fences_;
    has_moved = true;
  }

 private:
  Rank& mine() { return state_.ranks[static_cast<size_t>(rank_)]; }
  Place place_of(const Vector4* address) const {
    for (int32_t r = 0;; ++r) {
      const std::vector<Vector4>& of_rank = addresses[r];
      if (address < of_rank.data() || address >= of_rank.data() + of_rank.size()) continue;
      return {r, static_cast<uint32_t>(address - of_rank.data()) * case_.num_words};
    }
  }
  uint32_t look(const Place& place) {
    const auto& bag = mine().bag;
    const auto own = std::find_if(
        bag.rbegin(), bag.rend(), [&](const Pending& pending) { return pending.place == place; });
    if (own != bag.rend()) return own->value;
    return state_.memory[static_cast<size_t>(place.first)][place.second];
  }

  const Case& case_;
  const std::set<Place>& shared_;
  State& state_;
  const int32_t rank_;
  size_t num_loads_ = 0;
  uint32_t num_stores_ = 0;
  uint32_t num_fences_ = 0;
  bool has_loaded_ = false;
};

struct ModelMemory {
  Vector4 load(const Vector4* from) const { return Turn::running->load(from); }
  void store(Vector4* to, const Vector4& v) const { Turn::running->store(to, v); }
  uint32_t load(const uint32_t* from) const { return *from; }  // the rank's own
  void store(uint32_t* to, uint32_t value) const { *to = value; }
  void fence() const { Turn::running->fence(); }
  uint64_t now_ns() const { return 0; }
  void pause() const {}
  void prefetch(const void*) const {}
};

class Model {
 public:
  explicit Model(Case of) : case_(std::move(of)) {
    slot_vectors_ = case_.num_vectors;
    const size_t num_vectors = exchange_memory_vectors(case_.num_ranks, slot_vectors_);
    start_.ranks.resize(static_cast<size_t>(case_.num_ranks));
    start_.memory.assign(static_cast<size_t>(case_.num_ranks),
                         std::vector<uint32_t>(num_vectors * case_.num_words, kEmptyWord));
    for (auto& addresses : Turn::addresses) addresses.clear();
    for (size_t r = 0; r < start_.ranks.size(); ++r) Turn::addresses[r].resize(num_vectors);
    find_shared_places();
  }

  // What can go wrong, in one order; nothing when all orders end right.
  std::optional<std::string> failure() {
    std::vector<State> open = {start_};
    std::unordered_set<uint64_t> visited = {name_of(start_)};
    while (!open.empty() && !failure_) {
      const State state = std::move(open.back());
      open.pop_back();
      bool can_go_on = false;
      for (State& next : successors(state)) {
        can_go_on = true;
        if (visited.insert(name_of(next)).second) open.push_back(std::move(next));
      }
      if (!can_go_on && !has_ended(state)) failure_ = "ranks wait for ever";
    }
    num_states_ = visited.size();
    return failure_;
  }
  size_t num_states() const { return num_states_; }

 private:
  // Rank r's turn. False: it has to stand still.
  bool advance(State& state, int32_t r) {
    Rank& rank = state.ranks[static_cast<size_t>(r)];
    if (rank.round == case_.two_shots.size()) return false;
    Turn turn(case_, shared_, state, r);
    try {
      run_round(r, rank.round);
      ++rank.round;
      rank.seen.clear();
      rank.num_stores = rank.num_fences = 0;
      turn.has_moved = true;
    } catch (const Halt&) {
    }
    writers_.insert(turn.writers.begin(), turn.writers.end());
    return turn.has_moved;
  }

  void run_round(int32_t r, uint32_t number) {
    ExchangeState own;
    own.blocks[0] = {number % kNumExchangeBuffers, number == 0 ? 0 : case_.num_vectors};
    ExchangeReport report;
    ExchangeView view = {.rank = r,
                         .size = case_.num_ranks,
                         .slot_vectors = slot_vectors_,
                         .state = &own,
                         .report = &report};
    for (int32_t peer = 0; peer < case_.num_ranks; ++peer) {
      view.memory[peer] = Turn::addresses[peer].data();
    }
    const ExchangeKind kind = {.two_shot_vectors =
                                   case_.two_shots[number] ? 0 : ExchangeKind::kNever};
    const ExchangeRow row = {0, case_.num_vectors};
    const auto load = [&](uint32_t v) { return part(r, number, v); };
    const auto keep = [&](uint32_t v, const Vector4& sum) {
      Vector4 expected = part(0, number, v);
      for (int32_t peer = 1; peer < case_.num_ranks; ++peer) {
        expected = sum_of(expected, part(peer, number, v));
      }
      if (sum.x != expected.x || (case_.num_words == 2 && sum.z != expected.z)) {
        failure_ = "a wrong sum in round " + std::to_string(number);
      }
    };
    ExchangeRound<ModelMemory> round(view, kind, {}, case_.num_vectors);
    round.send(row, load);
    if (case_.clears) round.clear();
    round.fold_share(row, load);
    round.collect(row, load, keep);
    round.end();
    EXPECT_EQ(own.blocks[0].buffer, (number + 1) % kNumExchangeBuffers);
    EXPECT_EQ(own.blocks[0].last_vectors, case_.num_vectors);
  }

  static Vector4 part(int32_t r, uint32_t round, uint32_t v) {
    const auto word = [&](uint32_t half) {
      return bits_of(
          static_cast<float>(1 + 2 * (v + 4 * (static_cast<uint32_t>(r) + 8 * round)) + half));
    };
    return {word(0), word(0), word(1), word(1)};
  }

  std::vector<State> successors(const State& state) {
    std::vector<State> found;
    for (int32_t r = 0; r < case_.num_ranks; ++r) {
      State next = state;
      if (advance(next, r)) found.push_back(std::move(next));
    }
    for (size_t r = 0; r < state.ranks.size(); ++r) {
      const std::vector<Pending>& bag = state.ranks[r].bag;
      std::set<Place> passed;
      for (size_t i = 0; i < bag.size(); ++i) {
        if (!passed.insert(bag[i].place).second) continue;  // behind another of that word
        State next = state;
        const auto [home, at] = bag[i].place;
        next.memory[static_cast<size_t>(home)][at] = bag[i].value;
        next.ranks[r].bag.erase(next.ranks[r].bag.begin() + static_cast<ptrdiff_t>(i));
        found.push_back(std::move(next));
      }
    }
    return found;
  }

  // Words that several ranks store to, found in one order: which ones are stored to does not depend
  // on it.
  void find_shared_places() {
    State state = start_;
    for (bool moves = true; moves;) {
      moves = false;
      for (int32_t r = 0; r < case_.num_ranks; ++r) moves = advance(state, r) || moves;
    }
    std::map<Place, std::set<int32_t>> by_place;
    for (const auto& [place, writer] : writers_) by_place[place].insert(writer);
    for (const auto& [place, writers] : by_place) {
      if (writers.size() > 1 || *writers.begin() != place.first) shared_.insert(place);
    }
    failure_.reset();
  }

  bool has_ended(const State& state) const {
    return std::ranges::all_of(state.ranks, [&](const Rank& rank) {
      return rank.round == case_.two_shots.size() && rank.bag.empty();
    });
  }

  // 64 bits of hash: two of a million states would share them once in 10 million runs.
  static uint64_t name_of(const State& state) {
    std::string name;
    const auto put = [&](uint32_t number) {
      name.append(reinterpret_cast<const char*>(&number), sizeof number);
    };
    for (const Rank& rank : state.ranks) {
      put(rank.round);
      put(rank.num_stores);
      put(rank.num_fences);
      put(static_cast<uint32_t>(rank.seen.size()));
      for (const Vector4& v : rank.seen) {
        put(v.x);
        put(v.z);
      }
      put(static_cast<uint32_t>(rank.bag.size()));
      // The order matters within a word only.
      std::vector<Pending> bag = rank.bag;
      std::ranges::stable_sort(bag, {}, &Pending::place);
      for (const Pending& pending : bag) {
        put(static_cast<uint32_t>(pending.place.first));
        put(pending.place.second);
        put(pending.value);
      }
    }
    for (const auto& memory : state.memory) {
      name.append(reinterpret_cast<const char*>(memory.data()), memory.size() * sizeof(uint32_t));
    }
    return std::hash<std::string>()(name);
  }

  const Case case_;
  uint32_t slot_vectors_ = 0;
  State start_;
  std::set<std::pair<Place, int32_t>> writers_;
  std::set<Place> shared_;
  std::optional<std::string> failure_;
  size_t num_states_ = 0;
};

std::vector<Case> cases() {
  const std::vector<bool> one(6, false);
  const std::vector<bool> two(6, true);
  const std::vector<bool> mixed = {false, true, true, false, true, false};
  const std::vector<bool> short_one(4, false);  // a buffer's second use is in the fourth
  return {{.num_ranks = 2, .num_vectors = 1, .two_shots = one},
          {.num_ranks = 2, .num_vectors = 1, .two_shots = one, .num_words = 2},
          {.num_ranks = 2, .num_vectors = 2, .two_shots = two},
          {.num_ranks = 2, .num_vectors = 2, .two_shots = mixed},
          {.num_ranks = 3, .num_vectors = 1, .two_shots = short_one}};
}

TEST(ExchangeModel, AllOrdersEndRight) {
  for (const Case& of : cases()) {
    Model model(of);
    EXPECT_EQ(model.failure().value_or(""), "") << of.num_ranks << " ranks";
    std::printf("%d ranks, %u vectors of %u words: %zu states\n",
                of.num_ranks,
                of.num_vectors,
                of.num_words,
                model.num_states());
    EXPECT_GT(model.num_states(), 300u);
  }
}

TEST(ExchangeModel, WithoutItsFenceSomeEndWrong) {
  for (Case of : cases()) {
    if (of.num_ranks > 2) continue;  // far more orders than it takes
    of.has_fences = false;
    EXPECT_NE(Model(of).failure().value_or(""), "") << of.num_ranks << " ranks";
  }
}

TEST(ExchangeModel, WithoutClearingSumsAreThoseOfOtherRounds) {
  for (Case of : cases()) {
    of.clears = false;
    EXPECT_NE(Model(of).failure().value_or(""), "") << of.num_ranks << " ranks";
  }
}

}  // namespace
}  // namespace outrider::gpu
