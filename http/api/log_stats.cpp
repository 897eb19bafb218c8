// See log_stats.h.
#include "http/api/log_stats.h"

#include <fmt/format.h>

#include <utility>

namespace outrider {

LogStats::LogStats(const ServingMetrics& metrics, double interval_s, Clock::time_point now)
    : metrics_(metrics), interval_(interval_s), last_at_(now), last_(totals()) {}

LogStats::Totals LogStats::totals() const {
  return {.rounds = metrics_.rounds.value(),
          .prompt_tokens = metrics_.prompt_tokens.value(),
          .generation_tokens = metrics_.generation_tokens.value(),
          .prefix_queries = metrics_.prefix_cache_queries.value(),
          .prefix_hits = metrics_.prefix_cache_hits.value(),
          .drafts = metrics_.spec_decode_num_drafts.value(),
          .draft_tokens = metrics_.spec_decode_num_draft_tokens.value(),
          .accepted_tokens = metrics_.spec_decode_num_accepted_tokens.value()};
}

std::string LogStats::line_at(Clock::time_point now) {
  if (interval_.count() <= 0 || now - last_at_ < interval_) return "";
  const Totals before = std::exchange(last_, totals());
  const std::chrono::duration<double> passed = now - std::exchange(last_at_, now);
  if (last_.rounds == before.rounds) return "";
  return text(before, passed.count());
}

std::string LogStats::text(const Totals& before, double seconds) const {
  const auto news = [&](double Totals::*total) { return last_.*total - before.*total; };
  const double draft_tokens = news(&Totals::draft_tokens);
  const double accepted_tokens = news(&Totals::accepted_tokens);
  const double prefix_queries = news(&Totals::prefix_queries);
  std::string text = fmt::format(
      "Avg prompt throughput: {:.1f} tokens/s, Avg generation throughput: {:.1f} tokens/s, "
      "Running: {:.0f} reqs, Waiting: {:.0f} reqs, KV cache usage: {:.1f}%",
      news(&Totals::prompt_tokens) / seconds,
      news(&Totals::generation_tokens) / seconds,
      metrics_.num_requests_running.value(),
      metrics_.num_requests_waiting.value(),
      100 * metrics_.kv_cache_usage_perc.value());
  if (prefix_queries > 0) {
    text += fmt::format(", Prefix cache hit rate: {:.1f}%",
                        100 * news(&Totals::prefix_hits) / prefix_queries);
  }
  if (draft_tokens > 0) {
    text += fmt::format(", Mean acceptance length: {:.2f}, Avg Draft acceptance rate: {:.1f}%",
                        1 + accepted_tokens / news(&Totals::drafts),
                        100 * accepted_tokens / draft_tokens);
  }
  return text;
}

}  // namespace outrider
