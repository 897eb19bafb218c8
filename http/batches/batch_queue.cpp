// See batch_queue.h.
#include "http/batches/batch_queue.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "http/wire/api_error.h"
#include "runtime/base/error.h"
#include "runtime/base/files/new_file.h"
#include "runtime/base/log.h"

namespace outrider {
namespace {

namespace fs = std::filesystem;

constexpr auto kLookInterval = std::chrono::milliseconds(100);

// Of a batch, made from its own: they are known before they exist.
std::string output_id(const std::string& batch_id) {
  return "file-" + batch_id.substr(batch_id.find('_') + 1) + "-output";
}
std::string error_id(const std::string& batch_id) {
  return "file-" + batch_id.substr(batch_id.find('_') + 1) + "-error";
}

}  // namespace

BatchQueue::BatchQueue(FileStore& files, Setup setup, Limits limits)
    : files_(files),
      setup_(std::move(setup)),
      limits_(limits),
      folder_(files.folder_for("batches")) {
  load();
  checker_ = std::thread([this] { check_new_ones(); });
  runner_ = std::thread([this] { run_next_ones(); });
}

BatchQueue::~BatchQueue() {
  begin_stop();
  checker_.join();
  runner_.join();
}

void BatchQueue::begin_stop() {
  std::lock_guard lock(mutex_);
  stopping_ = true;
  changed_.notify_all();
}

void BatchQueue::load() {
  std::set<std::string> kept;
  for (const auto& entry : fs::directory_iterator(folder_)) {
    if (entry.path().extension() != ".json") {
      std::error_code ignored;
      fs::remove(entry.path(), ignored);  // half a file of an earlier life
      continue;
    }
    try {
      const BatchRecord record = read_batch_record(entry.path());
      if (record.id != entry.path().stem())
        throw Error(fmt::format("{}: has another id", entry.path().string()));
      if (!record.has_ended()) kept.insert({output_id(record.id), error_id(record.id)});
      records_.emplace(record.id, record);
    } catch (const Error& error) {
      log_warning("left alone: {}", error.what());
    }
  }
  files_.sweep(kept);
  if (!kept.empty()) log_info("{} batches go on", kept.size() / 2);
}

bool BatchQueue::save(const BatchRecord& record) const {
  try {
    NewFile file(folder_ / (record.id + ".json"), 0600);
    file.append(batch_json(record));
    file.finish();
    return true;
  } catch (const std::exception& error) {
    log_error("{}", error.what());
    return false;
  }
}

// The oldest one that has ended is forgotten; its files stay.
void BatchQueue::make_room() {
  if (records_.size() < limits_.max_batches) return;
  const auto ended =
      std::ranges::find_if(records_, [](const auto& entry) { return entry.second.has_ended(); });
  if (ended == records_.end())
    throw ApiError(429, fmt::format("{} batches have not ended yet", records_.size()));
  std::error_code ignored;
  fs::remove(folder_ / (ended->first + ".json"), ignored);
  records_.erase(ended);
}

BatchRecord BatchQueue::create(const std::string& input_file_id,
                               const std::string& endpoint,
                               const std::string& metadata) {
  std::lock_guard lock(mutex_);
  if (stopping_) throw ApiError(503, "draining: no new batches are taken", {}, "draining");
  if (!files_.find(input_file_id))
    throw bad_param("input_file_id", fmt::format("there is no file '{}'", input_file_id));
  make_room();
  BatchRecord record;
  record.id = new_stored_id("batch_");
  record.endpoint = endpoint;
  record.input_file_id = input_file_id;
  record.metadata = metadata;
  record.enter(BatchStatus::kValidating);
  if (!save(record)) throw ApiError(500, "the batch cannot be written to the disk");
  records_[record.id] = record;
  changed_.notify_all();
  return record;
}

std::optional<BatchRecord> BatchQueue::find(const std::string& id) const {
  std::lock_guard lock(mutex_);
  const auto found = records_.find(id);
  return found == records_.end() ? std::nullopt : std::optional(found->second);
}

std::vector<BatchRecord> BatchQueue::list() const {
  std::lock_guard lock(mutex_);
  std::vector<BatchRecord> all;
  for (const auto& [id, record] : records_) all.push_back(record);
  return all;
}

std::optional<BatchRecord> BatchQueue::cancel(const std::string& id) {
  std::lock_guard lock(mutex_);
  const auto found = records_.find(id);
  if (found == records_.end()) return std::nullopt;
  BatchRecord& record = found->second;
  if (record.has_ended()) throw ApiError(409, fmt::format("{} has ended already", id));
  if (record.status == BatchStatus::kFinalizing || record.status == BatchStatus::kCancelling)
    return record;
  record.enter(BatchStatus::kCancelling);
  save(record);
  const BatchRecord answer = record;
  if (running_ != id) end(&record, BatchStatus::kCancelled);
  changed_.notify_all();
  return answer;
}

bool BatchQueue::remove_file(const std::string& id) {
  std::lock_guard lock(mutex_);
  for (const auto& [batch, record] : records_) {
    if (record.input_file_id == id && !record.has_ended())
      throw ApiError(409, fmt::format("{} is the input of {}, which has not ended", id, batch));
  }
  return files_.remove(id);
}

BatchRecord BatchQueue::copy_of(const std::string& id) const {
  std::lock_guard lock(mutex_);
  return records_.at(id);
}

// With the lock held: the oldest batch in one of these, or nothing.
std::string BatchQueue::next_of(std::initializer_list<BatchStatus> statuses) const {
  for (const auto& [id, record] : records_) {
    if (std::find(statuses.begin(), statuses.end(), record.status) != statuses.end()) return id;
  }
  return {};
}

BatchInput BatchQueue::read_input(const BatchRecord& record) const {
  BatchInput input;
  try {
    input = read_batch_input(
        files_.content_path(record.input_file_id).string(),
        setup_.context,
        {.url = record.endpoint, .max_lines = limits_.max_lines, .max_faults = limits_.max_faults});
    if (input.faults.empty() && input.lines.empty())
      input.faults.push_back({0, "the input file has no lines", {}, "empty_file"});
  } catch (const std::exception& error) {
    log_error("{}: {}", record.id, error.what());
    input.faults.push_back({0, "the input file cannot be read", {}, "server_error"});
  }
  return input;
}

// ---- checking ----

void BatchQueue::check_new_ones() {
  set_thread_log_name("batch check");
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    const std::string id = next_of({BatchStatus::kValidating});
    if (id.empty()) {
      changed_.wait(lock);
      continue;
    }
    lock.unlock();
    check(id);
    lock.lock();
  }
}

