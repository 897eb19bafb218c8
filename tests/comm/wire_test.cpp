// Messages between ranks: what goes in comes out, and a damaged one is an error, never a crash.
#include "runtime/comm/wire.h"

#include <gtest/gtest.h>
#include <malloc.h>

namespace outrider {
namespace {

enum class Colour : uint8_t { kRed = 1, kBlue = 2 };

Bytes sample() {
  WireWriter out;
  out.put<uint64_t>(0x0123456789abcdefull);
  out.put(-1.5f);
  out.put(Colour::kBlue);
  out.put_bool(true);
  out.put_string(std::string("a\0b", 3));
  out.put_numbers(std::vector<int32_t>{1, -2, 3});
  return out.take();
}

TEST(Wire, RoundTrip) {
  const Bytes bytes = sample();
  WireReader in(bytes);
  EXPECT_EQ(in.get<uint64_t>(), 0x0123456789abcdefull);
  EXPECT_EQ(in.get<float>(), -1.5f);
  EXPECT_EQ(in.get<Colour>(), Colour::kBlue);
  EXPECT_TRUE(in.get_bool());
  EXPECT_EQ(in.get_string(), std::string("a\0b", 3));
  EXPECT_EQ(in.get_numbers<int32_t>(), (std::vector<int32_t>{1, -2, 3}));
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
          in.get_bool();
          in.get_string();
          in.get_numbers<int32_t>();
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
  EXPECT_THROW(in.get_numbers<uint64_t>(), Error);
}

TEST(Wire, AWildListTakesNoMoreThanItsMessage) {
  struct Large {
    char bytes[400];
  };
  WireWriter out;
  out.put<uint32_t>(1'000'000);
  Bytes bytes = out.take();
  bytes.resize(bytes.size() + 1'000'000);
  WireReader in(bytes);
  const size_t before = mallinfo2().hblkhd;
  size_t taken = 0;
  EXPECT_THROW(in.get_list<Large>([&](WireReader&) -> Large {
    taken = mallinfo2().hblkhd - before;
    throw Error("no element");
  }),
               Error);
  EXPECT_LE(taken, 2'000'000u);
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
