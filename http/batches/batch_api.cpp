// See batch_api.h.
#include "http/batches/batch_api.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "http/api/json_fields.h"
#include "http/batches/multipart.h"
#include "http/wire/api_error.h"
#include "runtime/base/error.h"
#include "runtime/base/files/files.h"
#include "runtime/base/log.h"

namespace outrider {
namespace {

constexpr size_t kMaxFilenameBytes = 1024;
constexpr size_t kPieceBytes = 256u << 10;
// OpenAI's bounds.
constexpr size_t kMaxMetadata = 16;
constexpr size_t kMaxMetadataKey = 64;
constexpr size_t kMaxMetadataValue = 512;

// "/v1/files/ID/content" as {"files", "ID", "content"}.
std::vector<std::string> segments_of(std::string_view path) {
  std::vector<std::string> segments;
  while (!path.empty()) {
    path.remove_prefix(1);
    const size_t end = std::min(path.find('/'), path.size());
    segments.emplace_back(path.substr(0, end));
    path.remove_prefix(end);
  }
  if (!segments.empty() && segments.back().empty()) segments.pop_back();
  if (!segments.empty() && segments.front() == "v1") segments.erase(segments.begin());
  return segments;
}

// Values of these are numbers, ids and words: no escapes are looked for.
std::string_view query_value(std::string_view query, std::string_view name) {
  while (!query.empty()) {
    const std::string_view field = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(query.size(), field.size() + 1));
    if (field.starts_with(name) && field.substr(name.size()).starts_with('='))
      return field.substr(name.size() + 1);
  }
  return {};
}

size_t limit_of(std::string_view query, size_t standard, size_t most) {
  const std::string_view text = query_value(query, "limit");
  if (text.empty()) return standard;
  size_t limit = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), limit);
  if (error != std::errc{} || end != text.data() + text.size() || limit < 1 || limit > most)
    throw bad_param("limit", fmt::format("'limit' must be a number of 1 to {}", most));
  return limit;
}

struct Entry {
  std::string id;
  std::string json;
};

// entries: oldest first, as ids are.
std::string page_of(std::vector<Entry> entries, std::string_view query, size_t limit) {
  const std::string_view order = query_value(query, "order");
  if (!order.empty() && order != "asc" && order != "desc")
    throw bad_param("order", "'order' must be asc or desc");
  if (order != "asc") std::reverse(entries.begin(), entries.end());
  const std::string_view after = query_value(query, "after");
  if (!after.empty()) {
    const auto found = std::ranges::find(entries, after, &Entry::id);
    if (found == entries.end())
      throw bad_param("after", fmt::format("there is no '{}' to begin after", after));
    entries.erase(entries.begin(), found + 1);
  }
  const bool has_more = entries.size() > limit;
  if (has_more) entries.resize(limit);
  const auto id_or_null = [&](bool first) {
    if (entries.empty()) return std::string("null");
    return json_quoted(first ? entries.front().id : entries.back().id);
  };
  std::string data;
  for (const Entry& entry : entries) data += (data.empty() ? "" : ",") + entry.json;
  return fmt::format(R"({{"object":"list","data":[{}],"first_id":{},"last_id":{},"has_more":{}}})",
                     data,
                     id_or_null(true),
                     id_or_null(false),
                     has_more);
}

[[noreturn]] void refuse_unknown(const char* what, const std::string& id) {
  throw ApiError(404, fmt::format("there is no {} '{}'", what, id), "id");
}

std::string metadata_of(const JsonFields& body) {
  const std::optional<JsonFields> metadata = body.object("metadata");
  if (!metadata) return "null";
  const std::vector<std::string> names = metadata->names();
  bool is_good = names.size() <= kMaxMetadata;
  for (const std::string& name : names) {
    const std::string value = metadata->needed_text(name);
    is_good = is_good && name.size() <= kMaxMetadataKey && value.size() <= kMaxMetadataValue;
  }
  if (!is_good) {
    throw body.fault("metadata",
                     fmt::format("has at most {} fields, with names of {} and texts of "
                                 "{} bytes",
                                 kMaxMetadata,
                                 kMaxMetadataKey,
                                 kMaxMetadataValue));
  }
  return metadata->dump();
}

