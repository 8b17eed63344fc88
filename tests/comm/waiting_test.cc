// The picture of who waits for whom: it names the root or the cycle, and stays short for many ranks.
#include "comm/waiting.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>

#include "base/text.h"
#include "tests/support/says.h"

namespace orthant::waiting_test {
namespace {

RankStatus busy(int rank, std::map<std::string, StartedCounts> started) {
  return {.rank = rank, .stalled_s = 11, .activity = "1F3, action 7 of 12 of step 12", .started = std::move(started)};
}

RankStatus in_collective(int rank, int64_t number, std::map<std::string, StartedCounts> started = {}) {
  started["data"].collectives = number;
  return {.rank = rank,
          .stalled_s = 6,
          .activity = "2B5, action 9 of 12 of step 12",
          .operation = "barrier",
          .group = "data",
          .number = number,
          .started = std::move(started)};
}

RankStatus in_message(int rank, const std::string& operation, int peer) {
  return {.rank = rank,
          .stalled_s = 6,
          .activity = "0RECV_B1",
          .operation = operation,
          .group = "pipeline",
          .bytes = 4096,
          .messages = {{.peer = peer, .receive = operation == "recv", .number = 3}}};
}

TEST(Waiting, RanksWithoutACollectiveAreTheRoot) {
  const Mesh mesh({{"data", 4}});
  const std::vector<RankStatus> statuses = {busy(0, {{"data", {.collectives = 4}}}), in_collective(1, 5),
                                            in_collective(2, 5), in_collective(3, 5)};
  EXPECT_EQ(describe_waiting(mesh, statuses),
            "3 ranks wait, directly or through others, for rank 0:\n"
            "  rank 0 waits for no rank: for 11 s it has been in 1F3, action 7 of 12 of step 12\n"
            "  ranks 1-3 wait for rank 0 in barrier over data (2B5, action 9 of 12 of step 12), for 6 s");
}

TEST(Waiting, MemberThatIsAheadIsNotWaitedFor) {
  // Rank 1 has started the barrier and now waits for a message of rank 3, which is behind.
  const Mesh mesh({{"pipeline", 2}, {"data", 2}});
  std::vector<RankStatus> statuses = {in_collective(0, 5), in_message(1, "recv", 0), in_collective(2, 5), busy(3, {})};
  statuses[1].started = {{"data", {.collectives = 5}}};
  statuses[3].started = {{"data", {.collectives = 5}}};
  statuses[1].messages[0].peer = 3;
  const std::string picture = describe_waiting(mesh, statuses);
  EXPECT_TRUE(says(picture, {"for rank 3:", "rank 1 waits for rank 3 in recv of 4.0 KiB over pipeline"})) << picture;
}

TEST(Waiting, ChainEndsAtItsRoot) {
  const Mesh mesh({{"pipeline", 5}});
  const std::vector<RankStatus> statuses = {in_message(0, "recv", 1),
                                            in_message(1, "recv", 2),
                                            in_message(2, "recv", 3),
                                            {.rank = 3, .stalled_s = 6, .activity = "1F0"},
                                            in_message(4, "send", 3)};
  const std::string picture = describe_waiting(mesh, statuses);
  EXPECT_TRUE(
      picture.starts_with("4 ranks wait, directly or through others, for rank 3:\n"
                          "  rank 3 waits for no rank: for 6 s it has been in 1F0\n"))
      << picture;
}

TEST(Waiting, CycleIsNamed) {
  const Mesh mesh({{"pipeline", 4}});
  const std::vector<RankStatus> statuses = {in_message(0, "recv", 1), in_message(1, "recv", 2),
                                            in_message(2, "recv", 1), busy(3, {})};
  const std::string picture = describe_waiting(mesh, statuses);
  EXPECT_TRUE(picture.starts_with(
      "2 ranks wait for each other in a cycle, which never ends: rank 1 waits for rank 2, rank 2 for rank 1:"))
      << picture;
}

TEST(Waiting, MessageOnItsWayIsNotWaitedForAtTheSender) {
  // Rank 1 waits for a message that rank 0 has sent before it went on. So there is no cycle, and rank 1 is the root.
  const Mesh mesh({{"data", 2}});
  std::vector<RankStatus> statuses = {in_collective(0, 5), in_message(1, "recv", 0)};
  statuses[1].started = {{"data", {.collectives = 4}}};
  EXPECT_TRUE(describe_waiting(mesh, statuses).starts_with("2 ranks wait for each other in a cycle"));
  statuses[0].started["pipeline"].sends = {{1, 3}};
  EXPECT_TRUE(
      says(describe_waiting(mesh, statuses),
           {"1 rank waits, directly or through others, for rank 1; rank 1 waits for messages that other ranks have",
            "a process or the network may be stalled:",
            "\n  rank 1 waits for messages that other ranks have sent, in recv of 4.0 KiB over pipeline"}));
}

TEST(Waiting, CollectiveThatAllHaveStartedLacksItsMessages) {
  const Mesh mesh({{"data", 2}});
  const std::string picture = describe_waiting(mesh, {in_collective(0, 5), in_collective(1, 5)});
  EXPECT_TRUE(says(picture, {"ranks 0-1 wait for messages that other ranks have sent", "the network may be stalled"}))
      << picture;
}

TEST(Waiting, NoPictureIfNoRankWaits) {
  EXPECT_EQ(describe_waiting(Mesh({{"data", 2}}), {busy(0, {}), busy(1, {})}), "");
}

TEST(Waiting, PictureOfThousandsOfRanksIsShortAndQuick) {
  // Later pipeline ranks wait for the first ones, whose data group lacks rank 77. They have many different activities.
  const Mesh mesh({{"tensor", 8}, {"data", 64}, {"pipeline", 8}});
  std::vector<RankStatus> statuses;
  for (int rank = 0; rank < mesh.size(); ++rank) {
    RankStatus status = in_collective(rank, 5);
    if (mesh.coord(rank, "pipeline") > 0) {
      status = in_message(rank, "recv", mesh.rank_at(rank, "pipeline", mesh.coord(rank, "pipeline") - 1));
      status.activity = "activity " + std::to_string(rank % 100);
    }
    statuses.push_back(status);
  }
  statuses[77] = busy(77, {{"data", {.collectives = 4}}});
  // All other groups lack no member, so that their messages are late.
  const auto start = std::chrono::steady_clock::now();
  const std::string picture = describe_waiting(mesh, statuses);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(1));
  EXPECT_LE(split(picture, '\n').size(), kMostLines);
  EXPECT_LT(picture.size(), 4000);
  EXPECT_TRUE(says(picture, {"for rank 77:", "more ranks wait"})) << picture;
}

TEST(Waiting, TextOfAStatusIsReadBack) {
  RankStatus status = in_message(3, "exchange", 1);
  status.started = {{"data", {.collectives = 5}}, {"tensor#1", {.sends = {{1, 7}}, .receives = {{2, 8}}}}};
  EXPECT_EQ(parse_rank_status(to_text(status), 4), status);
}

TEST(Waiting, ForgedStatusIsIgnoredOrHarmless) {
  RankStatus status = in_message(3, "recv", 1);
  const std::string good = to_text(status);
  EXPECT_FALSE(parse_rank_status("", 4));
  EXPECT_FALSE(parse_rank_status("[]", 4));
  EXPECT_FALSE(parse_rank_status(good.substr(1), 4));
  EXPECT_FALSE(parse_rank_status(good, 3));  // no rank 3
  status.messages[0].peer = 4;
  EXPECT_FALSE(parse_rank_status(to_text(status), 4));
  status.messages[0].peer = 1, status.activity = "\x1b[2J\nerror: forged";
  EXPECT_EQ(parse_rank_status(to_text(status), 4)->activity, "\\x1b[2J error: forged");
  RankStatus unknown = in_collective(0, 5);  // an axis that the mesh lacks
  unknown.group = "no_axis";
  EXPECT_FALSE(describe_waiting(Mesh({{"data", 2}}), {unknown, busy(1, {})}).empty());
}

}  // namespace
}  // namespace orthant::waiting_test
