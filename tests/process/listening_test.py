"""Tests that a run on one machine listens on the loopback only, so that no other machine can reach its store or its
messages. The negative control is a process that listens on all addresses."""
import os
import pathlib
import re
import sys

from orthant_process import ORTHANT, ProcessTest, main, meeting

LISTENING = "0A"
LOOPBACK = {"0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F"}


def sockets_of(pid):
    """The inodes of the sockets that a process has open."""
    inodes = set()
    for descriptor in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        try:
            found = re.fullmatch(r"socket:\[(\d+)\]", os.readlink(descriptor))
        except OSError:
            continue
        if found:
            inodes.add(found[1])
    return inodes


def listening(pids):
    """The addresses on which the processes listen, in the hexadecimal form of /proc/net/tcp."""
    held = set().union(*map(sockets_of, pids))
    addresses = []
    for table in ("tcp", "tcp6"):
        for line in pathlib.Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENING and fields[9] in held:
                addresses.append(fields[1].split(":")[0])
    return addresses


class OnLoopback(ProcessTest):
    def assert_on_loopback(self, pids, where):
        addresses = listening(pids)
        self.assertGreater(len(addresses), 0, f"{where}: not even the store")
        self.assertEqual([address for address in addresses if address not in LOOPBACK], [], where)

    def test_spawned_ranks_listen_on_loopback(self):
        for transport in ("ucx", "gloo"):
            with self.subTest(transport=transport):
                running = self.start_training(f"run.transport={transport}", f"job.dump_folder={transport}", until_step=0)
                running.until(lambda: len(self.steps(self.folder / transport)) >= 2, "step 2")
                self.assert_on_loopback([running.process.pid, *running.ranks().values()], transport)
                running.end()

    def test_serving_rank_0_listens_on_loopback(self):
        variables = meeting(2)
        ranks = [self.start([ORTHANT, "train", "run.toml", "training.steps=1000000"],
                            env={"RANK": str(rank), **variables}) for rank in (0, 1)]
        ranks[0].until(lambda: len(self.steps()) >= 2, "step 2")
        self.assert_on_loopback([running.process.pid for running in ranks], "by hand")

    def test_listener_on_all_addresses_is_detected(self):
        """The negative control: the check fails for a process that listens on all addresses."""
        script = ("import socket, time\nserver = socket.create_server(('', 0))\n"
                  "open('ready', 'w').close()\ntime.sleep(1000)")
        running = self.start([sys.executable, "-c", script])
        running.until((self.folder / "ready").exists, "listener")
        with self.assertRaises(AssertionError):
            self.assert_on_loopback([running.process.pid], "control")


if __name__ == "__main__":
    main()