// A file from its begin to its end, in pieces.
class FileContent : public ByteSource {
 public:
  explicit FileContent(const std::filesystem::path& path) : file_(path) {}

  bool next(std::string* out) override {
    const auto left = file_.size_bytes() - offset_;
    const size_t before = out->size();
    const size_t taken = std::min<uint64_t>(left, kPieceBytes);
    out->resize(before + taken);
    file_.read_at(offset_, out->data() + before, taken);
    offset_ += taken;
    return offset_ < file_.size_bytes();
  }

 private:
  const ReadOnlyFile file_;
  uint64_t offset_ = 0;
};

// The methods of a path: of a list, of one of it, of something of that one. Empty: no such path.
std::vector<std::string> methods_of(const std::vector<std::string>& path) {
  const bool is_files = path.front() == "files";
  if (path.size() == 1) return {"GET", "POST"};
  if (path.size() == 2 && is_files) return {"GET", "DELETE"};
  if (path.size() == 2) return {"GET"};
  if (path.size() == 3 && is_files && path[2] == "content") return {"GET"};
  if (path.size() == 3 && !is_files && path[2] == "cancel") return {"POST"};
  return {};
}

}  // namespace

bool is_batch_path(std::string_view path) {
  const std::vector<std::string> segments = segments_of(path);
  return !segments.empty() && (segments.front() == "files" || segments.front() == "batches");
}

bool is_file_upload(std::string_view method, std::string_view path) {
  const std::vector<std::string> segments = segments_of(path);
  return method == "POST" && segments.size() == 1 && segments.front() == "files";
}

BatchApi::BatchApi(FileStore& files,
                   BatchQueue& queue,
                   ServingMetrics& metrics,
                   int64_t max_file_bytes)
    : files_(files), queue_(queue), metrics_(metrics), max_file_bytes_(max_file_bytes) {}

ServerResponse BatchApi::handle(const ServiceCall& call) {
  ApiError fault(500, "internal error");
  try {
    return route(call);
  } catch (const ApiError& error) {
    fault = error;
  } catch (const std::exception& error) {
    log_error("call to {} failed: {}", call.path, error.what());
  }
  metrics_.requests_refused(fault.status()).add();
  ServerResponse reply{.status = fault.status(), .body = error_json(fault)};
  if (fault.status() == 405) {
    const std::vector<std::string> methods = methods_of(segments_of(call.path));
    reply.headers.emplace_back("Allow", fmt::format("{}", fmt::join(methods, ", ")));
  }
  return reply;
}

ServerResponse BatchApi::route(const ServiceCall& call) {
  const std::vector<std::string> path = segments_of(call.path);
  const std::vector<std::string> methods = methods_of(path);
  if (methods.empty()) throw ApiError(404, "there is no such path");
  if (std::find(methods.begin(), methods.end(), call.method) == methods.end())
    throw ApiError(405, fmt::format("{} needs {}", call.path, fmt::join(methods, " or ")));
  const bool is_files = path.front() == "files";
  ServerResponse reply;
  if (path.size() == 1 && call.method == "POST") {
    reply.body = is_files ? add_file(call) : create_batch(call);
  } else if (path.size() == 1) {
    reply.body = is_files ? list_files(call.query) : list_batches(call.query);
  } else if (is_files) {
    if (path.size() == 3) return content_of(path[1]);
    if (call.method == "DELETE") {
      reply.body = delete_file(path[1]);
      return reply;
    }
    const std::optional<StoredFile> file = files_.find(path[1]);
    if (!file) refuse_unknown("file", path[1]);
    reply.body = file_json(*file);
  } else {
    const auto record = path.size() == 3 ? queue_.cancel(path[1]) : queue_.find(path[1]);
    if (!record) refuse_unknown("batch", path[1]);
    reply.body = batch_json(*record);
  }
  return reply;
}

