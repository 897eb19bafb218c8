// See rounds_picture.h.
#include "runtime/commands/rounds/rounds_picture.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "runtime/base/error.h"
#include "runtime/base/json_depth.h"
#include "runtime/base/trace_file.h"

namespace outrider {
namespace {

using Json = nlohmann::json;

constexpr int kMaxDepth = 8;

struct Event {
  std::string name;
  char phase = 'X';
  int rank = 0;
  TimeSpan time;
  std::string arrow;
  const Json* arguments = nullptr;

  int64_t argument(const char* key) const {
    if (arguments == nullptr || !arguments->contains(key)) return 0;
    const Json& value = (*arguments)[key];
    return value.is_number_integer() ? value.get<int64_t>() : 0;
  }
  uint64_t sequence() const { return static_cast<uint64_t>(argument("sequence")); }
};

Event read_event(const Json& json) {
  Event event;
  event.name = json.at("name").get<std::string>();
  event.phase = json.at("ph").get<std::string>().at(0);
  event.rank = json.at("pid").get<int>();
  event.time.begin_us = json.value("ts", 0.0);
  event.time.end_us = event.time.begin_us + json.value("dur", 0.0);
  if (json.contains("args")) event.arguments = &json["args"];
  if (event.phase == 's' || event.phase == 'f') event.arrow = json.at("id").get<std::string>();
  return event;
}

BlockSource source_of(const Json& arguments) {
  const std::string name = arguments.value("source", "none");
  for (const BlockSource source :
       {BlockSource::kAtHand, BlockSource::kWaitedFor, BlockSource::kOwn}) {
    if (name == block_source_name(source)) return source;
  }
  return BlockSource::kNone;
}

PicturedRound read_round(const Event& event) {
  return {
      .time = event.time,
      .round = static_cast<int32_t>(event.argument("round")),
      .num_drafted = std::clamp<int32_t>(static_cast<int32_t>(event.argument("drafted")), 0, 64),
      .num_accepted = std::clamp<int32_t>(static_cast<int32_t>(event.argument("accepted")), 0, 64),
      .num_rows = static_cast<int32_t>(event.argument("rows")),
      .source = source_of(*event.arguments),
      .had_proposal = event.argument("proposal") != 0};
}

// The verdicts by request; the end of each stands in an event of its own.
std::map<uint64_t, std::vector<PicturedRound>> read_verdicts(const Json& list) {
  std::map<uint64_t, std::vector<PicturedRound>> verdicts;
  std::map<uint64_t, PicturedRound> open;
  for (const Json& json : list) {
    if (json.value("name", "") != "verdict") continue;
    const Event event = read_event(json);
    const auto id = json.at("id").get<uint64_t>();
    if (event.phase == 'b' && event.arguments != nullptr) open[id] = read_round(event);
    if (event.phase != 'e' || !open.contains(id)) continue;
    PicturedRound round = open.extract(id).mapped();
    round.time.end_us = event.time.begin_us;
    round.num_accepted = std::min(round.num_accepted, round.num_drafted);
    verdicts[id].push_back(round);
  }
  return verdicts;
}

uint64_t request_to_show(const std::map<uint64_t, std::vector<PicturedRound>>& verdicts,
                         uint64_t asked) {
  if (verdicts.empty()) throw Error("the trace has no rounds of any request");
  if (asked != 0 && !verdicts.contains(asked)) {
    throw Error(fmt::format("the trace has no rounds of request {}; it has those of {} to {}",
                            asked,
                            verdicts.begin()->first,
                            verdicts.rbegin()->first));
  }
  if (asked != 0) return asked;
  for (const auto& [id, rounds] : verdicts) {
    if (std::any_of(rounds.begin(), rounds.end(), [](const PicturedRound& round) {
          return round.num_drafted > 0;
        })) {
      return id;
    }
  }
  return verdicts.begin()->first;
}

bool overlaps(const TimeSpan& a, const TimeSpan& b) {
  return a.begin_us < b.end_us && b.begin_us < a.end_us;
}

void add_events(const Json& list, RoundsPicture* picture) {
  std::set<int> draft_ranks;
  std::map<std::string, Event> sent;
  for (const Json& json : list) {
    const Event event = read_event(json);
    if (event.phase == 'M' && event.name == "process_name" && event.arguments != nullptr &&
        event.arguments->value("name", "").ends_with(": draft")) {
      draft_ranks.insert(event.rank);
    }
    const bool by_draft = draft_ranks.contains(event.rank);
    if (event.phase == 's') sent[event.arrow] = event;
    if (event.phase == 'f' && sent.contains(event.arrow)) {
      const PicturedMessage message{sent[event.arrow].time.begin_us, event.time.begin_us, by_draft};
      if (overlaps(picture->window, {message.sent_us, message.heard_us})) {
        picture->messages.push_back(message);
      }
    }
    if (event.name == "drafted" && event.sequence() == picture->request &&
        event.time.begin_us > picture->window.begin_us &&
        event.time.begin_us < picture->window.end_us) {
      picture->drafted.push_back({event.time.begin_us,
                                  static_cast<int32_t>(event.argument("tokens")),
                                  event.argument("guess") >= 0});
    }
    if (event.phase != 'X' || !overlaps(picture->window, event.time)) continue;
    if (event.rank == 0 && event.name == "wait for draft") picture->waits.push_back(event.time);
    if (by_draft && event.name == "draft step") {
      picture->draft_steps.push_back({event.time, static_cast<int32_t>(event.argument("rows"))});
    }
  }
  picture->has_draft = !draft_ranks.empty();
}

}  // namespace

RoundsPicture read_rounds(std::string_view trace, const RoundsChoice& choice) {
  if (json_nests_deeper_than(trace, kMaxDepth)) throw Error("not a trace file: nested too deep");
  const Json json = Json::parse(trace, nullptr, false);
  if (!json.is_object() || !json.contains("traceEvents") || !json["traceEvents"].is_array())
    throw Error("not a trace file: there is no list traceEvents");
  RoundsPicture picture;
  try {
    const auto verdicts = read_verdicts(json["traceEvents"]);
    picture.request = request_to_show(verdicts, choice.request);
    picture.num_requests = static_cast<int32_t>(verdicts.size());
    for (const PicturedRound& round : verdicts.at(picture.request)) {
      if (round.round < choice.first_round) continue;
      if (std::ssize(picture.rounds) == choice.num_rounds) break;
      picture.rounds.push_back(round);
    }
    if (picture.rounds.empty()) {
      throw Error(fmt::format(
          "request {} has no round {} or later in the trace", picture.request, choice.first_round));
    }
    const double begin_us = picture.rounds.front().time.begin_us;
    const double end_us = picture.rounds.back().time.end_us;
    const double margin_us = 0.02 * (end_us - begin_us);
    picture.window = {std::max(0.0, begin_us - 2 * margin_us), end_us + margin_us};
    add_events(json["traceEvents"], &picture);
  } catch (const Json::exception& error) {
    throw Error(fmt::format("not a trace file: {}", error.what()));
  }
  return picture;
}

}  // namespace outrider
