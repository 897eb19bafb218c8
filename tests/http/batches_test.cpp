// /v1/files and /v1/batches over the fake engine: what is kept, what is refused, and that a batch
// goes on after whatever ended the server.
#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "http/batches/batch_api.h"
#include "http/batches/multipart.h"
#include "tests/base/error_sentence.h"
#include "tests/http/server_fixture.h"

namespace outrider::testing {
namespace {

namespace fs = std::filesystem;

constexpr const char* kForm = "multipart/form-data; boundary=b";

std::string form(const std::string& content,
                 const std::string& purpose = "batch",
                 const std::string& filename = "in.jsonl") {
  return "--b\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\n" + purpose +
         "\r\n--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"" + filename +
         "\"\r\nContent-Type: application/octet-stream\r\n\r\n" + content + "\r\n--b--\r\n";
}

std::string line(const std::string& id, const std::string& fields = R"("max_tokens":6)") {
  return fmt::format(
      R"({{"custom_id":"{}","method":"POST","url":"/v1/completions","body":{{"prompt":"a",{}}}}})"
      "\n",
      id,
      fields);
}

std::string lines(int count, const std::string& fields = R"("max_tokens":6)") {
  std::string text;
  for (int i = 0; i < count; ++i) text += line(std::to_string(i), fields);
  return text;
}

class Batches : public Server {
 protected:
  Batches() { open(); }
  ~Batches() override {
    close();
    fs::remove_all(folder);
  }

  void open(FileStore::Limits files_limits = {}, BatchQueue::Limits queue_limits = {}) {
    files.emplace(folder, files_limits);
    BatchQueue::Setup setup{
        .ask = [this](ServiceCall call) { return service->handle(std::move(call)); },
        .context = {engine.info(), defaults, options.call, ends, formats},
        .num_workers = 2,
        .num_places = 8};
    queue.emplace(*files, std::move(setup), queue_limits);
    api.emplace(*files, *queue, metrics, 32 << 10);
  }
  void close() {
    api.reset();
    queue.reset();
    files.reset();
  }
  // As after a kill or a stop: what is on disk alone goes on.
  void reopen() {
    close();
    open();
  }

  ServerResponse reply_to(const std::string& method,
                          const std::string& path,
                          const std::string& body = "",
                          const std::string& query = "",
                          const std::string& type = "application/json") {
    return api->handle({.method = method,
                        .path = path,
                        .query = query,
                        .content_type = type,
                        .body = {.text = body}});
  }
  json json_of(const std::string& method,
               const std::string& path,
               const std::string& body = "",
               const std::string& query = "") {
    return json::parse(reply_to(method, path, body, query).body);
  }
  std::string upload(const std::string& content) {
    const ServerResponse reply = reply_to("POST", "/v1/files", form(content), "", kForm);
    EXPECT_EQ(reply.status, 200) << reply.body;
    return json::parse(reply.body).value("id", "");
  }
  std::string batch_body(const std::string& file, const std::string& more = "") {
    return fmt::format(
        R"({{"input_file_id":"{}","endpoint":"/v1/completions","completion_window":"24h"{}}})",
        file,
        more);
  }
  std::string begin(const std::string& content) {
    return json_of("POST", "/v1/batches", batch_body(upload(content))).value("id", "");
  }
  json batch(const std::string& id) { return json_of("GET", "/v1/batches/" + id); }
  json ended(const std::string& id) {
    EXPECT_TRUE(eventually([&] {
      const std::string status = batch(id)["status"];
      return status == "completed" || status == "failed" || status == "cancelled";
    })) << batch(id);
    return batch(id);
  }
  std::string content(const std::string& id) {
    const ServerResponse reply = reply_to("GET", "/v1/files/" + id + "/content");
    EXPECT_EQ(reply.status, 200);
    std::string text;
    while (reply.stream && reply.stream->next(&text)) {
    }
    return text;
  }
  std::set<std::string> ids_in(const std::string& file) {
    std::set<std::string> ids;
    std::istringstream text(content(file));
    for (std::string entry; std::getline(text, entry);)
      EXPECT_TRUE(ids.insert(json::parse(entry)["custom_id"]).second) << entry;
    return ids;
  }

