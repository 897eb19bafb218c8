// The strict head reader: what passes, what is refused and how, and that no bytes make it
// misbehave.
#include "http/wire/request_head.h"

#include <gtest/gtest.h>

#include <random>

#include "http/wire/api_error.h"

namespace outrider {
namespace {

const ConnectionLimits kLimits;

// Status of the refusal, 0 when the head is fine, or -1 when more bytes are needed: as far as the
// scan or the reader of whole heads can tell, or both.
int scan_refusal(std::string_view bytes, size_t* scanned) {
  try {
    return scan_head(bytes, kLimits, scanned) > 0 ? 0 : -1;
  } catch (const ApiError& error) {
    return error.status();
  }
}
int parse_refusal(std::string_view bytes) {
  try {
    parse_head(bytes, kLimits);
    return 0;
  } catch (const ApiError& error) {
    return error.status();
  }
}
int refusal(const std::string& bytes) {
  size_t scanned = 0;
  const int of_scan = scan_refusal(bytes, &scanned);
  return of_scan == 0 ? parse_refusal(bytes.substr(0, scanned)) : of_scan;
}

std::string with(const std::string& header) {
  return "POST /v1/completions HTTP/1.1\r\nHost: x\r\n" + header + "\r\n\r\n";
}

TEST(RequestHead, ParsesAPlainHead) {
  const std::string bytes =
      "POST /v1/models/a%2Fb?x=%0d HTTP/1.1\r\nHOST: localhost\r\nContent-Length: 12 \r\n"
      "X-A:\t v \r\nX-A: w\r\n\r\nrest";
  size_t scanned = 0;
  const size_t head_bytes = scan_head(bytes, kLimits, &scanned);
  EXPECT_EQ(bytes.substr(head_bytes), "rest");
  const RequestHead head = parse_head(bytes.substr(0, head_bytes), kLimits);
  EXPECT_EQ(head.method, "POST");
  EXPECT_EQ(head.path, "/v1/models/a/b");
  EXPECT_EQ(head.content_length, 12u);
  EXPECT_EQ(head.header("host"), "localhost");
  EXPECT_EQ(head.header("x-a"), "v");
  EXPECT_TRUE(head.keep_alive);
}

TEST(RequestHead, NeedsMoreUntilTheEmptyLine) {
  const std::string bytes = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
  size_t scanned = 0;
  for (size_t size = 0; size < bytes.size(); ++size)
    EXPECT_EQ(scan_head(std::string_view(bytes).substr(0, size), kLimits, &scanned), 0u) << size;
  EXPECT_EQ(scan_head(bytes, kLimits, &scanned), bytes.size());
}

// Every text of up to 7 of the bytes that matter, a byte at a time as from a socket and in one
// piece.
TEST(RequestHead, TakesEveryShortInput) {
  const std::string letters("X \r\n:\0", 6);
  const std::string tail = "\r\n\r\n";
  for (size_t length = 0; length <= 7; ++length) {
    size_t num_texts = 1;
    for (size_t i = 0; i < length; ++i) num_texts *= letters.size();
    for (size_t text = 0; text < num_texts; ++text) {
      std::string bytes;
      for (size_t rest = text, i = 0; i < length; ++i, rest /= letters.size())
        bytes += letters[rest % letters.size()];
      size_t scanned_whole = 0;
      const int whole = scan_refusal(bytes, &scanned_whole);
      size_t scanned = 0;
      int piecewise = -1;
      for (size_t size = 0; size <= length && piecewise == -1; ++size)
        piecewise = scan_refusal(std::string_view(bytes).substr(0, size), &scanned);
      ASSERT_EQ(whole, piecewise) << testing::PrintToString(bytes);
      if (whole == 0) {
        ASSERT_EQ(scanned_whole, scanned) << testing::PrintToString(bytes);
        const std::string head = bytes.substr(0, scanned);
        ASSERT_TRUE(head.ends_with(tail)) << testing::PrintToString(bytes);
        ASSERT_EQ(parse_refusal(head), 400) << testing::PrintToString(bytes);
      }
      ASSERT_EQ(parse_refusal(bytes + tail), 400) << testing::PrintToString(bytes);
    }
  }
}

// Three bytes that ended the server once.
TEST(RequestHead, AFirstLineOfOneByteIsIncompleteOrRefused) {
  size_t scanned = 0;
  EXPECT_EQ(scan_head("X\r\n", kLimits, &scanned), 0u);
  EXPECT_EQ(refusal("X\r\n\r\n"), 400);
}

TEST(RequestHead, RefusesAmbiguousFraming) {
  EXPECT_EQ(refusal(with("Content-Length: 5")), 0);
  EXPECT_EQ(refusal(with("Content-Length: 5\r\nContent-Length: 5")), 400);
  EXPECT_EQ(refusal(with("Content-Length: 5\r\ncontent-length: 6")), 400);
  for (const char* length : {"5, 5", "+5", "-1", "0x5", "", "5 5", "1e3", "5;"}) {
    EXPECT_EQ(refusal(with(std::string("Content-Length: ") + length)), 400) << length;
  }
  EXPECT_EQ(refusal(with("Content-Length: 99999999999999999999999")), 0);  // too large: said later
  EXPECT_EQ(refusal(with("Transfer-Encoding: chunked")), 0);
  EXPECT_EQ(refusal(with("Transfer-Encoding: gzip")), 501);
  EXPECT_EQ(refusal(with("Transfer-Encoding: chunked, chunked")), 501);
  EXPECT_EQ(refusal(with("Transfer-Encoding:")), 501);
  EXPECT_EQ(refusal(with("Transfer-Encoding:\r\nContent-Length: 5")), 400);
  EXPECT_EQ(refusal(with("Transfer-Encoding: chunked\r\nContent-Length: 5")), 400);
  EXPECT_EQ(refusal(with("Content-Encoding: gzip\r\nContent-Length: 5")), 415);
  EXPECT_EQ(refusal(with("Content-Encoding: identity\r\nContent-Length: 5")), 0);
  EXPECT_EQ(refusal(with("Expect: 200-ok")), 417);
  EXPECT_EQ(refusal(with("Host: y")), 400);
}

TEST(RequestHead, RefusesBadBytes) {
  EXPECT_EQ(refusal("GET / HTTP/1.1\nHost: x\n\n"), 400);
  EXPECT_EQ(refusal("GET / HTTP/1.1\r\nHost: x\r\nA: b\rC: d\r\n\r\n"), 400);
  EXPECT_EQ(refusal("\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n"), 400);
  EXPECT_EQ(refusal(with(std::string("A: b\0c", 6))), 400);
  EXPECT_EQ(refusal(with("A: b\x01")), 400);
  EXPECT_EQ(refusal(with("A: b\r\n folded")), 400);
  EXPECT_EQ(refusal(with(" A: b")), 400);
  EXPECT_EQ(refusal(with("A : b")), 400);
  EXPECT_EQ(refusal(with(": b")), 400);
  EXPECT_EQ(refusal(with("A\xff: b")), 400);
  EXPECT_EQ(refusal(with("no colon")), 400);
  EXPECT_EQ(refusal(with("A: caf\xc3\xa9")), 0);
}

TEST(RequestHead, RefusesBadRequestLines) {
  const auto line = [](const std::string& text) { return refusal(text + "\r\nHost: x\r\n\r\n"); };
  EXPECT_EQ(line("GET / HTTP/1.1"), 0);
  EXPECT_EQ(line("GET / HTTP/1.0"), 0);
  EXPECT_EQ(line("GET /"), 400);
  EXPECT_EQ(line("GET  / HTTP/1.1"), 400);
  EXPECT_EQ(line("GET / x HTTP/1.1"), 400);
  EXPECT_EQ(line("GET / HTTP/2.0"), 505);
  EXPECT_EQ(line("PRI * HTTP/2.0"), 505);
  EXPECT_EQ(line("GET / http/1.1"), 400);
  EXPECT_EQ(line("GET http://x/ HTTP/1.1"), 400);
  EXPECT_EQ(line("OPTIONS * HTTP/1.1"), 400);
  EXPECT_EQ(line("GET /a%0d%0aX HTTP/1.1"), 400);
  EXPECT_EQ(line("GET /a%00 HTTP/1.1"), 400);
  EXPECT_EQ(line("GET /a%zz HTTP/1.1"), 400);
  EXPECT_EQ(line("GET /a%2 HTTP/1.1"), 400);
  EXPECT_EQ(line("G(T / HTTP/1.1"), 400);
  EXPECT_EQ(line(std::string(17, 'G') + " / HTTP/1.1"), 400);
  EXPECT_EQ(line("GET /" + std::string(9000, 'a') + " HTTP/1.1"), 414);
  EXPECT_EQ(refusal("GET / HTTP/1.1\r\n\r\n"), 400);  // no Host
  EXPECT_EQ(refusal("GET / HTTP/1.0\r\n\r\n"), 0);
}

TEST(RequestHead, LimitsSizeAndCount) {
  std::string many;
  for (int i = 0; i < 63; ++i) many += "A: b\r\n";
  EXPECT_EQ(refusal("GET / HTTP/1.1\r\nHost: x\r\n" + many + "\r\n"), 0);
  EXPECT_EQ(refusal("GET / HTTP/1.1\r\nHost: x\r\nA: b\r\n" + many + "\r\n"), 431);
  EXPECT_EQ(refusal(with("A: " + std::string(40'000, 'a'))), 431);
  // Refused before the end has come.
  EXPECT_EQ(refusal("GET /" + std::string(9000, 'a')), 414);
  EXPECT_EQ(refusal("GET / HTTP/1.1\r\nA: " + std::string(40'000, 'a')), 431);
}

TEST(RequestHead, ConnectionHeader) {
  const auto keeps = [](const std::string& version, const std::string& header) {
    const std::string bytes = "GET / HTTP/" + version + "\r\nHost: x\r\n" + header + "\r\n";
    return parse_head(bytes, kLimits).keep_alive;
  };
  EXPECT_TRUE(keeps("1.1", ""));
  EXPECT_FALSE(keeps("1.1", "Connection: Close\r\n"));
  EXPECT_FALSE(keeps("1.0", ""));
  EXPECT_TRUE(keeps("1.0", "Connection: keep-alive\r\n"));
}

// Mutations of real heads and plain noise: never a crash, never an accepted head with a control
// character, and the verdict does not depend on how the bytes were cut.
TEST(RequestHead, SurvivesMutations) {
  std::mt19937 random(20261120);
  const std::string good = with("Content-Length: 5\r\nAuthorization: Bearer abc\r\nX-B: c");
  const char letters[] = "\r\n\0 :%/aA1\t\xff,;";  // the NUL is one of them
  const std::string alphabet(letters, sizeof(letters) - 1);
  size_t num_accepted = 0;
  size_t num_refused = 0;
  for (int round = 0; round < 60'000; ++round) {
    std::string bytes = good;
    const int num_edits = 1 + static_cast<int>(random() % 4);
    for (int edit = 0; edit < num_edits; ++edit) {
      const size_t at = random() % bytes.size();
      const char c = alphabet[random() % alphabet.size()];
      switch (random() % 3) {
        case 0:
          bytes[at] = c;
          break;
        case 1:
          bytes.insert(at, 1, c);
          break;
        default:
          bytes.erase(at, 1 + random() % 3);
          break;
      }
      if (bytes.empty()) bytes = good;
    }
    const int whole = refusal(bytes);
    size_t scanned = 0;
    const size_t cut = random() % (bytes.size() + 1);
    if (scan_refusal(std::string_view(bytes).substr(0, cut), &scanned) == -1) {
      const int second = scan_refusal(bytes, &scanned);
      if (second != 0) {
        EXPECT_EQ(second, whole);
      }
    }
    num_accepted += whole == 0;
    num_refused += whole > 0;
    if (parse_refusal(bytes) != 0) continue;  // must cope with anything
    for (const auto& [name, value] : parse_head(bytes, kLimits).headers) {
      EXPECT_EQ(value.find_first_of(std::string("\r\n\0", 3)), std::string::npos);
    }
  }
  EXPECT_GT(num_accepted, 1000u);
  EXPECT_GT(num_refused, 1000u);
}

TEST(RootPath, IsStrippedWhereItIsAWholePart) {
  const auto stripped = [](std::string_view root_path, std::string path) {
    strip_root_path(root_path, &path);
    return path;
  };
  EXPECT_EQ(stripped("/llm", "/llm/v1/models"), "/v1/models");
  EXPECT_EQ(stripped("/llm", "/v1/models"), "/v1/models");
  EXPECT_EQ(stripped("/llm", "/llm"), "");
  EXPECT_EQ(stripped("/llm", "/llm/"), "/");
  EXPECT_EQ(stripped("/llm", "/llmx/v1"), "/llmx/v1");
  EXPECT_EQ(stripped("/a/b", "/a/b/health"), "/health");
  EXPECT_EQ(stripped("/a/b", "/a"), "/a");
  EXPECT_EQ(stripped("", "/"), "/");
}

}  // namespace
}  // namespace outrider
