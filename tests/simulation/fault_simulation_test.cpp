// The short form of the simulation: some hundred jobs of each form hold all that they promise, the
// interesting things happen in them, and what is broken on purpose is noticed.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/simulation/simulation.h"

namespace outrider::test {
namespace {

TEST(X, Y) { EXPECT_TRUE(simulate_rounds(1).faults.empty()); }

}  // namespace
}  // namespace outrider::test