  // Not by the process's number, which one that was killed may have had before.
  static fs::path new_folder() {
    std::string name = (fs::temp_directory_path() / "batches_XXXXXX").string();
    EXPECT_NE(::mkdtemp(name.data()), nullptr);
    return name;
  }

  const fs::path folder = new_folder();
  const std::vector<int32_t> ends;
  const AnswerFormats formats = choose_answer_formats({}, "auto", "auto");
  std::optional<FileStore> files;
  std::optional<BatchQueue> queue;
  std::optional<BatchApi> api;
};

TEST_F(Batches, AFileIsWhatWasSent) {
  const std::string text = "{\"a\": \"\r\n--\r\n\xff\"}\n\r\n";
  const ServerResponse reply =
      reply_to("POST", "/files/", form(text, "batch", "q.jsonl"), "", kForm);
  const json file = json::parse(reply.body);
  EXPECT_EQ(file["object"], "file");
  EXPECT_EQ(file["filename"], "q.jsonl");
  EXPECT_EQ(file["purpose"], "batch");
  EXPECT_EQ(file["bytes"], text.size());
  const std::string id = file["id"];
  EXPECT_TRUE(id.starts_with("file-"));
  reopen();
  EXPECT_EQ(json_of("GET", "/v1/files/" + id), file);
  EXPECT_EQ(content(id), text);
  EXPECT_EQ(json_of("DELETE", "/v1/files/" + id)["deleted"], true);
  for (const char* path : {"", "/content"})
    EXPECT_EQ(reply_to("GET", "/v1/files/" + id + path).status, 404);
  EXPECT_EQ(reply_to("DELETE", "/v1/files/" + id).status, 404);
  EXPECT_TRUE(fs::is_empty(folder / "files"));
}

TEST_F(Batches, AFormThatIsNotOneIsRefused) {
  const auto refused = [&](const std::string& body, int status, const std::string& part) {
    const ServerResponse reply = reply_to("POST", "/v1/files", body, "", kForm);
    EXPECT_EQ(reply.status, status) << reply.body;
    EXPECT_NE(reply.body.find(part), std::string::npos) << reply.body;
  };
  refused(form("x", "fine-tune"), 400, "'purpose' must be batch");
  refused(form(""), 400, "'file' is empty");
  refused(form(std::string(32769, 'x')), 413, "larger than the limit of 32768 bytes");
  refused("--b--", 400, "'file' is missing");
  refused(form("x") + "more", 400, "something follows its end");
  refused(form("x").substr(3), 400, "does not begin with its boundary");
  refused("--b\r\nContent-Disposition: form-data; name=\"expires_after[anchor]\"\r\n\r\n1\r\n--b--",
          400,
          "'expires_after[anchor]' is not supported");
  EXPECT_EQ(reply_to("POST", "/v1/files", "{}").status, 400);
  EXPECT_EQ(files->list().size(), 0u);
}

TEST_F(Batches, EveryBeginningOfAFormIsRefusedWithASentence) {
  const std::string whole = form("x");
  for (size_t size = 0; size + 2 < whole.size(); ++size)
    EXPECT_TRUE(fails_with([&] { read_multipart(kForm, whole.substr(0, size)); },
                           "the form is not valid: "))
        << size;
  EXPECT_EQ(read_multipart(kForm, whole).size(), 2u);
  for (const char* type : {"",
                           "multipart/form-data",
                           "multipart/form-data; boundary=",
                           "multipart/form-data; boundary=\"",
                           "text/plain; boundary=b",
                           "multipart/form-data; boundary=b; boundary=b"})
    EXPECT_TRUE(fails_with([&] { read_multipart(type, whole); }, "the form is not valid: "))
        << type;
  EXPECT_EQ(read_multipart("Multipart/Form-Data ;charset=x; boundary=\"b\"", whole).size(), 2u);
}

TEST_F(Batches, ThereIsRoomForSoManyFiles) {
  close();
  open({.max_files = 2, .max_total_bytes = 10});
  upload("12345");
  EXPECT_NE(reply_to("POST", "/v1/files", form("123456"), "", kForm).body.find("no room"),
            std::string::npos);
  const std::string id = upload("12345");
  EXPECT_EQ(reply_to("POST", "/v1/files", form("1"), "", kForm).status, 400);
  reply_to("DELETE", "/v1/files/" + id);
  upload("1");
}

TEST_F(Batches, ABatchIsAnswered) {
  const std::string more = R"(,"metadata":{"who":"me"})";
  const json created = json_of(
      "POST", "/v1/batches", batch_body(upload(lines(5) + "\n" + line("x", R"("n":3)")), more));
  EXPECT_EQ(created["status"], "validating");
  EXPECT_EQ(created["metadata"]["who"], "me");
  const json done = ended(created["id"]);
  EXPECT_EQ(done["status"], "completed") << done;
  EXPECT_EQ(done["request_counts"], json({{"total", 6}, {"completed", 6}, {"failed", 0}}));
  EXPECT_TRUE(done["error_file_id"].is_null());
  for (const char* since : {"created_at", "in_progress_at", "finalizing_at", "completed_at"})
    EXPECT_TRUE(done[since].is_number()) << since;
  EXPECT_TRUE(done["failed_at"].is_null());
  const std::string output = done["output_file_id"];
  EXPECT_EQ(ids_in(output), (std::set<std::string>{"0", "1", "2", "3", "4", "x"}));
  const json first = json::parse(content(output).substr(0, content(output).find('\n')));
  EXPECT_EQ(first["response"]["status_code"], 200);
  EXPECT_EQ(first["response"]["body"]["object"], "text_completion");
  EXPECT_EQ(json_of("GET", "/v1/files/" + output)["purpose"], "batch_output");
  reopen();
  EXPECT_EQ(batch(created["id"]), done);
}

TEST_F(Batches, LinesRunBehindEverybodyElse) {
  ended(begin(line("a") + line("b", R"("priority":5000)")));
  std::multiset<int32_t> priorities;
  for (const Request& request : engine.submitted()) priorities.insert(request.priority);
  EXPECT_EQ(priorities, (std::multiset<int32_t>{1000, 5000}));
}

TEST_F(Batches, WrongLinesAreNamedAndNothingRuns) {
  const json failed = ended(begin(line("a") + "no JSON\n" + line("a") + line("b", R"("n":0)") +
                                  R"({"custom_id":"c","url":"/v1/chat/completions","body":{}})"));
  EXPECT_EQ(failed["status"], "failed");
  const json& errors = failed["errors"]["data"];
  ASSERT_EQ(errors.size(), 4u) << errors;
  EXPECT_EQ(errors[0]["line"], 2);
  EXPECT_EQ(errors[1]["code"], "duplicate_custom_id");
  EXPECT_EQ(errors[2]["param"], "n");
  EXPECT_EQ(errors[3]["code"], "mismatched_endpoint");
  EXPECT_TRUE(failed["output_file_id"].is_null());
  EXPECT_TRUE(engine.submitted().empty());
  const json empty = ended(begin("\n\n"));
  EXPECT_EQ(empty["errors"]["data"][0]["code"], "empty_file");
  reopen();
  EXPECT_EQ(batch(failed["id"]), failed);
}

// Each key is looked for among those before it, beside the body too.
TEST_F(Batches, AnObjectOfTooManyKeysIsRefused) {
  std::string keys;
  for (int i = 0; i < 3000; ++i) keys += fmt::format(R"("k{}":1,)", i);
  EXPECT_EQ(ended(begin("{" + keys + line("a").substr(1)))["status"], "failed");
}

TEST_F(Batches, TooManyLinesAndTooManyFaults) {
  close();
  open({}, {.max_lines = 3, .max_faults = 2, .max_batches = 2});
  const json many = ended(begin(lines(9)));
  EXPECT_EQ(many["errors"]["data"].size(), 1u);
  EXPECT_EQ(many["errors"]["data"][0]["code"], "too_many_lines");
  EXPECT_EQ(ended(begin("x\nx\nx\nx\n"))["errors"]["data"].size(), 2u);
  const std::string third = begin(line("a"));
  ended(third);
  EXPECT_EQ(reply_to("GET", "/v1/batches/" + many["id"].get<std::string>()).status, 404);
  play_endless();
  const std::string running = begin(line("a", R"("max_tokens":1000000)"));
  const std::string waiting = begin(line("a", R"("max_tokens":1000000)"));
  EXPECT_EQ(reply_to("POST", "/v1/batches", batch_body(upload(line("a")))).status, 429);
  for (const std::string& id : {waiting, running}) {
    reply_to("POST", "/v1/batches/" + id + "/cancel");
    EXPECT_EQ(ended(id)["status"], "cancelled");
  }
}

TEST_F(Batches, LinesThatFailHaveAFileOfTheirOwn) {
  const json done = ended(begin(line("good") + line("long", R"("max_tokens":100000)")));
  EXPECT_EQ(done["status"], "completed");
  EXPECT_EQ(done["request_counts"], json({{"total", 2}, {"completed", 1}, {"failed", 1}}));
  EXPECT_EQ(ids_in(done["output_file_id"]), std::set<std::string>{"good"});
  const json error = json::parse(content(done["error_file_id"]));
  EXPECT_EQ(error["custom_id"], "long");
  EXPECT_EQ(error["response"]["status_code"], 400);
  EXPECT_EQ(error["error"]["code"], "context_length_exceeded");
}

TEST_F(Batches, ACancelledBatchKeepsItsAnswers) {
  std::atomic<int> asked{0};
  play_endless();
  engine.script = [&, endless = engine.script](const Request& request) {
    Script script = endless(request);
    script.endless = asked++ >= 3;
    return script;
  };
  const std::string id = begin(lines(9, R"("max_tokens":1000000)"));
  EXPECT_TRUE(eventually([&] { return batch(id)["request_counts"]["completed"] == 3; }));
  EXPECT_EQ(reply_to("DELETE", "/v1/files/" + batch(id)["input_file_id"].get<std::string>()).status,
            409);
  const std::string waiting = begin(line("w"));
  EXPECT_EQ(json_of("POST", "/v1/batches/" + waiting + "/cancel")["status"], "cancelling");
  EXPECT_EQ(batch(waiting)["status"], "cancelled");
  EXPECT_EQ(json_of("POST", "/v1/batches/" + id + "/cancel")["status"], "cancelling");
  const json done = ended(id);
  EXPECT_EQ(done["status"], "cancelled");
  EXPECT_EQ(ids_in(done["output_file_id"]).size(), 3u);
  EXPECT_EQ(reply_to("POST", "/v1/batches/" + id + "/cancel").status, 409);
  EXPECT_TRUE(eventually([&] { return engine.num_running() == 0; }));
}

TEST_F(Batches, WhatWasStoppedGoesOn) {
  std::atomic<int> asked{0};
  engine.script = [&](const Request&) {
    Script script{.tokens = ids_of("abc "), .pause = milliseconds(2)};
    script.endless = asked++ >= 4;
    return script;
  };
  const std::string id =
      begin(line("bad", R"("max_tokens":100000)") + lines(10, R"("max_tokens":400)"));
  EXPECT_TRUE(eventually([&] { return batch(id)["request_counts"]["completed"] >= 4; }));
  close();
  const size_t before = engine.submitted().size();
  play("xyz");
  open();
  const json done = ended(id);
  EXPECT_EQ(done["status"], "completed");
  EXPECT_EQ(done["request_counts"], json({{"total", 11}, {"completed", 10}, {"failed", 1}}));
  EXPECT_EQ(ids_in(done["output_file_id"]).size(), 10u);
  EXPECT_LE(engine.submitted().size() - before, 10 - 4u);
}

// The states of the disk at which a kill may leave a batch that is about to end.
TEST_F(Batches, AKillLosesNothing) {
  const std::string id = begin(lines(3));
  const json done = ended(id);
  close();
  const fs::path record = folder / "batches" / (id + ".json");
  const std::string output = done["output_file_id"];
  const fs::path facts = folder / "files" / (output + ".json");
  const fs::path content_path = folder / "files" / (output + ".jsonl");
  const auto read = [](const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    return std::string{std::istreambuf_iterator<char>(file), {}};
  };
  const auto write = [](const fs::path& path, const std::string& text) {
    std::ofstream(path, std::ios::binary) << text;
  };
  const std::string whole = read(content_path);
  json unfinished = json::parse(read(record));
  unfinished["output_file_id"] = nullptr;
  for (const char* status : {"validating", "in_progress", "finalizing"}) {
    for (const bool is_torn : {false, true}) {
      unfinished["status"] = status;
      write(record, unfinished.dump());
      write(record.string() + ".partial-1", "{\"id\"");
      write(content_path, whole.substr(0, whole.size() - (is_torn ? 7 : 0)));
      write(folder / "files" / "file-left.jsonl", "x");
      write(folder / "files" / "file-left.json.partial-1", "x");
      if (is_torn) fs::remove(facts);
      open();
      EXPECT_EQ(ended(id)["status"], "completed") << status;
      EXPECT_EQ(ids_in(output), (std::set<std::string>{"0", "1", "2"})) << status;
      EXPECT_FALSE(fs::exists(folder / "files" / "file-left.jsonl"));
      EXPECT_FALSE(fs::exists(folder / "files" / "file-left.json.partial-1"));
      close();
      EXPECT_FALSE(fs::exists(record.string() + ".partial-1"));
    }
  }
  write(record, "{}");
  open();
  EXPECT_EQ(reply_to("GET", "/v1/batches/" + id).status, 404);
}

TEST_F(Batches, AFolderBelongsToOneServer) {
  EXPECT_TRUE(fails_with([&] { FileStore again(folder, {}); }, "another server keeps its batches"));
  EXPECT_TRUE(fails_with([] { FileStore none("/dev/null/x", {}); }, "cannot be made"));
}

TEST_F(Batches, ListsHavePages) {
  std::vector<std::string> ids;
  for (int i = 0; i < 5; ++i) ids.push_back(upload(line(std::to_string(i))));
  const auto page = [&](const std::string& query) {
    const json list = json_of("GET", "/v1/files", "", query);
    std::vector<std::string> found;
    for (const json& file : list["data"]) found.push_back(file["id"]);
    if (!found.empty()) {
      EXPECT_EQ(list["last_id"], found.back());
    }
    return std::pair(found, list.value("has_more", false));
  };
  using Ids = std::vector<std::string>;
  EXPECT_EQ(page(""), std::pair(Ids(ids.rbegin(), ids.rend()), false));
  EXPECT_EQ(page("limit=2&order=asc"), std::pair(Ids{ids[0], ids[1]}, true));
  EXPECT_EQ(page("order=asc&limit=3&after=" + ids[1]),
            std::pair(Ids{ids[2], ids[3], ids[4]}, false));
  EXPECT_EQ(page("purpose=batch_output").first, Ids{});
  for (const char* query : {"limit=0", "limit=-1", "limit=1x", "order=up", "after=file-none"})
    EXPECT_EQ(reply_to("GET", "/v1/files", "", query).status, 400) << query;
  EXPECT_EQ(reply_to("GET", "/v1/batches", "", "limit=101").status, 400);
}

TEST_F(Batches, WhatCannotBeIsASentence) {
  const std::string file = upload(line("a"));
  const auto refused = [&](const std::string& body, const std::string& part) {
    const ServerResponse reply = reply_to("POST", "/v1/batches", body);
    EXPECT_EQ(reply.status, 400);
    EXPECT_NE(reply.body.find(part), std::string::npos) << reply.body;
  };
  refused("", "not valid JSON");
  refused("{}", "'endpoint' is missing");
  refused(batch_body("file-none"), "there is no file 'file-none'");
  refused(batch_body(file, R"(,"metadata":{"a":1})"), "'metadata.a' must be a string");
  refused(batch_body(file, R"(,"metadata":{"a":")" + std::string(513, 'x') + "\"}"),
          "'metadata' has");
  refused(batch_body(file, R"(,"output_expires_after":{})"), "'output_expires_after' is not");
  refused(R"({"endpoint":"/v1/embeddings"})", "not '/v1/embeddings'");
  const std::string batch = begin(line("a"));
  for (const auto& [method, path, status, allow] :
       std::vector<std::tuple<std::string, std::string, int, std::string>>{
           {"PUT", "/v1/files", 405, "GET, POST"},
           {"E", "/v1/files", 405, "GET, POST"},
           {"DELETE", "/v1/batches/" + batch, 405, "GET"},
           {"GET", "/v1/batches/" + batch + "/cancel", 405, "POST"},
           {"GET", "/v1/batches/" + batch + "/other", 404, ""},
           {"GET", "/v1/files/../lock", 404, ""},
           {"GET", "/v1/files/..", 404, ""},
           {"GET", "/v1/files/a/b/c", 404, ""},
           {"POST", "/v1/batches/none/cancel", 404, ""}}) {
    const ServerResponse reply = reply_to(method, path);
    EXPECT_EQ(reply.status, status) << method << path;
    EXPECT_EQ(allow_of(reply), allow) << method << path;
  }
}

TEST_F(Batches, OverHttpAFileMayBeLargerThanOtherBodies) {
  options.connection.max_body_bytes = 1000;
  options.connection.max_upload_bytes = 64'000;
  options.api_keys = {"key"};
  server = std::make_unique<HttpServer>(options);
  server->start();
  opening.reset(new HttpServer::Opening(server->open(*service, metrics, &*api)));
  const auto post = [&](const std::string& key, size_t num_bytes, const std::string& type) {
    const std::string body = form(std::string(num_bytes, 'x'));
    return ask(
        fmt::format("POST /v1/files HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {}\r\n"
                    "Content-Type: {}\r\nContent-Length: {}\r\n\r\n{}",
                    key,
                    type,
                    body.size(),
                    body));
  };
  EXPECT_EQ(status_of(post("key", 4000, kForm)), 200);
  EXPECT_EQ(status_of(post("key", 32'769, kForm)), 413);
  EXPECT_EQ(status_of(post("key", 64'000, kForm)), 413);
  EXPECT_EQ(status_of(post("other", 4000, kForm)), 413);
  EXPECT_EQ(status_of(post("other", 10, kForm)), 401);
  EXPECT_EQ(status_of(post("key", 10, "application/json")), 400);
  const std::string key = "Authorization: Bearer key\r\n";
  const std::string page = ask(get_bytes("/v1/files?limit=1", key));
  const json list = json::parse(page.substr(page.find("\r\n\r\n") + 4));
  ASSERT_EQ(list["data"].size(), 1u);
  const std::string path = "/files/" + list["data"][0]["id"].get<std::string>() + "/content";
  Client client(server->port());
  client.send(get_bytes(path, key));
  EXPECT_NE(client.read_until("\r\n0\r\n\r\n").find("octet-stream"), std::string::npos);
}

TEST_F(Batches, AServerWithoutAFolderNamesTheOption) {
  start();
  for (const char* path : {"/v1/files", "/v1/batches", "/batches/batch_1"}) {
    const std::string reply = ask(get_bytes(path));
    EXPECT_EQ(status_of(reply), 404);
    EXPECT_NE(reply.find("--batch-dir"), std::string::npos);
  }
  const std::string body = form("x");
  EXPECT_EQ(status_of(ask(fmt::format("POST /v1/files HTTP/1.1\r\nHost: a\r\nContent-Type: {}\r\n"
                                      "Content-Length: {}\r\n\r\n{}",
                                      kForm,
                                      body.size(),
                                      body))),
            404);
}

}  // namespace
}  // namespace outrider::testing
