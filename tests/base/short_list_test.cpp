// Short lists against vectors, through every way between few and many elements.
#include "runtime/base/short_list.h"

#include <gtest/gtest.h>

#include <random>
#include <utility>
#include <vector>

namespace outrider {
namespace {

using List = ShortList<int, 4>;

std::vector<int> contents(const List& list) { return {list.begin(), list.end()}; }

TEST(ShortList, DoesWhatAVectorDoes) {
  std::mt19937 generator(3);
  List list;
  std::vector<int> expected;
  size_t most = 0;
  int num_returns = 0;  // from many elements to few
  for (int step = 0; step < 4000; ++step) {
    const bool was_long = expected.size() > 4;
    const int what = static_cast<int>(generator() % 8);
    if (what < 4) {
      list.push_back(step);
      expected.push_back(step);
    } else if (what == 4) {
      const size_t size = generator() % 9;
      list.resize(size);
      expected.resize(size);
    } else if (what == 5 && !expected.empty()) {
      list.push_back(list.front());  // an element of its own
      expected.push_back(expected.front());
    } else if (what == 6) {
      list = List(std::as_const(list));
    } else if (generator() % 4 == 0) {
      list.clear();
      expected.clear();
    }
    ASSERT_EQ(contents(list), expected) << step;
    ASSERT_EQ(list.size(), expected.size());
    ASSERT_EQ(list.empty(), expected.empty());
    if (!expected.empty()) {
      ASSERT_EQ(list.back(), expected.back());
    }
    most = std::max(most, expected.size());
    num_returns += was_long && expected.size() <= 4 ? 1 : 0;
  }
  EXPECT_GT(most, 8u);
  EXPECT_GT(num_returns, 20);
}

TEST(ShortList, CopiesAreTheirOwnAndWhatIsMovedIsEmpty) {
  for (const std::vector<int>& elements : {std::vector<int>{}, {1, 2, 3}, {1, 2, 3, 4, 5, 6}}) {
    List list = elements;
    List copy = list;
    EXPECT_TRUE(copy == list);
    copy.push_back(9);
    EXPECT_FALSE(copy == list);
    EXPECT_EQ(contents(list), elements);
    const List moved = std::move(list);
    EXPECT_EQ(contents(moved), elements);
    EXPECT_TRUE(list.empty());  // NOLINT: that is what is asked
    list.push_back(7);
    EXPECT_EQ(contents(list), std::vector<int>{7});
    EXPECT_EQ(contents(List(elements.begin(), elements.end())), elements);
    copy.assign(elements);
    EXPECT_EQ(contents(copy), elements);
    copy = moved;
    EXPECT_TRUE(copy == moved);
    copy = {};
    EXPECT_TRUE(copy.empty());
  }
}

}  // namespace
}  // namespace outrider