void BatchQueue::check(const std::string& id) {
  BatchInput input = read_input(copy_of(id));
  std::lock_guard lock(mutex_);
  const auto found = records_.find(id);
  if (found == records_.end() || found->second.status != BatchStatus::kValidating)
    return;  // cancelled meanwhile
  BatchRecord& record = found->second;
  if (!input.faults.empty()) return fail(&record, std::move(input.faults));
  record.num_lines = static_cast<int64_t>(input.lines.size());
  record.enter(BatchStatus::kInProgress);
  save(record);
  changed_.notify_all();
}

// ---- running ----

void BatchQueue::run_next_ones() {
  set_thread_log_name("batch");
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    running_ =
        next_of({BatchStatus::kInProgress, BatchStatus::kFinalizing, BatchStatus::kCancelling});
    if (running_.empty()) {
      changed_.wait(lock);
      continue;
    }
    const std::string id = running_;
    lock.unlock();
    run(id);
    lock.lock();
    running_.clear();
  }
}

void BatchQueue::run(const std::string& id) {
  const BatchRecord before = copy_of(id);
  BatchInput input = read_input(before);
  bool is_whole = false;
  std::string problem;
  // Lines that were good may be so no more: the server was started with other options.
  if (before.status != BatchStatus::kCancelling && input.faults.empty()) {
    log_info("{} begins: {} lines", id, input.lines.size());
    try {
      is_whole = answer(before, std::move(input.lines));
    } catch (const std::exception& error) {
      problem = error.what();
    }
  }
  std::lock_guard lock(mutex_);
  BatchRecord& record = records_.at(id);
  if (record.status == BatchStatus::kCancelling) {
    end(&record, BatchStatus::kCancelled);
  } else if (!input.faults.empty()) {
    fail(&record, std::move(input.faults));
  } else if (!problem.empty()) {
    log_error("{}: {}", id, problem);
    fail(&record, {{0, "the results cannot be written", {}, "server_error"}});
  } else if (is_whole) {
    record.enter(BatchStatus::kFinalizing);
    save(record);
    end(&record, BatchStatus::kCompleted);
  } else {
    save(record);
  }
}

