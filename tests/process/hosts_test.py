"""Tests of training on emulated hosts (benchmarks/hosts): the losses and weights equal those of one host, to the bit;
the links carry the bytes that the ranks count; and the death of a rank is detected across hosts. The last class tests
the emulation itself."""
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import unittest

from orthant_process import BUILD, ORTHANT, SOURCE, ProcessTest, main

HOSTS = [sys.executable, str(SOURCE / "benchmarks/hosts/hosts.py")]
CANNOT = 77
KNOWN_S = 5  # seconds within which the death of a rank must be detected on another host
BIG = ["model.hidden_size=256", "model.intermediate_size=688", "training.steps=8", "validation.freq=0",
       "checkpoint.interval=0"]


def setUpModule():
    tried = subprocess.run([*HOSTS, "--", "true"], capture_output=True, text=True)
    if tried.returncode == CANNOT:
        raise unittest.SkipTest(tried.stderr.strip())
    if tried.returncode:
        raise AssertionError(tried.stderr)


def network_devices():
    return pathlib.Path("/proc/net/dev").read_text().count(":")


def process_name(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return None  # it has ended


class HostsTest(ProcessTest):
    def on_hosts(self, hosts, ranks_per_host, *command, rate="1gbit", grace=10, ipv6=False, env={}):
        return self.start([*HOSTS, "--hosts", hosts, "--ranks-per-host", ranks_per_host, "--rate", rate, "--grace",
                           grace, *["--ipv6"] * ipv6, "--report", self.folder / "report.json", "--", *command], env)

    def train_on_hosts(self, hosts, ranks_per_host, *arguments, **options):
        command = [ORTHANT, "train", "run.toml", "job.dump_folder=hosts", *arguments]
        result = self.on_hosts(hosts, ranks_per_host, *command, **options).result()
        self.assertEqual(result.code, 0, result)
        self.assertEqual(result.errors(), [], result)
        return result

    def reported(self):
        return json.loads((self.folder / "report.json").read_text())


class Training(HostsTest):
    def check_equal_to_one_host(self, ranks_per_host, transport, *more, hosts=2, **options_of_hosts):
        options = [f"run.transport={transport}", *more]
        self.train_well(f"run.ranks={hosts * ranks_per_host}", *options)
        result = self.train_on_hosts(hosts, ranks_per_host, *options, **options_of_hosts)
        self.assertEqual(self.losses(self.folder / "hosts"), self.losses())
        self.assertEqual(len(self.losses()), 10)
        self.assertEqual(self.weights(self.folder / "hosts"), self.weights())
        return result

    def test_one_rank_per_host(self):
        for transport in ("ucx", "gloo"):
            with self.subTest(transport=transport):
                self.check_equal_to_one_host(1, transport)

    def test_two_ranks_per_host(self):
        self.check_equal_to_one_host(2, "ucx")

    def test_ring_over_four_hosts(self):
        self.check_equal_to_one_host(1, "ucx", "parallelism.context_parallel_ring=4", hosts=4)

    def test_ranks_with_a_secret(self):
        """Without a secret, rank 0 warns that any program which reaches the store can change what ranks exchange."""
        warning = "on several machines and have no secret"
        file = self.folder / "secret"
        file.write_text("0123456789abcdef\n")
        file.chmod(0o600)
        for env, warns in (({"ORTHANT_SECRET_FILE": str(file)}, 0), ({}, 1)):
            with self.subTest(env=env):
                result = self.train_on_hosts(2, 1, "run.transport=ucx", env=env)
                self.assertEqual(result.err.count(warning), warns, result)

    def test_hosts_with_ipv6_only(self):
        for transport in ("ucx", "gloo"):
            with self.subTest(transport=transport):
                self.check_equal_to_one_host(1, transport, ipv6=True)

    def test_local_ranks_with_ipv6_only(self):
        """`orthant train` starts the ranks of a host whose loopback has only ::1."""
        alone = ["env", *[f"--unset={name}" for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")]]
        self.train_well("run.ranks=2")
        for transport in ("ucx", "gloo"):
            with self.subTest(transport=transport):
                result = self.on_hosts(1, 1, *alone, ORTHANT, "train", "run.toml", "run.ranks=2",
                                       f"run.transport={transport}", f"job.dump_folder={transport}", ipv6=True).result()
                self.assertEqual((result.code, result.errors()), (0, []), result)
                self.assertEqual(self.losses(self.folder / transport), self.losses())

    def counted(self, dump):
        return sum(record["communication_bytes"] for record in self.steps(self.folder / dump))

    def test_link_bytes_equal_counted_bytes(self):
        """With one rank per host, the link carries every byte that the rank counts. Headers and the messages of the
        rendezvous add less than 6 %."""
        for transport in ("ucx", "gloo"):
            with self.subTest(transport=transport):
                self.train_on_hosts(2, 1, f"run.transport={transport}", *BIG)
                counted = self.counted("hosts")
                self.assertGreater(counted, 20e6)
                for link in self.reported()["hosts"]:
                    self.assertGreater(link["sent_bytes"], counted)
                    self.assertLess(link["sent_bytes"], 1.06 * counted)

    def test_ranks_of_a_host_use_no_link(self):
        """With four ranks on two hosts, two thirds of the bytes that they send go to the other host. With two ranks on
        one host, none do."""
        self.train_on_hosts(2, 2, "run.transport=ucx", *BIG)
        crossed = self.reported()["hosts"][0]["sent_bytes"] / (2 * self.counted("hosts"))
        self.assertAlmostEqual(crossed, 2 / 3, delta=0.05)
        self.train_on_hosts(1, 2, "run.transport=ucx", *BIG)
        self.assertGreater(self.counted("hosts"), 20e6)
        self.assertLess(self.reported()["hosts"][0]["sent_bytes"], 1e5)

    def loopback_bytes(self, transport):
        """Trains with two ranks on one host. Returns the bytes sent over its loopback, and the bytes that both ranks
        count."""
        train = f"'{ORTHANT}' train run.toml job.dump_folder={transport} run.transport={transport} {' '.join(BIG)}"
        command = f"{train} && if [ $RANK = 0 ]; then grep lo: /proc/net/dev > {transport}.loopback; fi"
        result = self.on_hosts(1, 2, "sh", "-c", command).result()
        self.assertEqual(result.code, 0, result)
        numbers = (self.folder / f"{transport}.loopback").read_text().split(":")[1].split()
        return int(numbers[8]), 2 * self.counted(transport)

    def test_ranks_of_a_host_share_memory(self):
        sent, counted = self.loopback_bytes("ucx")
        self.assertGreater(counted, 40e6)
        self.assertLess(sent, 1e6)
        sent, counted = self.loopback_bytes("gloo")  # the negative control: Gloo sends over the loopback
        self.assertGreater(sent, counted)


class Failure(HostsTest):
    def kill_and_time(self, ranks_per_host, transport):
        dump = self.folder / f"{transport}-{ranks_per_host}"
        running = self.on_hosts(2, ranks_per_host, ORTHANT, "train", "run.toml", f"job.dump_folder={dump}",
                                "training.steps=1000000", f"run.transport={transport}", grace=60)
        running.until(lambda: len(self.steps(dump)) >= 3, "step 3")
        ranks = running.ranks()
        last = 2 * ranks_per_host - 1
        self.assertEqual(sorted(ranks), list(range(last + 1)))
        os.kill(ranks[last], signal.SIGKILL)
        killed = time.monotonic()
        errors = pathlib.Path(running.files[1].name)
        running.until(lambda: "error:" in errors.read_text() or time.monotonic() > killed + KNOWN_S, "message")
        self.assertIn("error:", errors.read_text(), f"nobody knows after {KNOWN_S} s that rank {last} is dead")
        result = running.result()
        self.assertLess(time.monotonic() - killed, 2 * KNOWN_S, result)
        self.assertEqual(len(result.errors()), 1, result)
        self.assertIn(f"rank {last}", result.errors()[0])
        self.assertEqual(self.reported()["exit_codes"], [1] * last + [-signal.SIGKILL])

    def test_killed_rank_is_reported_on_other_host(self):
        """A killed rank is reported on the other host. If it was alone on its host, only the network can show its
        death. If another rank is on its host, that rank detects it."""
        for ranks_per_host, transport in self.sweep([(1, "ucx"), (1, "gloo"), (2, "ucx"), (2, "gloo")], 2):
            with self.subTest(ranks_per_host=ranks_per_host, transport=transport):
                self.kill_and_time(ranks_per_host, transport)

    def check_rank_that_kills_itself(self, test, transport):
        part = [f"--gtest_filter=Death.DISABLED_{test}", "--gtest_also_run_disabled_tests"]
        running = self.on_hosts(2, 1, "env", f"TRANSPORT={transport}", BUILD / "tests/comm_tests", *part, grace=60)
        errors = pathlib.Path(running.files[1].name)
        while running.process.poll() is None and "error:" not in errors.read_text():
            time.sleep(0.01)
        known = time.monotonic()
        result = running.result()
        killed = float(re.search(r"signal at ([0-9.]+) s", result.out)[1])  # the same clock as `known`
        self.assertLess(known - killed, KNOWN_S, result)
        self.assertIn("rank 1", result.errors()[0])

    def test_killed_root_is_reported_before_first_broadcast(self):
        """A rank that only receives a broadcast detects the death of the root. It has never sent to the root, so it has
        no connection of its own that could break."""
        for transport in ("ucx", "gloo"):
            with self.subTest(transport=transport):
                self.check_rank_that_kills_itself("RootOfTheFirstBroadcast", transport)

    def test_killed_rank_is_reported_in_roll_call(self):
        """A rank that waits for the other hosts in a roll call has no operation in progress that could fail. It still
        detects that a connection of UCX breaks."""
        self.check_rank_that_kills_itself("InARollCall", "ucx")


class LongFailure(Failure):
    pass


class EmulatedHosts(HostsTest):
    def test_every_rank_gets_host_and_number(self):
        told = "$RANK of $WORLD_SIZE, $LOCAL_RANK of $LOCAL_WORLD_SIZE, $(hostname), $MASTER_ADDR:$MASTER_PORT"
        result = self.on_hosts(2, 2, "sh", "-c", f'echo "{told}"').result()
        expected = [f"{rank} of 4, {rank % 2} of 2, host{rank // 2}, 10.0.0.1:29500" for rank in range(4)]
        self.assertEqual(sorted(result.out.splitlines()), expected, result)

    def test_hosts_share_only_network(self):
        namespaces = " ".join(f"/proc/self/ns/{kind}" for kind in ("net", "ipc", "pid"))
        script = f"readlink {namespaces}; touch /dev/shm/$RANK; sleep 1; ls /dev/shm"
        result = self.on_hosts(2, 1, "sh", "-c", script).result()
        self.assertEqual(result.code, 0, result)
        lines = result.out.splitlines()
        # Each of the two hosts prints three namespaces and one file of /dev/shm, and no two lines are equal.
        self.assertEqual((len(lines), len(set(lines))), (8, 8), result)

    def test_link_has_requested_rate(self):
        """8 MB take 0.64 s at 100 Mbit/s, and 0.064 s at 1 Gbit/s."""
        program = ("import os, socket, time\n"
                   "if os.environ['RANK'] == '0':\n"
                   "    server = socket.create_server(('', 4000))\n"
                   "    peer, got, start = server.accept()[0], 0, time.monotonic()\n"
                   "    while data := peer.recv(1 << 20): got += len(data)\n"
                   "    print(got, time.monotonic() - start)\n"
                   "else:\n"
                   "    time.sleep(0.5)\n"
                   "    socket.create_connection(('host0', 4000)).sendall(bytes(8_000_000))\n")
        seconds = {}
        for rate in ("100mbit", "1gbit"):
            result = self.on_hosts(2, 1, sys.executable, "-c", program, rate=rate).result()
            got, seconds[rate] = map(float, result.out.split())
            self.assertEqual(got, 8_000_000)
        self.assertTrue(0.55 < seconds["100mbit"] < 1.5, seconds)
        self.assertTrue(0.05 < seconds["1gbit"] < 0.5, seconds)

    def test_senders_to_one_host_share_its_link(self):
        """Three hosts send 2 MB each to a fourth one. Through the receiver's link of 100 Mbit/s this takes 0.48 s. If
        only the senders' links were limited, it would take a third of that."""
        program = ("import os, socket, threading, time\n"
                   "if os.environ['RANK'] == '0':\n"
                   "    server = socket.create_server(('', 4000))\n"
                   "    peers = [server.accept()[0] for _ in range(3)]\n"
                   "    def read(peer):\n"
                   "        while data := peer.recv(1 << 20): got.append(len(data))\n"
                   "    got, start = [], time.monotonic()\n"
                   "    for peer in peers: peer.sendall(b'g')\n"
                   "    threads = [threading.Thread(target=read, args=(peer,)) for peer in peers]\n"
                   "    for thread in threads: thread.start()\n"
                   "    for thread in threads: thread.join()\n"
                   "    print(sum(got), time.monotonic() - start)\n"
                   "else:\n"
                   "    time.sleep(0.5)\n"
                   "    peer = socket.create_connection(('host0', 4000))\n"
                   "    peer.recv(1)\n"
                   "    peer.sendall(bytes(2_000_000))\n")
        result = self.on_hosts(4, 1, sys.executable, "-c", program, rate="100mbit").result()
        got, seconds = map(float, result.out.split())
        self.assertEqual(got, 6_000_000)
        self.assertTrue(0.42 < seconds < 2, seconds)

    def assert_all_gone(self, pids, devices):
        deadline = time.monotonic() + 10
        while any(pathlib.Path(f"/proc/{pid}").exists() for pid in pids):
            self.assertLess(time.monotonic(), deadline, "a rank outlives its hosts")
            time.sleep(0.05)
        self.assertEqual(network_devices(), devices)

    def started(self, script, ranks=2):
        running = self.on_hosts(2, 1, "sh", "-c", f"{script}; touch started-$RANK; exec sleep 1000", grace=1)
        running.until(lambda: len(list(self.folder.glob("started-*"))) == ranks, "start of the ranks")

        def sleeping():  # before `exec` is over, the environment can read as empty, and `touch` has the same variables
            pids = running.ranks()
            names = [process_name(pid) for pid in pids.values()]
            return names == ["sleep"] * ranks and pids

        return running, running.until(sleeping, "ranks that sleep")

    def test_no_process_or_device_remains(self):
        devices = network_devices()
        for what in ("SIGINT", "SIGTERM", "SIGKILL", "a rank"):
            with self.subTest(what):
                for file in self.folder.glob("started-*"):
                    file.unlink()
                running, ranks = self.started("true")
                if what == "a rank":
                    os.kill(ranks[1], signal.SIGKILL)
                else:
                    running.process.send_signal(getattr(signal, what))
                result = running.result()
                expected = {"SIGINT": 130, "SIGTERM": 143, "SIGKILL": -9, "a rank": 137}[what]
                self.assertEqual(result.code, expected, result)
                self.assert_all_gone(ranks.values(), devices)

    def test_second_signal_kills_ranks_that_ignore_first(self):
        running, ranks = self.started("trap '' INT")
        running.process.send_signal(signal.SIGINT)
        time.sleep(0.5)
        self.assertIsNone(running.process.poll())
        running.process.send_signal(signal.SIGINT)
        self.assertEqual(running.result().code, 130)
        self.assert_all_gone(ranks.values(), network_devices())

    def test_missing_programs_are_reported(self):
        nobody = self.on_hosts(2, 1, "true")
        self.assertEqual(nobody.result().code, 0)
        without_tools = self.start([*HOSTS, "--", "true"], env={"PATH": "/nonexistent"}).result()
        self.assertEqual(without_tools.code, CANNOT, without_tools)
        self.assertIn("these programs are missing: ip, tc, mount", without_tools.err)
        without_rights = self.start(["setpriv", "--bounding-set=-sys_admin", *HOSTS, "--", "true"]).result()
        self.assertEqual(without_rights.code, CANNOT, without_rights)
        self.assertIn("SYS_ADMIN", without_rights.err)
        no_program = self.start([*HOSTS, "--", "no-such-program"]).result()
        self.assertEqual((no_program.code, no_program.err), (1, "hosts: the program no-such-program does not exist\n"))


if __name__ == "__main__":
    main()
