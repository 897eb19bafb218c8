// The drawing of rounds_picture.h: two lanes over one axis of time, the targets above, the draft
// below, messages between them.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "runtime/commands/rounds/rounds_picture.h"

namespace outrider {
namespace {

constexpr double kWidth = 1280;
constexpr double kHeight = 452;
constexpr double kLeft = 84;
constexpr double kRight = 24;
constexpr double kTargetTop = 104;
constexpr double kTargetHeight = 76;
constexpr double kDraftBottom = 352;
constexpr double kDraftHeight = 92;
constexpr double kAxis = 372;
constexpr double kLegend = 424;
constexpr double kMostMessages = 20000;

constexpr const char* kText = "#24292f";
constexpr const char* kFaint = "#6e7781";
constexpr const char* kLane = "#f6f8fa";
constexpr const char* kStep = "#e8eef7";
constexpr const char* kStepEdge = "#9fb3cf";
constexpr const char* kWait = "#e69f00";
constexpr const char* kAccepted = "#009e73";
constexpr const char* kRejected = "#ffffff";
constexpr const char* kRejectedEdge = "#b0776b";
constexpr const char* kCorrected = "#d55e00";
constexpr const char* kBonus = "#0072b2";
constexpr const char* kPlain = "#8c959f";
constexpr const char* kDraft = "#cc79a7";
constexpr const char* kMessage = "#8c959f";

struct Box {
  double x = 0;
  double y = 0;
  double width = 0;
  double height = 0;
};

class Drawing {
 public:
  explicit Drawing(const RoundsPicture& picture) : picture_(picture) {}

  std::string text() {
    add(R"svg(<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {0} {1}" width="{0}" height="{1}" font-family="Helvetica, Arial, sans-serif" font-size="12">
<defs><pattern id="wait" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><rect width="6" height="6" fill="#fdf3dc"/><rect width="2.2" height="6" fill="{2}"/></pattern></defs>
<rect width="{0}" height="{1}" fill="#ffffff"/>
)svg",
        kWidth,
        kHeight,
        kWait);
    add_title();
    add_lanes();
    add_messages();
    for (const TimeSpan& wait : picture_.waits) add_wait(wait);
    for (const PicturedRound& round : picture_.rounds) add_round(round);
    add_draft();
    add_axis();
    add_legend();
    return std::move(out_) + "</svg>\n";
  }

 private:
  template <typename... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    out_ += fmt::format(format, std::forward<Args>(args)...);
  }
  void add_box(const Box& box, const char* fill, const char* edge, double corner = 2) {
    add("<rect x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\" rx=\"{}\" fill=\"{}\" "
        "stroke=\"{}\" stroke-width=\"0.8\"/>\n",
        box.x,
        box.y,
        std::max(box.width, 0.4),
        box.height,
        corner,
        fill,
        edge);
  }
  void add_text(
      double x, double y, const char* anchor, const char* color, const std::string& text) {
    add("<text x=\"{:.2f}\" y=\"{:.2f}\" text-anchor=\"{}\" fill=\"{}\">{}</text>\n",
        x,
        y,
        anchor,
        color,
        text);
  }
  double x_of(double time_us) const {
    const double share = (time_us - picture_.window.begin_us) /
                         std::max(1e-9, picture_.window.end_us - picture_.window.begin_us);
    return kLeft + std::clamp(share, 0.0, 1.0) * (kWidth - kLeft - kRight);
  }

  void add_title() {
    int32_t drafted = 0;
    int32_t accepted = 0;
    int32_t ready = 0;
    int32_t waited = 0;
    for (const PicturedRound& round : picture_.rounds) {
      drafted += round.num_drafted;
      accepted += round.num_accepted;
      ready += round.source == BlockSource::kAtHand ? 1 : 0;
      waited += round.source == BlockSource::kWaitedFor ? 1 : 0;
    }
    const auto num_rounds = static_cast<int32_t>(picture_.rounds.size());
    add("<text x=\"{}\" y=\"30\" font-size=\"17\" font-weight=\"600\" fill=\"{}\">Request {}, "
        "rounds {} to {}</text>\n",
        kLeft,
        kText,
        picture_.request,
        picture_.rounds.front().round,
        picture_.rounds.back().round);
    std::string line = fmt::format("{} tokens in {} rounds; {} of {} draft tokens accepted; ",
                                   accepted + num_rounds,
                                   num_rounds,
                                   accepted,
                                   drafted);
    line += fmt::format("drafts at hand {} times, waited for {} times", ready, waited);
    if (picture_.num_requests > 1) {
      line += fmt::format("; one of {} requests in the trace", picture_.num_requests);
    }
    add_text(kLeft, 50, "start", kFaint, line);
  }

