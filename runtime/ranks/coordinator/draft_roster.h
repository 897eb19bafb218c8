// The drafts of a job: the rank's, where there is one, and those that have attached over TCP. One
// serves, the others stand by. Used by the draft pacer on the round's thread.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/ranks/coordinator/draft_client.h"
#include "runtime/ranks/coordinator/draft_server.h"

namespace outrider {

class DraftRoster {
 public:
  using Clock = JobClock;

  // client: what talks to the one that serves; server: null = nobody can attach. Both outlive this.
  DraftRoster(DraftClient& client, DraftServer* server) : client_(client), server_(server) {}

  // The draft rank, which serves from the start.
  void add_rank(std::unique_ptr<DraftLink> link, int rank, uint32_t epoch);

  // Takes in who has come, looks after those that stand by, and lets another one serve when the one
  // that does is down, or one has come that is clearly faster. Cheap; to be called often.
  void look(Clock::time_point now);

  // Of the draft that serves or was the last to; for logs.
  const std::string& name() const { return name_; }
  // That could take over now.
  size_t num_standing_by() const;

  // Tells all of them that the job is over; false when the rank did not say goodbye.
  bool shut_down();

 private:
  // | state     | means                                         | left by                        |
  // | kLoading  | it was welcomed and has said no hello frame   | its hello; its end             |
  // | kReady    | it answers                                    | too long a silence; its end    |
  // | kSilent   | it was asked whether it lives and is silent   | any frame; its end             |
  // | kGone     | it has ended and may come back by its link    | its hello                      |
  enum class State : uint8_t { kLoading, kReady, kSilent, kGone };
  struct Draft {
    std::unique_ptr<DraftLink> link;
    std::string name;
    uint32_t epoch = 0;
    bool is_rank = false;
    State state = State::kLoading;
    double step_s = 0;  // of one row, as it says; 0 = not known
    Clock::time_point heard_at{};
    bool was_asked = false;  // whether it lives
  };

  void take_arrivals(Clock::time_point now);
  void drop_closed();
  void hear(Draft& draft, Clock::time_point now);
  void take_frame(Draft& draft, const Frame& frame, Clock::time_point now);
  void ask(Draft& draft, Clock::time_point now) const;
  void choose(Clock::time_point now);
  void let_serve(Draft& draft);
  Draft* fastest_ready();
  bool serves(const Draft& draft) const { return client_.link() == draft.link.get(); }

  DraftClient& client_;
  DraftServer* const server_;
  std::vector<std::unique_ptr<Draft>> drafts_;
  Draft* newcomer_ = nullptr;  // became ready since the last choice
  std::string name_ = "none attached";
  Clock::time_point next_look_{};
};

}  // namespace outrider
