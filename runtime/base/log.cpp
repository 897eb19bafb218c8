// See log.h.
#include "runtime/base/log.h"

#include <atomic>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <mutex>

#include "runtime/base/error.h"

namespace outrider {
namespace {

std::atomic<LogLevel> minimum_level{LogLevel::kInfo};
std::mutex process_name_mutex;
std::string process_name = "outrider";
thread_local std::string thread_name;

std::string current_name() {
  if (!thread_name.empty()) return thread_name;
  std::lock_guard lock(process_name_mutex);
  return process_name;
}

std::string escaped(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  return out;
}

std::string clock_time() {
  const auto now = std::chrono::system_clock::now();
  const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
  const auto since_epoch = now.time_since_epoch();
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(since_epoch).count() % 1000;
  std::tm parts{};
  localtime_r(&seconds, &parts);
  return fmt::format("{:02}:{:02}:{:02}.{:03}", parts.tm_hour, parts.tm_min, parts.tm_sec, ms);
}

}  // namespace

void set_process_log_name(std::string name) {
  std::lock_guard lock(process_name_mutex);
  process_name = std::move(name);
}

void set_thread_log_name(std::string name) { thread_name = std::move(name); }

void set_log_level(LogLevel minimum) { minimum_level = minimum; }

LogLevel log_level_from_name(std::string_view name) {
  if (name == "debug") return LogLevel::kDebug;
  if (name == "info") return LogLevel::kInfo;
  if (name == "warning") return LogLevel::kWarning;
  if (name == "error") return LogLevel::kError;
  throw Error(fmt::format("log level '{}' is not one of debug, info, warning, error", name));
}

void log_line(LogLevel level, std::string_view text) {
  if (level < minimum_level.load()) return;
  const char letter = "DIWE"[static_cast<int>(level)];
  const std::string line =
      fmt::format("{} {} {} {}\n", clock_time(), letter, current_name(), escaped(text));
  std::fwrite(line.data(), 1, line.size(), stderr);
}

}  // namespace outrider