  void add_lane(double top, double height, const char* name) {
    add_box({kLeft, top, kWidth - kLeft - kRight, height}, kLane, "none", 4);
    add("<text x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\" font-size=\"14\" fill=\"{}\">{}</text>\n",
        kLeft - 12,
        top + height / 2 + 5,
        kText,
        name);
  }
  void add_lanes() {
    add_lane(kTargetTop, kTargetHeight, "target");
    if (picture_.has_draft) add_lane(kDraftBottom - kDraftHeight, kDraftHeight, "draft");
  }

  void add_messages() {
    if (static_cast<double>(picture_.messages.size()) > kMostMessages) return;
    const double target = kTargetTop + kTargetHeight;
    const double draft = kDraftBottom - kDraftHeight;
    std::set<std::pair<long, long>> drawn;  // many tokens of one message are one line
    for (const PicturedMessage& message : picture_.messages) {
      const std::pair ends(std::lround(x_of(message.sent_us)), std::lround(x_of(message.heard_us)));
      if (!drawn.insert(ends).second) continue;
      const double from_y = message.to_draft ? target : draft;
      const double to_y = message.to_draft ? draft : target;
      add("<line x1=\"{:.2f}\" y1=\"{:.1f}\" x2=\"{:.2f}\" y2=\"{:.1f}\" stroke=\"{}\" "
          "stroke-width=\"{}\" opacity=\"0.7\"/>\n",
          x_of(message.sent_us),
          from_y,
          x_of(message.heard_us),
          to_y,
          message.to_draft ? kBonus : kMessage,
          message.to_draft ? 1.2 : 0.8);
      add("<circle cx=\"{:.2f}\" cy=\"{:.1f}\" r=\"1.8\" fill=\"{}\"/>\n",
          x_of(message.heard_us),
          to_y,
          message.to_draft ? kBonus : kMessage);
    }
  }

  void add_wait(const TimeSpan& wait) {
    const double x = x_of(wait.begin_us);
    add_box(
        {x, kTargetTop + 10, x_of(wait.end_us) - x, kTargetHeight - 20}, "url(#wait)", kWait, 1);
  }

  // The step, and in it what became of each draft token and the token that the target added.
  void add_round(const PicturedRound& round) {
    const double x = x_of(round.time.begin_us);
    const double width = std::max(2.0, x_of(round.time.end_us) - x);
    add_box({x, kTargetTop + 4, width, kTargetHeight - 8}, kStep, kStepEdge, 3);
    const double middle = x + width / 2;
    add_text(middle, kTargetTop - 22, "middle", kText, fmt::format("{}", round.round));
    add_source(round, middle);
    const int32_t num_boxes = round.num_drafted + 1;
    const double pitch = std::min(19.0, (width - 6) / num_boxes);
    const double side = std::max(1.0, std::min(15.0, pitch - 1.5));
    const double first = middle - pitch * num_boxes / 2 + (pitch - side) / 2;
    const double y = kTargetTop + kTargetHeight / 2 - side / 2 - 8;
    for (int32_t i = 0; i < round.num_drafted; ++i) {
      const bool stood = i < round.num_accepted;
      const Box box{first + pitch * i, y, side, side};
      add_box(box, stood ? kAccepted : kRejected, stood ? kAccepted : kRejectedEdge);
      if (!stood) add_cross(box);
    }
    const char* color = round.num_drafted == 0                    ? kPlain
                        : round.num_accepted == round.num_drafted ? kBonus
                                                                  : kCorrected;
    add_box({first + pitch * round.num_drafted, y, side, side}, color, color);
    if (width > 60) {
      add_text(middle,
               kTargetTop + kTargetHeight - 14,
               "middle",
               kFaint,
               fmt::format("+{} of {}", round.num_accepted + 1, num_boxes));
    }
  }

  void add_cross(const Box& box) {
    const double inset = box.width * 0.25;
    add("<path d=\"M{:.2f} {:.2f}L{:.2f} {:.2f}M{:.2f} {:.2f}L{:.2f} {:.2f}\" stroke=\"{}\" "
        "stroke-width=\"1.1\" fill=\"none\"/>\n",
        box.x + inset,
        box.y + inset,
        box.x + box.width - inset,
        box.y + box.height - inset,
        box.x + box.width - inset,
        box.y + inset,
        box.x + inset,
        box.y + box.height - inset,
        kRejectedEdge);
  }

  // Where the draft tokens came from, above the step.
  void add_source(const PicturedRound& round, double x) {
    const double y = kTargetTop - 10;
    if (round.source == BlockSource::kAtHand) {
      add("<circle cx=\"{:.2f}\" cy=\"{}\" r=\"4.5\" fill=\"{}\"/>\n", x, y, kAccepted);
    } else if (round.source == BlockSource::kWaitedFor) {
      add("<circle cx=\"{:.2f}\" cy=\"{}\" r=\"4\" fill=\"#ffffff\" stroke=\"{}\" "
          "stroke-width=\"1.8\"/>\n",
          x,
          y,
          kWait);
    } else if (round.source == BlockSource::kOwn) {
      add("<circle cx=\"{:.2f}\" cy=\"{}\" r=\"4\" fill=\"{}\"/>\n", x, y, kPlain);
    }
  }

