// Counters, gauges and histograms in the Prometheus text format. Any thread may update a metric
// (atomics, no lock); render() is called by the /metrics route. Metrics are made once at start-up
// and live as long as the registry.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace outrider {

using MetricLabels = std::vector<std::pair<std::string, std::string>>;

class Counter {
 public:
  void add(double amount = 1.0) { value_.fetch_add(amount, std::memory_order_relaxed); }
  // Of what is counted elsewhere; never less than before.
  void set_total(uint64_t total) {
    value_.store(static_cast<double>(total), std::memory_order_relaxed);
  }
  double value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<double> value_{0.0};
};

class Gauge {
 public:
  void set(double value) { value_.store(value, std::memory_order_relaxed); }
  void add(double amount) { value_.fetch_add(amount, std::memory_order_relaxed); }
  double value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<double> value_{0.0};
};

class Histogram {
 public:
  // Upper bounds, ascending; +Inf is added.
  explicit Histogram(std::vector<double> upper_bounds);
  void observe(double value);
  const std::vector<double>& upper_bounds() const { return upper_bounds_; }
  uint64_t bucket_count(size_t i) const { return buckets_[i].load(std::memory_order_relaxed); }
  double sum() const { return sum_.load(std::memory_order_relaxed); }

 private:
  std::vector<double> upper_bounds_;
  std::unique_ptr<std::atomic<uint64_t>[]> buckets_;  // upper_bounds_.size() + 1
  std::atomic<double> sum_{0.0};
};

// Where a family is shown: under every namespace, or only under the first (our own).
enum class MetricScope : uint8_t { kShared, kOwn };

struct MetricName {
  std::string name;  // without a namespace; counters end in _total
  std::string help;
  MetricScope scope = MetricScope::kShared;
  std::string old_name = {};  // of an earlier version, printed too for one more version
};

class MetricsRegistry {
 public:
  // Labels that every sample carries, before its own.
  explicit MetricsRegistry(MetricLabels common_labels = {});

  // The reference stays valid as long as the registry. The same name with other labels joins one
  // family; its kind, help and scope are those of the first.
  Counter& counter(const MetricName& name, MetricLabels labels = {});
  Gauge& gauge(const MetricName& name, MetricLabels labels = {});
  Histogram& histogram(const MetricName& name,
                       std::vector<double> upper_bounds,
                       MetricLabels labels = {});

  // Prometheus text, version 0.0.4. namespaces: e.g. {"outrider", "vllm"} gives outrider:name and
  // vllm:name.
  std::string render(const std::vector<std::string>& namespaces) const;

 private:
  enum class Kind : uint8_t { kCounter, kGauge, kHistogram };
  struct Sample {
    MetricLabels labels;
    std::unique_ptr<Counter> counter;
    std::unique_ptr<Gauge> gauge;
    std::unique_ptr<Histogram> histogram;
  };
  struct Family {
    MetricName name;
    Kind kind = Kind::kCounter;
    std::deque<Sample> samples;
  };

  Sample& add_sample(const MetricName& name, Kind kind, MetricLabels labels);
  void render_family(const Family& family, const std::string& full_name, std::string* out) const;
  std::string label_text(const MetricLabels& labels, std::string_view le = {}) const;

  MetricLabels common_labels_;
  mutable std::mutex mutex_;  // guards the list, not the values
  std::deque<Family> families_;
};

}  // namespace outrider