bool BatchQueue::answer(const BatchRecord& record, std::vector<BatchLine> lines) {
  std::set<std::string> ids;
  for (const BatchLine& line : lines) ids.insert(line.custom_id);
  ResultFile outputs(files_.content_path(output_id(record.id)).string(), ids, true);
  ResultFile errors(files_.content_path(error_id(record.id)).string(), ids, true);
  std::erase_if(lines,
                [&](const BatchLine& line) { return outputs.answered().contains(line.custom_id); });
  const auto keep = [&](const BatchLine&, const BatchResult& result) {
    (result.status == 200 ? outputs : errors).append(result);
  };
  const size_t num_before = outputs.answered().size();
  BatchRun run({.ask = setup_.ask,
                .keep = keep,
                .num_workers = setup_.num_workers,
                .num_places = setup_.num_places,
                .least_priority = setup_.least_priority},
               std::move(lines));
  const bool is_whole = run.run([&] {
    count(record.id, num_before, run);
    return look(record.id);
  });
  count(record.id, num_before, run);
  outputs.finish();
  errors.finish();
  return is_whole;
}

BatchRun::Wish BatchQueue::look(const std::string& id) {
  std::unique_lock lock(mutex_);
  const BatchRecord& record = records_.at(id);
  const auto is_over = [&] { return stopping_ || record.status == BatchStatus::kCancelling; };
  changed_.wait_for(lock, kLookInterval, is_over);
  if (record.status == BatchStatus::kCancelling) return BatchRun::Wish::kCut;
  return stopping_ ? BatchRun::Wish::kStop : BatchRun::Wish::kGo;
}

void BatchQueue::count(const std::string& id, size_t num_before, const BatchRun& run) {
  const BatchRun::Counts counts = run.counts();
  const size_t num_failed = std::min(counts.num_failed, counts.num_done);
  std::lock_guard lock(mutex_);
  BatchRecord& record = records_.at(id);
  record.num_failed = static_cast<int64_t>(num_failed);
  record.num_completed = static_cast<int64_t>(num_before + counts.num_done - num_failed);
}

// With the lock held: what was answered becomes files that the API shows.
void BatchQueue::end(BatchRecord* record, BatchStatus status) {
  const auto show = [&](const std::string& id, const char* name) -> std::string {
    std::error_code none;
    const auto num_bytes = fs::file_size(files_.content_path(id), none);
    if (none) return {};
    if (num_bytes > 0)
      return files_.adopt(id, fmt::format("{}_{}.jsonl", record->id, name), "batch_output").id;
    fs::remove(files_.content_path(id), none);
    return {};
  };
  try {
    record->output_file_id = show(output_id(record->id), "output");
    record->error_file_id = show(error_id(record->id), "error");
  } catch (const std::exception& error) {
    log_error("{}: {}", record->id, error.what());
    status = BatchStatus::kFailed;
    record->faults.push_back({0, "the results cannot be written", {}, "server_error"});
  }
  record->enter(status);
  save(*record);
  log_info("{}: {} of {} lines answered, {} failed",
           record->id,
           record->num_completed,
           record->num_lines,
           record->num_failed);
}

void BatchQueue::fail(BatchRecord* record, std::vector<BatchLineFault> faults) {
  record->faults = std::move(faults);
  end(record, BatchStatus::kFailed);
}

}  // namespace outrider
