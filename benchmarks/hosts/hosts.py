#!/usr/bin/env python3
"""Runs a command on emulated hosts of this machine: Linux namespaces joined by links of a given rate.

Each host has its own network (address 10.0.0.1, 10.0.0.2, ...; with --ipv6 fd00::1, fd00::2, ...), shared memory, processes and host name, so its ranks
reach those of other hosts only over TCP. All hosts share the files of this machine, like a folder that all nodes mount,
and its cores. The hosts are connected to one switch, each through a link with the given rate in both directions. Every
rank gets a launcher's environment: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT.

  benchmarks/hosts/hosts.py --hosts 2 --ranks-per-host 2 --rate 1gbit -- build/orthant train run.toml
  benchmarks/hosts/hosts.py --hosts 3 -- ip addr

Requires root, and ip and tc (Debian: iproute2); otherwise it prints the reason and exits with 77. No namespace or link
has a name outside this process tree, so the kernel removes them with the last process. All processes end when this
program ends, however it ends. The first SIGINT or SIGTERM is forwarded to the ranks; the second one kills them. The
exit code is that of the first rank that failed, or 128 + the number of the signal that killed it; it is 130 after
SIGINT. --report FILE writes each rank's exit code (negative: the signal that killed it) and the bytes on each link, as
JSON.
"""
import argparse
import ctypes
import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import time

CANNOT = 77
PORT = 29500  # always free, because every host has its own ports
NEW_MOUNTS, NEW_NAME, NEW_IPC, NEW_PIDS, NEW_NETWORK = 0x20000, 0x4000000, 0x8000000, 0x20000000, 0x40000000
OTHER_LAUNCHERS = ("TORCHELASTIC_", "GROUP_", "OMPI_", "PMI", "SLURM_")
LIBC = ctypes.CDLL(None, use_errno=True)


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--hosts", type=int, default=2)
    p.add_argument("--ranks-per-host", type=int, default=1)
    p.add_argument("--rate", default="10gbit",
                   help="rate of each link: 10gbit, 100mbit, ..., or none (default: 10gbit)")
    p.add_argument("--grace", type=float, default=10,
                   help="seconds that the other ranks get to end after a rank failed (default: 10)")
    p.add_argument("--ipv6", action="store_true", help="the hosts have IPv6 addresses only, on the loopback too")
    p.add_argument("--report", help="file for the exit codes and the bytes on each link")
    p.add_argument("command", nargs="+", help="command that every rank runs; after --")
    a = p.parse_args()
    if not 1 <= a.hosts <= 250 or a.ranks_per_host < 1:
        p.error("--hosts must be from 1 to 250, and --ranks-per-host at least 1")
    if a.rate != "none" and not re.fullmatch(r"[1-9][0-9]*[kmg]bit", a.rate):
        p.error(f"--rate {a.rate} must be a number with kbit, mbit or gbit, or none")
    return a


def say(text):
    print(f"hosts: {text}", file=sys.stderr, flush=True)


def refuse(why):
    say(f"emulated hosts cannot be set up here: {why}")
    sys.exit(CANNOT)


