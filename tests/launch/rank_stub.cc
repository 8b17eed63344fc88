// A program that a launcher can start a thousand times in a second, because it loads no libtorch. It hands its
// environment to the fork server of many_ranks.h, which runs the rank, and ends with the exit code of the rank.
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>

extern char** environ;

int main(int argc, char** argv) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (argc != 2 || std::strlen(argv[1]) >= sizeof address.sun_path) return 1;
  std::strcpy(address.sun_path, argv[1]);
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0 || connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) return 1;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const size_t bytes = std::strlen(*entry) + 1;
    if (write(fd, *entry, bytes) != static_cast<ssize_t>(bytes)) return 1;
  }
  shutdown(fd, SHUT_WR);
  unsigned char code = 1;
  return read(fd, &code, 1) == 1 ? code : 1;
}
