// The Prometheus text and the names that dashboards and benchmarks read.
#include "runtime/base/telemetry/metrics.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "http/api/serving_metrics.h"

namespace outrider {
namespace {

TEST(Metrics, TextFormat) {
  MetricsRegistry registry(MetricLabels{{"model_name", "a\"b\\c\nd"}});
  registry.counter({"hits_total", "Hits."}).add(3);
  registry.gauge({"level", "Level.", MetricScope::kOwn}, {{"rank", "1"}}).set(0.25);
  Histogram& histogram = registry.histogram({"size", "Size."}, {1, 2.5});
  for (const double value : {0.5, 1.0, 2.0, 9.0}) histogram.observe(value);
  EXPECT_EQ(registry.render({"x", "y"}),
            "# HELP x:hits_total Hits.\n# TYPE x:hits_total counter\n"
            "x:hits_total{model_name=\"a\\\"b\\\\c\\nd\"} 3.0\n"
            "# HELP y:hits_total Hits.\n# TYPE y:hits_total counter\n"
            "y:hits_total{model_name=\"a\\\"b\\\\c\\nd\"} 3.0\n"
            "# HELP x:level Level.\n# TYPE x:level gauge\n"
            "x:level{model_name=\"a\\\"b\\\\c\\nd\",rank=\"1\"} 0.25\n"
            "# HELP x:size Size.\n# TYPE x:size histogram\n"
            "x:size_bucket{model_name=\"a\\\"b\\\\c\\nd\",le=\"1.0\"} 2\n"
            "x:size_bucket{model_name=\"a\\\"b\\\\c\\nd\",le=\"2.5\"} 3\n"
            "x:size_bucket{model_name=\"a\\\"b\\\\c\\nd\",le=\"+Inf\"} 4\n"
            "x:size_count{model_name=\"a\\\"b\\\\c\\nd\"} 4\n"
            "x:size_sum{model_name=\"a\\\"b\\\\c\\nd\"} 12.5\n"
            "# HELP y:size Size.\n# TYPE y:size histogram\n"
            "y:size_bucket{model_name=\"a\\\"b\\\\c\\nd\",le=\"1.0\"} 2\n"
            "y:size_bucket{model_name=\"a\\\"b\\\\c\\nd\",le=\"2.5\"} 3\n"
            "y:size_bucket{model_name=\"a\\\"b\\\\c\\nd\",le=\"+Inf\"} 4\n"
            "y:size_count{model_name=\"a\\\"b\\\\c\\nd\"} 4\n"
            "y:size_sum{model_name=\"a\\\"b\\\\c\\nd\"} 12.5\n");
}

TEST(Metrics, SameNameAndLabelsIsTheSameMetric) {
  MetricsRegistry registry;
  Counter& first = registry.counter({"a_total", "A."}, {{"k", "1"}});
  Counter& same = registry.counter({"a_total", "A."}, {{"k", "1"}});
  Counter& other = registry.counter({"a_total", "A."}, {{"k", "2"}});
  EXPECT_EQ(&first, &same);
  EXPECT_NE(&first, &other);
}

TEST(ServingMetrics, NamesOthersReadAreThere) {
  ServingMetrics metrics("m", 1000, 3);
  metrics.spec_decode_num_drafts.add(2);
  metrics.accepted_tokens_at(1).add(5);
  metrics.accepted_tokens_at(9).add(1);  // beyond the last series
  metrics.set_cache_config({{"block_size", "16"}, {"num_gpu_blocks", "9"}});
  const std::string text = metrics.render({"outrider", "vllm"});
  for (const char* line : {
           "vllm:num_requests_running{model_name=\"m\",engine=\"0\"} 0.0",
           "vllm:num_requests_waiting{",
           "vllm:kv_cache_usage_perc{",
           "vllm:num_preemptions_total{",
           "vllm:prompt_tokens_total{",
           "vllm:generation_tokens_total{",
           "vllm:request_success_total{model_name=\"m\",engine=\"0\",finished_reason=\"stop\"} 0.0",
           "vllm:request_success_total{model_name=\"m\",engine=\"0\",finished_reason=\"length\"}",
           "vllm:request_success_total{model_name=\"m\",engine=\"0\",finished_reason=\"abort\"}",
           "vllm:time_to_first_token_seconds_bucket{model_name=\"m\",engine=\"0\",le=\"0.001\"} 0",
           "vllm:inter_token_latency_seconds_sum{",
           "vllm:request_time_per_output_token_seconds_count{",
           "vllm:e2e_request_latency_seconds_bucket{",
           "vllm:request_prompt_tokens_bucket{model_name=\"m\",engine=\"0\",le=\"1000.0\"} 0",
           "vllm:request_generation_tokens_bucket{",
           "vllm:request_params_n_bucket{",
           "vllm:request_params_max_tokens_bucket{",
           "vllm:iteration_tokens_total_bucket{",
           "vllm:request_queue_time_seconds_bucket{",
           "vllm:request_prefill_time_seconds_bucket{model_name=\"m\",engine=\"0\",le=\"0.3\"} 0",
           "vllm:request_decode_time_seconds_bucket{",
           "vllm:request_inference_time_seconds_bucket{",
           "vllm:request_num_preemptions_bucket{model_name=\"m\",engine=\"0\",le=\"0.0\"} 0",
           "vllm:num_requests_waiting_by_reason{model_name=\"m\",engine=\"0\",reason=\"capacity\"} "
           "0",
           "vllm:num_requests_waiting_by_reason{model_name=\"m\",engine=\"0\",reason=\"deferred\"} "
           "0",
           "vllm:cache_config_info{model_name=\"m\",engine=\"0\",block_size=\"16\","
           "num_gpu_blocks=\"9\"} 1.0",
           "vllm:prompt_tokens_cached_total{",
           "vllm:spec_decode_num_drafts_total{model_name=\"m\",engine=\"0\"} 2.0",
           "vllm:spec_decode_num_draft_tokens_total{",
           "vllm:spec_decode_num_accepted_tokens_total{",
           "vllm:spec_decode_num_accepted_tokens_per_pos_total{model_name=\"m\",engine=\"0\","
           "position=\"1\"} 5.0",
           "position=\"2\"} 1.0",
           "outrider:spec_decode_num_drafts_total{",
           "outrider:draft_up{",
           "outrider:rounds_total{",
           "outrider:round_draft_wait_seconds_bucket{",
       }) {
    EXPECT_NE(text.find(line), std::string::npos) << line;
  }
  EXPECT_EQ(text.find("vllm:draft_up"), std::string::npos);
}

TEST(ServingMetrics, SaysWhatTheProcessHolds) {
  const ServingMetrics metrics("m", 1000, 3);
  const std::string text = metrics.render({"outrider", "vllm"});
  const std::string line = "\nprocess_resident_memory_bytes ";
  const size_t at = text.find(line);
  ASSERT_NE(at, std::string::npos);
  EXPECT_EQ(text.find(line, at + 1), std::string::npos);  // once, not once a namespace
  const double bytes = std::stod(text.substr(at + line.size()));
  EXPECT_GT(bytes, 1e5);
  EXPECT_LT(bytes, 1e12);
  for (const char* name : {"weight_bytes", "kv_cache_bytes", "buffer_bytes"}) {
    EXPECT_NE(text.find(fmt::format("\noutrider:{}{{", name)), std::string::npos) << name;
  }
}

}  // namespace
}  // namespace outrider
