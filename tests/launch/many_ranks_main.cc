// The program of the fork server, the launcher and the ranks of many_ranks.h.
#include "tests/launch/many_ranks.h"

int main() {
  orthant::play_many_ranks_part();
  return 1;
}