  // A step is as high as its rows are many, by logarithm: one row a quarter of the lane.
  void add_draft() {
    if (!picture_.has_draft) return;
    int32_t most_rows = 1;
    for (const PicturedStep& step : picture_.draft_steps) {
      most_rows = std::max(most_rows, step.num_rows);
    }
    for (const PicturedStep& step : picture_.draft_steps) {
      const double x = x_of(step.time.begin_us);
      const double width = x_of(step.time.end_us) - x;
      const double share = most_rows == 1
                               ? 0
                               : std::log(static_cast<double>(std::max(1, step.num_rows))) /
                                     std::log(static_cast<double>(most_rows));
      const double height = (0.25 + 0.55 * share) * kDraftHeight;
      add_box({x, kDraftBottom - height - 4, width - 0.6, height}, kDraft, "none", 1.5);
      if (width < 15) continue;
      add_text(
          x + width / 2, kDraftBottom - 9, "middle", "#ffffff", fmt::format("{}", step.num_rows));
    }
    std::set<std::pair<long, bool>> drawn;
    for (const PicturedTokens& tokens : picture_.drafted) {
      if (tokens.num_tokens == 0) continue;
      if (!drawn.insert({std::lround(x_of(tokens.time_us)), tokens.guessed}).second) continue;
      add("<circle cx=\"{:.2f}\" cy=\"{:.1f}\" r=\"2.6\" fill=\"{}\" stroke=\"#7d3f63\" "
          "stroke-width=\"0.9\"/>\n",
          x_of(tokens.time_us),
          kDraftBottom - kDraftHeight + (tokens.guessed ? 14 : 7),
          tokens.guessed ? "#ffffff" : "#7d3f63");
    }
  }

  void add_axis() {
    const double range_ms = 1e-3 * (picture_.window.end_us - picture_.window.begin_us);
    const double raw = range_ms / 10;
    const double power = std::pow(10.0, std::floor(std::log10(std::max(raw, 1e-9))));
    const double digit = raw / power;
    const double step_ms = power * (digit < 1.5 ? 1 : digit < 3.5 ? 2 : digit < 7.5 ? 5 : 10);
    for (int i = 0; i * step_ms <= range_ms; ++i) {
      const double x = x_of(picture_.window.begin_us + 1e3 * i * step_ms);
      add("<line x1=\"{0:.2f}\" y1=\"{1}\" x2=\"{0:.2f}\" y2=\"{2}\" stroke=\"{3}\" "
          "stroke-width=\"0.8\"/>\n",
          x,
          kAxis - 12,
          kAxis - 6,
          kFaint);
      add_text(x, kAxis + 8, "middle", kFaint, fmt::format("{:g}", i * step_ms));
    }
    add_text(kLeft - 12, kAxis + 8, "end", kFaint, "ms");
  }

  void add_legend() {
    double x = kLeft;
    const auto entry = [&](const char* fill, const char* edge, const char* name) {
      add_box({x, kLegend - 11, 13, 13}, fill, edge);
      add_text(x + 19, kLegend, "start", kText, name);
      x += 36 + 6.3 * static_cast<double>(std::string_view(name).size());
    };
    const auto dot = [&](const char* fill, const char* edge, const char* name) {
      add("<circle cx=\"{:.1f}\" cy=\"{}\" r=\"4.5\" fill=\"{}\" stroke=\"{}\" "
          "stroke-width=\"1.6\"/>\n",
          x + 6,
          kLegend - 4.5,
          fill,
          edge);
      add_text(x + 17, kLegend, "start", kText, name);
      x += 34 + 6.3 * static_cast<double>(std::string_view(name).size());
    };
    entry(kAccepted, kAccepted, "accepted");
    entry(kRejected, kRejectedEdge, "rejected");
    entry(kCorrected, kCorrected, "corrected");
    entry(kBonus, kBonus, "bonus");
    entry(kPlain, kPlain, "plain");
    entry("url(#wait)", kWait, "targets wait");
    dot(kAccepted, kAccepted, "draft at hand");
    dot("#ffffff", kWait, "waited for");
    if (!picture_.has_draft) return;
    entry(kDraft, kDraft, "draft step (rows)");
    dot("#7d3f63", "#7d3f63", "its block");
    dot("#ffffff", "#7d3f63", "for an outcome");
  }

  const RoundsPicture& picture_;
  std::string out_;
};

}  // namespace

std::string rounds_svg(const RoundsPicture& picture) { return Drawing(picture).text(); }

}  // namespace outrider
