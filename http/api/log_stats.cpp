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
  return text({.rounds = last_.rounds - before.rounds,
               .prompt_tokens = last_.prompt_tokens - before.prompt_tokens,
               .generation_tokens = last_.generation_tokens - before.generation_tokens,
               .prefix_queries = last_.prefix_queries - before.prefix_queries,
               .prefix_hits = last_.prefix_hits - before.prefix_hits,
               .drafts = last_.drafts - before.drafts,
               .draft_tokens = last_.draft_tokens - before.draft_tokens,
               .accepted_tokens = last_.accepted_tokens - before.accepted_tokens},
              passed.count());
}

std::string LogStats::text(const Totals& news, double seconds) const {
  std::string text = fmt::format(
      "Avg prompt throughput: {:.1f} tokens/s, Avg generation throughput: {:.1f} tokens/s, "
      "Running: {:.0f} reqs, Waiting: {:.0f} reqs, KV cache usage: {:.1f}%",
      news.prompt_tokens / seconds,
      news.generation_tokens / seconds,
      metrics_.num_requests_running.value(),
      metrics_.num_requests_waiting.value(),
      100 * metrics_.kv_cache_usage_perc.value());
  if (news.prefix_queries > 0) {
    text += fmt::format(", Prefix cache hit rate: {:.1f}%",
                        100 * news.prefix_hits / news.prefix_queries);
  }
  if (news.draft_tokens > 0) {
    text += fmt::format(", Mean acceptance length: {:.2f}, Avg Draft acceptance rate: {:.1f}%",
                        1 + news.accepted_tokens / news.drafts,
                        100 * news.accepted_tokens / news.draft_tokens);
  }
  return text;
}

}  // namespace outrider
