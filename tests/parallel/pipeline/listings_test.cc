// Schedules equal the orders printed in their papers, Action by Action, for 4 ranks and 8 microbatches. The notation is
// that of listed.h.
#include <gtest/gtest.h>

#include "parallel/pipeline/one_f_one_b_plan.h"
#include "parallel/pipeline/v_schedules_plan.h"
#include "parallel/pipeline/zero_bubble_plan.h"
#include "tests/parallel/pipeline/listed.h"

namespace orthant::listings_test {
namespace {

const Listing k1F1B = {
    "F1 F2 F3 F4 B1 F5 B2 F6 B3 F7 B4 F8 B5 B6 B7 B8",
    "F1 F2 F3 B1 F4 B2 F5 B3 F6 B4 F7 B5 F8 B6 B7 B8",
    "F1 F2 B1 F3 B2 F4 B3 F5 B4 F6 B5 F7 B6 F8 B7 B8",
    "F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7 F8 B8",
};

const Listing kZbH1 = {
    "F1 F2 F3 F4 B1 W1 F5 B2 W2 F6 B3 W3 F7 B4 W4 F8 B5 W5 B6 W6 B7 W7 B8 W8",
    "F1 F2 F3 B1 F4 B2 W1 F5 B3 W2 F6 B4 W3 F7 B5 W4 F8 B6 W5 B7 W6 B8 W7 W8",
    "F1 F2 B1 F3 B2 F4 B3 W1 F5 B4 W2 F6 B5 W3 F7 B6 W4 F8 B7 W5 B8 W6 W7 W8",
    "F1 B1 F2 B2 F3 B3 F4 B4 W1 F5 B5 W2 F6 B6 W3 F7 B7 W4 F8 B8 W5 W6 W7 W8",
};

const Listing kZbH2 = {
    "F1 F2 F3 F4 F5 F6 F7 B1 W1 F8 B2 W2 B3 W3 B4 W4 B5 W5 B6 W6 B7 W7 B8 W8",
    "F1 F2 F3 F4 F5 B1 F6 B2 F7 B3 W1 F8 B4 W2 B5 W3 B6 W4 B7 W5 B8 W6 W7 W8",
    "F1 F2 F3 B1 F4 B2 F5 B3 F6 B4 F7 B5 W1 F8 B6 W2 B7 W3 B8 W4 W5 W6 W7 W8",
    "F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7 W1 F8 B8 W2 W3 W4 W5 W6 W7 W8",
};

const Listing kVHalf = {
    "F1a F2a F3a F4a F5a F1b B1b W1b F2b B2b W2b F3b B1a B3b W1a F4b W3b F6a B2a B4b W2a F5b W4b F7a B3a B5b W3a "
    "F6b W5b F8a B4a B6b W4a F7b B7b W6b B5a W7b W5a F8b B8b B6a W8b B7a W6a W7a B8a W8a",
    "F1a F2a F3a F4a F1b F2b B1b W1b F3b B2b W2b B1a W1a F5a F4b B3b W3b B2a W2a F6a F5b B4b W4b B3a W3a F7a F6b "
    "B5b W5b B4a F8a W4a F7b B6b W6b B5a B7b W5a F8b W7b B6a B8b B7a W6a W8b W7a B8a W8a",
    "F1a F2a F3a F1b F2b F3b B1b W1b F4a B2b B1a W2b W1a F4b F5a B2a B3b W2a F5b W3b F6a B3a B4b W3a F6b W4b F7a "
    "B4a B5b W4a F7b W5b F8a B5a B6b W5a F8b B7b B6a W6b B7a B8b W7b W6a B8a W7a W8b W8a",
    "F1a F1b F2a F2b F3a F3b B1b W1b B1a W1a F4a F4b B2b W2b B2a W2a F5a F5b B3b W3b B3a W3a F6a F6b B4b W4b B4a "
    "F7a W4a F7b B5b B5a W5b F8a W5a F8b B6b B6a B7b B7a W6b W6a B8b B8a W7b W7a W8b W8a",
};

TEST(PublishedOrders, OneStageARank) {
  EXPECT_EQ(listed(one_f_one_b(4, 8)), k1F1B);
  EXPECT_EQ(listed(zb_h1(4, 8)), kZbH1);
  EXPECT_EQ(listed(zb_h2(4, 8)), kZbH2);
}

TEST(PublishedOrders, VHalf) { EXPECT_EQ(listed(v_half(4, 8)), kVHalf); }

}  // namespace
}  // namespace orthant::listings_test