def run(command):
    done = subprocess.run(command.split(), stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        raise OSError(f"{command}: {done.stderr.strip()}")


def leave(namespaces):
    """Moves this process to new namespaces. A new namespace of processes applies only to its children."""
    if LIBC.unshare(namespaces):
        raise OSError(ctypes.get_errno(), "unshare: " + os.strerror(ctypes.get_errno()))


def address(host, a):
    return f"fd00::{host + 1:x}" if a.ipv6 else f"10.0.0.{host + 1}"


def limit(device, rate):
    """Limits the rate at which a device sends, with a token bucket. Its size is the bytes of 1 ms, but at least
    128 KiB: two of the largest packets that TCP passes to a device."""
    if rate != "none":
        bits = int(rate[:-4]) * {"k": 10**3, "m": 10**6, "g": 10**9}[rate[-4]]
        run(f"tc qdisc add dev {device} root tbf rate {rate} burst {max(bits // 8000, 131072)} latency 20ms")


class Host:
    """A host as seen from the switch: a process that has the host's namespaces, and pipes to and from the first process
    of the host.

    When the pipe `orders` closes, because this program closes it or has ended, the first process ends."""

    def __init__(self, number, others, a):
        from_switch, self.orders = os.pipe()
        self.reports, to_switch = os.pipe()
        self.number, self.text, self.traffic, self.ended = number, "", None, False
        switch = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                os.setsid()  # signals of the terminal go to this program only
                for host in (self, *others):
                    os.close(host.orders)
                    os.close(host.reports)
                code = keep_host(number, switch, a, from_switch, to_switch)
            except OSError as error:
                os.write(to_switch, f"cannot {error}".replace("\n", "; ").encode() + b"\n")
            finally:
                os._exit(code)
        os.close(from_switch)
        os.close(to_switch)

    def order(self, letter):
        try:
            os.write(self.orders, letter)
        except BrokenPipeError:
            pass

    def lines(self):
        """Returns the lines that the host has reported since the last call. The pipe must be readable."""
        data = os.read(self.reports, 65536).decode()
        self.ended = not data
        *lines, self.text = (self.text + data).split("\n")
        return lines


def keep_host(number, switch, a, orders, reports):
    leave(NEW_NETWORK | NEW_IPC | NEW_NAME | NEW_MOUNTS)
    run(f"ip link add eth0 type veth peer name host{number} netns {switch}")
    leave(NEW_PIDS)  # the next child is the first process of the new namespace
    first = os.fork()
    if first:
        os.close(orders)
        os.close(reports)
        return os.waitstatus_to_exitcode(os.waitpid(first, 0)[1])
    set_up_host(number, a)
    os.write(reports, b"ready\n")
    if os.read(orders, 1) != b"g":
        return 1
    return watch_ranks(start_ranks(number, a), orders, reports)


def set_up_host(number, a):
    """Sets up the network and the file systems of the host. It runs in the host's first process, with which all
    processes of the host end."""
    socket.sethostname(f"host{number}")
    run("mount --make-rprivate /")
    run("mount -t proc proc /proc")
    run("mount -t tmpfs tmpfs /dev/shm")
    # /sys shows the network interfaces of the process that mounted it, so it is mounted again. The memory limits in
    # /sys/fs/cgroup remain those of this machine.
    os.mkdir("/dev/shm/cgroup")
    run("mount --rbind /sys/fs/cgroup /dev/shm/cgroup")
    run("mount -t sysfs sysfs /sys")
    run("mount --move /dev/shm/cgroup /sys/fs/cgroup")
    os.rmdir("/dev/shm/cgroup")
    with open("/dev/shm/names", "w") as names:
        names.write(f"{'::1' if a.ipv6 else '127.0.0.1'} localhost\n")
        names.write("".join(f"{address(i, a)} host{i}\n" for i in range(a.hosts)))
    run("mount --bind /dev/shm/names /etc/hosts")
    os.remove("/dev/shm/names")
    run("ip link set lo up")
    if a.ipv6:
        run("ip -4 addr flush dev lo")
        run(f"ip addr add {address(number, a)}/64 dev eth0 nodad")  # ready without a search for duplicates
    else:
        run(f"ip addr add {address(number, a)}/24 dev eth0")
    limit("eth0", a.rate)
    run("ip link set eth0 up")


def start_ranks(host, a):
    world = a.hosts * a.ranks_per_host
    clean = {k: v for k, v in os.environ.items() if not k.startswith(OTHER_LAUNCHERS)}
    clean.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // world)))
    ranks = {}
    for local in range(a.ranks_per_host):
        rank = host * a.ranks_per_host + local
        variables = {"RANK": rank, "WORLD_SIZE": world, "LOCAL_RANK": local, "LOCAL_WORLD_SIZE": a.ranks_per_host,
                     "MASTER_ADDR": address(0, a), "MASTER_PORT": PORT}
        process = subprocess.Popen(a.command, env={**clean, **{k: str(v) for k, v in variables.items()}},
                                   stdin=subprocess.DEVNULL)
        # The Popen object is kept, because its destructor would collect the exit code of the process.
        ranks[process.pid] = rank, process
    return ranks


def watch_ranks(ranks, orders, reports):
    """Reports the end of each rank and finally the traffic, and forwards signals to the ranks. Returns when the pipe
    `orders` is closed, and the host ends."""
    numbers = {b"i": signal.SIGINT, b"t": signal.SIGTERM}
    while ranks:
        if select.select([orders], [], [], 0.02)[0]:
            order = os.read(orders, 1)
            if order not in numbers:
                return 1
            for pid in ranks:
                os.kill(pid, numbers[order])
        while ranks and (ended := os.waitpid(-1, os.WNOHANG))[0]:  # orphans are children of this process, too
            if ended[0] in ranks:
                rank, _ = ranks.pop(ended[0])
                os.write(reports, f"rank {rank} {os.waitstatus_to_exitcode(ended[1])}\n".encode())
    sent, received = (int(open(f"/sys/class/net/eth0/statistics/{d}x_bytes").read()) for d in "tr")
    os.write(reports, f"traffic {sent} {received}\n".encode())
    return 0


def start_hosts(a):
    """Sets up and connects all hosts, which then wait for the order to start their ranks. The switch is in the network
    namespace of this process."""
    try:
        leave(NEW_NETWORK)
        run("ip link add switch type bridge")
        run("ip link set switch up")
    except OSError as error:
        refuse(f"{error}; in a container, this takes the capabilities SYS_ADMIN and NET_ADMIN (docker --privileged)")
    hosts = []
    for number in range(a.hosts):
        hosts.append(Host(number, tuple(hosts), a))
        while not (lines := hosts[-1].lines()):
            if hosts[-1].ended:
                refuse(f"host {number} ended while it was set up")
        if lines[0] != "ready":
            refuse(lines[0].removeprefix("cannot "))
        run(f"ip link set host{number} master switch")
        limit(f"host{number}", a.rate)
        run(f"ip link set host{number} up")
    return hosts


class Ends:
    """How the ranks have ended, and the exit code of this program."""

    def __init__(self):
        self.code, self.interrupted, self.patience, self.of_rank = 0, False, None, {}

    def fail(self, code, what, a):
        if not self.code:
            say(what)
            self.code, self.patience = code, time.monotonic() + a.grace

    def out_of_patience(self):
        return self.patience is not None and time.monotonic() > self.patience

    def exit_code(self):
        return 130 if self.interrupted else self.code


def listen(host, ends, a):
    for line in host.lines():
        word, *numbers = line.split(" ")
        if word == "traffic":
            host.traffic = [int(n) for n in numbers]
        elif word == "rank":
            rank, code = map(int, numbers)
            ends.of_rank[rank] = code
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            if code:
                ends.fail(128 - code if code < 0 else code, f"rank {rank} on host {host.number} {how}", a)
        elif word == "cannot":
            ends.fail(1, f"host {host.number}: {line[7:]}", a)
    if host.ended and host.traffic is None:
        ends.fail(1, f"host {host.number} has ended", a)


def main():
    a = arguments()
    if os.geteuid() != 0:
        refuse("only root may set up hosts; run it with sudo")
    if missing := [tool for tool in ("ip", "tc", "mount") if not shutil.which(tool)]:
        refuse(f"these programs are missing: {', '.join(missing)}; install iproute2 and util-linux")
    if not shutil.which(a.command[0]):
        sys.exit(f"hosts: the program {a.command[0]} does not exist")
    asked = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: asked.append(number))
    hosts, ends = start_hosts(a), Ends()
    started, told = time.monotonic(), 0
    for host in hosts:
        host.order(b"g")
    while alive := [host for host in hosts if not host.ended]:
        for pipe in select.select([host.reports for host in alive], [], [], 0.05)[0]:
            listen(next(host for host in alive if host.reports == pipe), ends, a)
        if len(asked) > 1 or ends.out_of_patience():
            say("all remaining processes are killed")
            ends.code = ends.code or 128 + asked[-1]
            break
        for number in asked[told:]:
            ends.interrupted |= number == signal.SIGINT
            for host in alive:
                host.order(b"i" if number == signal.SIGINT else b"t")
        told = len(asked)
    for host in hosts:
        os.close(host.orders)
    for host in hosts:
        os.waitpid(host.pid, 0)
    if a.report:
        with open(a.report, "w") as stream:
            json.dump({"rate": a.rate, "seconds": time.monotonic() - started,
                       "exit_codes": [ends.of_rank.get(rank) for rank in range(a.hosts * a.ranks_per_host)],
                       "hosts": [dict(zip(("sent_bytes", "received_bytes"), host.traffic or (None, None)))
                                 for host in hosts]}, stream)
    sys.exit(ends.exit_code())


if __name__ == "__main__":
    main()
