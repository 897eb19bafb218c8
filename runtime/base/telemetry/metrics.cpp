// See metrics.h.
#include "runtime/base/telemetry/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "runtime/base/error.h"

namespace outrider {
namespace {

std::string number_text(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  if (value == std::floor(value) && std::fabs(value) < 1e15) return fmt::format("{:.1f}", value);
  return fmt::format("{}", value);
}

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\' || c == '"') out += '\\';
    if (c == '\n') {
      out += "\\n";
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace

Histogram::Histogram(std::vector<double> upper_bounds)
    : upper_bounds_(std::move(upper_bounds)),
      buckets_(std::make_unique<std::atomic<uint64_t>[]>(upper_bounds_.size() + 1)) {
  OUTRIDER_CHECK(std::is_sorted(upper_bounds_.begin(), upper_bounds_.end()));
}

void Histogram::observe(double value) {
  const auto bound = std::lower_bound(upper_bounds_.begin(), upper_bounds_.end(), value);
  const auto bucket = static_cast<size_t>(bound - upper_bounds_.begin());
  buckets_[bucket].fetch_add(1, std::memory_order_relaxed);
  sum_.fetch_add(value, std::memory_order_relaxed);
}

MetricsRegistry::MetricsRegistry(MetricLabels common_labels)
    : common_labels_(std::move(common_labels)) {}

MetricsRegistry::Sample& MetricsRegistry::add_sample(const MetricName& name,
                                                     Kind kind,
                                                     MetricLabels labels) {
  auto family = std::find_if(families_.begin(), families_.end(), [&](const Family& f) {
    return f.name.name == name.name;
  });
  if (family == families_.end()) {
    families_.push_back(Family{.name = name, .kind = kind, .samples = {}});
    family = families_.end() - 1;
  }
  OUTRIDER_CHECK(family->kind == kind);
  for (Sample& sample : family->samples) {
    if (sample.labels == labels) return sample;
  }
  family->samples.push_back(Sample{std::move(labels), nullptr, nullptr, nullptr});
  return family->samples.back();
}

Counter& MetricsRegistry::counter(const MetricName& name, MetricLabels labels) {
  std::lock_guard lock(mutex_);
  Sample& sample = add_sample(name, Kind::kCounter, std::move(labels));
  if (!sample.counter) sample.counter = std::make_unique<Counter>();
  return *sample.counter;
}

Gauge& MetricsRegistry::gauge(const MetricName& name, MetricLabels labels) {
  std::lock_guard lock(mutex_);
  Sample& sample = add_sample(name, Kind::kGauge, std::move(labels));
  if (!sample.gauge) sample.gauge = std::make_unique<Gauge>();
  return *sample.gauge;
}

Histogram& MetricsRegistry::histogram(const MetricName& name,
                                      std::vector<double> upper_bounds,
                                      MetricLabels labels) {
  std::lock_guard lock(mutex_);
  Sample& sample = add_sample(name, Kind::kHistogram, std::move(labels));
  if (!sample.histogram) sample.histogram = std::make_unique<Histogram>(std::move(upper_bounds));
  return *sample.histogram;
}

std::string MetricsRegistry::label_text(const MetricLabels& labels, std::string_view le) const {
  std::string out;
  const auto append = [&out](std::string_view key, std::string_view value) {
    out += fmt::format("{}{}=\"{}\"", out.empty() ? "" : ",", key, escaped(value));
  };
  for (const auto& [key, value] : common_labels_) append(key, value);
  for (const auto& [key, value] : labels) append(key, value);
  if (!le.empty()) append("le", le);
  return out.empty() ? out : "{" + out + "}";
}

void MetricsRegistry::render_family(const Family& family,
                                    const std::string& full_name,
                                    std::string* out) const {
  constexpr const char* kKinds[] = {"counter", "gauge", "histogram"};
  *out += fmt::format("# HELP {} {}\n", full_name, family.name.help);
  *out += fmt::format("# TYPE {} {}\n", full_name, kKinds[static_cast<size_t>(family.kind)]);
  for (const Sample& sample : family.samples) {
    if (family.kind != Kind::kHistogram) {
      const double value = sample.counter ? sample.counter->value() : sample.gauge->value();
      *out += fmt::format("{}{} {}\n", full_name, label_text(sample.labels), number_text(value));
      continue;
    }
    // Each bucket is read once, so that count equals the +Inf bucket even while others observe.
    const Histogram& histogram = *sample.histogram;
    uint64_t cumulative = 0;
    for (size_t i = 0; i <= histogram.upper_bounds().size(); ++i) {
      cumulative += histogram.bucket_count(i);
      const std::string le =
          i < histogram.upper_bounds().size() ? number_text(histogram.upper_bounds()[i]) : "+Inf";
      *out += fmt::format("{}_bucket{} {}\n", full_name, label_text(sample.labels, le), cumulative);
    }
    const std::string labels = label_text(sample.labels);
    *out += fmt::format("{}_count{} {}\n", full_name, labels, cumulative);
    *out += fmt::format("{}_sum{} {}\n", full_name, labels, number_text(histogram.sum()));
  }
}

std::string MetricsRegistry::render(const std::vector<std::string>& namespaces) const {
  std::lock_guard lock(mutex_);
  std::string out;
  for (const Family& family : families_) {
    for (size_t i = 0; i < namespaces.size(); ++i) {
      if (i > 0 && family.name.scope == MetricScope::kOwn) break;
      render_family(family, namespaces[i] + ":" + family.name.name, &out);
      if (!family.name.old_name.empty())
        render_family(family, namespaces[i] + ":" + family.name.old_name, &out);
    }
  }
  return out;
}

}  // namespace outrider
