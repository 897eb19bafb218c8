// Messages between ranks: what goes in comes out, and a damaged one is an error, never a crash.
#include "runtime/comm/wire.h"

#include <gtest/gtest.h>
#include <malloc.h>

#include <string>
#include <vector>

namespace outrider {
namespace {

enum class Colour : uint8_t { kRed = 1, kBlue = 2 };

Bytes sample() {
  WireWriter out;
  out.put<uint64_t>(0x0123456789abcdefull);
  out.put(-1.5f);
  out.put(Colour::kBlue);
  out.put(true);
  out.put(std::string("a\0b", 3));
  out.put(std::vector<int32_t>{1, -2, 3});
  return out.take();
}

TEST(Wire, RoundTrip) {
  const Bytes bytes = sample();
  WireReader in(bytes);
  EXPECT_EQ(in.get<uint64_t>(), 0x0123456789abcdefull);
  EXPECT_EQ(in.get<float>(), -1.5f);
  EXPECT_EQ(in.get<Colour>(), Colour::kBlue);
  EXPECT_TRUE(in.get<bool>());
  EXPECT_EQ(in.get<std::string>(), std::string("a\0b", 3));
  EXPECT_EQ(in.get<std::vector<int32_t>>(), (std::vector<int32_t>{1, -2, 3}));
  in.expect_end();
}

TEST(Wire, EveryCutIsAnError) {
  const Bytes whole = sample();
  for (size_t size = 0; size < whole.size(); ++size) {
    const Bytes cut(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(size));
    WireReader in(cut);
    EXPECT_THROW(
        {
          in.get<uint64_t>();
          in.get<float>();
          in.get<Colour>();
          in.get<bool>();
          in.get<std::string>();
          in.get<std::vector<int32_t>>();
        },
        Error)
        << size;
  }
}

TEST(Wire, AWildCountIsAnErrorBeforeAnyAllocation) {
  WireWriter out;
  out.put<uint32_t>(0xffffffffu);
  const Bytes bytes = out.take();
  WireReader in(bytes);
  EXPECT_THROW(in.get<std::vector<uint64_t>>(), Error);
}

// No plain value, and larger than its bytes on the wire.
struct Large {
  std::string text;
  char bytes[400];
};
size_t num_mapped_bytes = 0;

void fields_of(WireReader&, Large&) {
  num_mapped_bytes = mallinfo2().hblkhd;
  throw Error("no element");
}

TEST(Wire, AWildListTakesNoMoreThanItsMessage) {
  WireWriter out;
  out.put<uint32_t>(1'000'000);
  Bytes bytes = out.take();
  bytes.resize(bytes.size() + 1'000'000);
  WireReader in(bytes);
  const size_t before = mallinfo2().hblkhd;
  EXPECT_THROW(in.get<std::vector<Large>>(), Error);
  EXPECT_LE(num_mapped_bytes - before, 2'000'000u);
}

TEST(Wire, BytesAfterTheEndAreAnError) {
  WireWriter out;
  out.put<uint16_t>(7);
  const Bytes bytes = out.take();
  WireReader in(bytes);
  in.get<uint8_t>();
  EXPECT_THROW(in.expect_end(), Error);
}

}  // namespace
}  // namespace outrider