std::string BatchApi::add_file(const ServiceCall& call) {
  const FormPart* file = nullptr;
  std::optional<std::string> purpose;
  const std::vector<FormPart> parts = read_multipart(call.content_type, call.body.text);
  for (const FormPart& part : parts) {
    const bool is_file = part.name == "file";
    if (!is_file && part.name != "purpose") {
      throw bad_param(part.name,
                      fmt::format("'{}' is not supported: a file is kept until it is deleted, and "
                                  "its form has 'file' and 'purpose'",
                                  part.name));
    }
    if (is_file ? file != nullptr : purpose.has_value())
      throw bad_param(part.name, fmt::format("'{}' comes twice", part.name));
    if (is_file) {
      file = &part;
    } else {
      purpose = std::string(part.content);
    }
  }
  if (file == nullptr || !file->filename) throw bad_param("file", "'file' is missing");
  if (purpose != "batch") throw bad_param("purpose", "'purpose' must be batch");
  if (file->filename->size() > kMaxFilenameBytes)
    throw bad_param("file", fmt::format("its name is longer than {} bytes", kMaxFilenameBytes));
  if (file->content.empty()) throw bad_param("file", "'file' is empty");
  if (static_cast<int64_t>(file->content.size()) > max_file_bytes_) {
    throw ApiError(413,
                   fmt::format("the file is larger than the limit of {} bytes "
                               "(--max-batch-file-bytes)",
                               max_file_bytes_),
                   "file");
  }
  return file_json(files_.add(file->content, *file->filename, *purpose));
}

std::string BatchApi::list_files(std::string_view query) const {
  const std::string_view purpose = query_value(query, "purpose");
  std::vector<Entry> entries;
  for (const StoredFile& file : files_.list()) {
    if (purpose.empty() || file.purpose == purpose) entries.push_back({file.id, file_json(file)});
  }
  return page_of(std::move(entries), query, limit_of(query, 10000, 10000));
}

std::string BatchApi::delete_file(const std::string& id) {
  if (!queue_.remove_file(id)) refuse_unknown("file", id);
  return fmt::format(R"({{"id":{},"object":"file","deleted":true}})", json_quoted(id));
}

ServerResponse BatchApi::content_of(const std::string& id) const {
  if (!files_.find(id)) refuse_unknown("file", id);
  ServerResponse reply;
  reply.content_type = "application/octet-stream";
  try {
    reply.stream = std::make_unique<FileContent>(files_.content_path(id));
  } catch (const Error&) {  // deleted meanwhile
    refuse_unknown("file", id);
  }
  return reply;
}

std::string BatchApi::create_batch(const ServiceCall& call) {
  const JsonFields body = JsonFields::parse(call.body.text);
  const std::string endpoint = body.needed_text("endpoint");
  if (!is_batch_endpoint(endpoint)) {
    throw body.fault("endpoint",
                     fmt::format("must be /v1/completions, /v1/chat/completions or "
                                 "/v1/responses, not '{}'",
                                 endpoint));
  }
  if (body.needed_text("completion_window") != "24h")
    throw body.fault("completion_window", "must be 24h");
  if (body.has("output_expires_after"))
    throw body.fault("output_expires_after",
                     "is not supported: a file is kept until it is deleted");
  return batch_json(queue_.create(body.needed_text("input_file_id"), endpoint, metadata_of(body)));
}

std::string BatchApi::list_batches(std::string_view query) const {
  std::vector<Entry> entries;
  for (const BatchRecord& record : queue_.list())
    entries.push_back({record.id, batch_json(record)});
  return page_of(std::move(entries), query, limit_of(query, 20, 100));
}

}  // namespace outrider
