// See rehearsal.h.
#include "tests/ranks/rehearsal.h"

#include <algorithm>
#include <charconv>
#include <numeric>

#include "runtime/base/numbers/rng.h"
#include "runtime/base/virtual_clock.h"

namespace outrider {
namespace {

constexpr auto kLongestWait = std::chrono::seconds(1);

JobClock::time_point after(JobClock::time_point begin, double seconds) {
  return begin +
         std::chrono::duration_cast<JobClock::duration>(std::chrono::duration<double>(seconds));
}

class Player {
 public:
  Player(const FrontEndContext& context, const std::vector<TimedRequest>& requests)
      : context_(context), requests_(requests), answers_(requests.size()), order_(requests.size()) {
    std::iota(order_.begin(), order_.end(), size_t{0});
    std::stable_sort(order_.begin(), order_.end(), [&](size_t a, size_t b) {
      return requests_[a].at_s < requests_[b].at_s;
    });
  }

  std::vector<TimedAnswer> play() {
    while (next_ < order_.size() || !open_.empty()) {
      submit_due();
      const size_t num_open = open_.size();
      std::erase_if(open_, [&](Open& open) { return take_events(open); });
      if (open_.size() < num_open) continue;  // maybe the last
      JobClock::time_point until = JobClock::now() + kLongestWait;
      if (next_ < order_.size())
        until = std::min(until, after(begin_, requests_[order_[next_]].at_s));
      JobClock::listen_until(until);
    }
    return std::move(answers_);
  }

 private:
  struct Open {
    size_t index = 0;
    std::shared_ptr<ResultStream> stream;
  };

  double now_s() const { return std::chrono::duration<double>(JobClock::now() - begin_).count(); }

  void submit_due() {
    while (next_ < order_.size() &&
           JobClock::now() >= after(begin_, requests_[order_[next_]].at_s)) {
      submit(order_[next_++]);
    }
  }

  void submit(size_t index) {
    const TimedRequest& asked = requests_[index];
    Request request;
    request.id = context_.engine.next_request_id();
    request.prompt = asked.prompt;
    request.params = asked.params;
    request.priority = asked.priority;
    if (request.params.noise_seed == 0)
      request.params.noise_seed = request.params.seed.value_or(mix_seed(0x5EED, index));
    request.stream = std::make_shared<ResultStream>();
    open_.push_back({index, request.stream});
    answers_[index].at_s = now_s();
    const AdmissionResult result = context_.engine.submit(std::move(request));
    if (result.admission != Admission::kAccepted) throw Error(result.reason);
  }

  // True after the last.
  bool take_events(Open& open) {
    TimedAnswer& answer = answers_[open.index];
    while (auto event = open.stream->wait_next(std::chrono::milliseconds(0))) {
      take_event(*event, &answer);
      if (event->finish_reason == FinishReason::kNone) continue;
      answer.finish_reason = event->finish_reason;
      answer.error = event->error;
      answer.done_s = now_s();
      return true;
    }
    return false;
  }

  void take_event(const ResultEvent& event, TimedAnswer* answer) {
    if (answer->tokens.empty() && !event.tokens.empty()) answer->first_token_s = now_s();
    answer->events.push_back(
        {.at_s = now_s(),
         .num_tokens = static_cast<int32_t>(event.tokens.size()),
         .num_drafted = event.stats.num_draft_tokens - answer->stats.num_draft_tokens,
         .num_accepted = event.stats.num_accepted_tokens - answer->stats.num_accepted_tokens});
    answer->tokens.insert(answer->tokens.end(), event.tokens.begin(), event.tokens.end());
    answer->origins.insert(answer->origins.end(), event.origins.begin(), event.origins.end());
    answer->stats = event.stats;
  }

  const FrontEndContext& context_;
  const std::vector<TimedRequest>& requests_;
  const JobClock::time_point begin_ = JobClock::now();
  std::vector<TimedAnswer> answers_;
  std::vector<size_t> order_;  // by time
  size_t next_ = 0;            // in order_
  std::vector<Open> open_;
};

// Of Prometheus text: "namespace:name{labels} value" a line.
std::map<std::string, double> parse_metrics(const std::string& text) {
  std::map<std::string, double> metrics;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    const size_t space = line.rfind(' ');
    if (line.empty() || line[0] == '#' || space == std::string::npos) continue;
    const size_t name_begin = line.find(':') + 1;  // 0 when there is no namespace
    const size_t name_end = std::min(line.find('{'), space);
    const std::string name =
        name_begin < name_end ? line.substr(name_begin, name_end - name_begin) : "";
    double value = 0;
    std::from_chars(line.data() + space + 1, line.data() + line.size(), value);
    if (!name.empty() && !name.ends_with("_bucket")) metrics[name] += value;
  }
  return metrics;
}

}  // namespace

std::vector<TimedAnswer> play_requests(const FrontEndContext& context,
                                       const std::vector<TimedRequest>& requests) {
  OUTRIDER_CHECK(JobClock::is_virtual_here());
  return Player(context, requests).play();
}

Rehearsal rehearse(const RunConfig& config,
                   const std::vector<TimedRequest>& requests,
                   const InProcessLink& link) {
  VirtualClock clock;
  Rehearsal rehearsal;
  const auto front_end = [&](const FrontEndContext& context) {
    rehearsal.answers = play_requests(context, requests);
    rehearsal.round_times = context.engine.round_times();
    rehearsal.metrics = parse_metrics(context.metrics.render({"outrider"}));
    return 0;
  };
  run_job(config, {}, front_end, {.before_load = {}, .link = link});
  for (const TimedAnswer& answer : rehearsal.answers)
    rehearsal.seconds = std::max(rehearsal.seconds, answer.done_s);
  rehearsal.history = clock.history();
  return rehearsal;
}

}  // namespace outrider
