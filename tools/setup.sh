#!/bin/sh
# Installs what a build needs, and prints progress. The Makefile calls it; each part can be run alone:
#
#   tools/setup.sh packages          installs the missing Debian packages of packages.txt (asks for root only if needed)
#   tools/setup.sh test_packages FILE  the same for tests/packages.txt, then touches FILE; only warns on failure
#   tools/setup.sh torch FILE [cuda] finds or installs libtorch, with `cuda` one for GPUs; writes the directory of the
#                                    torch wheel to FILE
#   tools/setup.sh test_python FILE  installs tests/python-packages.txt into .venv, touches FILE; only warns on failure
#   tools/setup.sh jobs              prints how many compile jobs this machine has cores and memory for
#   tools/setup.sh quietly TEXT CMD  runs CMD and shows its output only if it fails; prints one line of progress if CMD
#                                    takes more than 2 seconds
set -eu
cd "$(dirname "$0")/.."

torch_pin=2.13.0                 # the version that pip installs if no supported torch is found
torch_cuda_pin=2.11.0            # the same for GPUs: the version whose kernels were measured
torch_oldest=2.11 torch_below=2.14
mib_per_job=1600                 # MiB of memory per compile job; a file that includes ATen and c10d takes 1.2 GB
corpus=/usr/share/doc/jargon-text/jargon.txt.gz

fail() {
  printf '\nerror: %s\n' "$1" >&2
  shift
  printf '%s\n' "$@" | sed 's/^/  /' >&2
  exit 1
}

# Runs a command with its output in build/setup/log. After 2 seconds it prints a line of progress, which a terminal
# updates in place. If the command fails, it prints the last 25 lines of the log.
quietly() {
  text=$1
  shift
  log=${ORTHANT_SETUP_LOG:-build/setup/log}
  mkdir -p "$(dirname "$log")"
  started=$(date +%s)
  "$@" >"$log" 2>&1 &
  job=$!
  trap 'kill $job 2>/dev/null || true; exit 130' INT TERM
  ticks=0
  while kill -0 $job 2>/dev/null; do
    ticks=$((ticks + 1))
    if [ $ticks -le 10 ]; then
      :
    elif [ -t 1 ]; then
      last=$(tail -n 1 "$log" 2>/dev/null | tr -d '\r\033' | cut -c 1-60)
      printf '\r\033[K%s  %ds  %s' "$text" $(($(date +%s) - started)) "$last"
    elif [ $ticks -eq 11 ]; then
      printf '%s ...\n' "$text"
    elif [ $((ticks % 150)) -eq 0 ]; then
      printf '%s ... %ds\n' "$text" $(($(date +%s) - started))
    fi
    sleep 0.2
  done
  trap - INT TERM
  if wait $job; then
    [ $ticks -gt 10 ] || return 0
    if [ -t 1 ]; then printf '\r\033[K'; fi
    printf '%s: done, %ds\n' "$text" $(($(date +%s) - started))
  else
    status=$?
    printf '\n%s failed (exit %d). The end of %s:\n' "$text" "$status" "$log" >&2
    tail -n 25 "$log" >&2
    return "$status"
  fi
}

list=packages.txt                # the list of packages to install

# Prints the names of all packages in the list.
wanted() { sed -n 's/^\([a-z0-9][^ #]*\).*/\1/p' $list; }

# Prints the packages that are not installed according to dpkg.
missing() {
  installed=$(dpkg-query -W -f='${db:Status-Status} ${Package}\n' $(wanted) 2>/dev/null | sed -n 's/^installed //p')
  for name in $(wanted); do
    printf '%s\n' "$installed" | grep -qx "$name" || printf '%s ' "$name"
  done | sed 's/ $//'
}

# Prints the missing packages on a distribution without dpkg: those whose program, header or file is not found.
missing_elsewhere() {
  sed -n 's/^\([a-z0-9][^ #]*\) *# *\(.*\)/\1 \2/p' $list | while read -r name probe; do
    case $probe in
      \<*) echo "#include $probe" | c++ -x c++ -std=c++20 -E - >/dev/null 2>&1 ;;
      /*) [ -e "$probe" ] ;;
      *) command -v "$probe" >/dev/null ;;
    esac || echo "$name ($probe)"
  done
}

packages() {
  if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    needed=$(missing_elsewhere)
    [ -n "$needed" ] || return 0
    fail "set-up installs packages on Debian and its kin only; this machine has no apt-get. It lacks the counterparts of
these Debian packages (in brackets: what was looked for). Install them, then run make again:" "$needed"
  fi
  needed=$(missing)
  if [ -z "$needed" ] && [ -e $corpus ]; then return; fi

  # Minimal images leave out /usr/share/doc, which contains the text of the first run.
  apt="env DEBIAN_FRONTEND=noninteractive apt-get"
  options="-o Dpkg::Options::=--path-include=/usr/share/doc/jargon-text/* -o Dpkg::Use-Pty=0"
  set -f
  if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || fail "these packages are missing, and neither root nor sudo is at hand:" "$needed" \
      "As root: apt-get update && apt-get install -y ${needed:-jargon-text}"
    echo "Debian packages to install with sudo: ${needed:-jargon-text}"
    sudo -v || fail "sudo was refused." "As root: apt-get update && apt-get install -y ${needed:-jargon-text}"
    apt="sudo $apt"
  fi
  quietly "Reading Debian's package lists" $apt update ||
    fail "apt-get update failed." "Check the network and /etc/apt/sources.list*, then run make again."
  if [ -n "$needed" ]; then
    quietly "Installing $(echo $needed | wc -w) Debian packages" $apt install -y --no-install-recommends $options $needed ||
      fail "apt-get could not install: $needed" "Repair what it names above, then run make again."
  fi
  if [ ! -e $corpus ]; then
    quietly "Installing the text of jargon-text" $apt install -y --reinstall $options jargon-text ||
      fail "apt-get could not reinstall jargon-text." "Pass your own text instead: make train DATA=my.txt"
  fi
  set +f
  needed=$(missing)
  [ -z "$needed" ] || fail "apt-get ended well, yet these packages are still missing: $needed"
}

test_packages() {
  list=tests/packages.txt
  if (packages); then
    touch "$1"
  else
    echo "warning: tests under launchers that are not installed will skip themselves" >&2
  fi
}

# Prints the directory of the torch that the given python imports, if its version is supported and its files exist. The
# second argument is cpu or cuda.
supported_torch() {
  "$1" - "$torch_oldest" "$torch_below" "$2" 2>/dev/null <<'PY'
import os, re, sys, warnings
warnings.simplefilter("ignore")
import torch
version, oldest, below = (tuple(int(n) for n in re.match(r"(\d+)\.(\d+)", text).groups())
                          for text in (torch.__version__, *sys.argv[1:3]))
folder = os.path.dirname(os.path.abspath(torch.__file__))
files = (f"lib/libtorch_{sys.argv[3]}.so", "lib/libc10.so", "include/ATen/ATen.h")
if oldest <= version < below and all(os.path.exists(os.path.join(folder, name)) for name in files):
    print(folder)
PY
}

torch() {
  found=
  kind=${2:-cpu} venv=.venv pin=$torch_pin
  if [ "$kind" = cuda ]; then
    venv=.venv-cuda pin=$torch_cuda_pin
    command -v nvcc >/dev/null || fail "there is no CUDA compiler (nvcc) on the PATH." \
      "Install a CUDA toolkit of version 13, and add its bin folder to the PATH."
  fi
  for python in python3 $venv/bin/python3; do
    command -v $python >/dev/null || continue
    found=$(supported_torch $python $kind) || found=
    [ -z "$found" ] || break
  done
  if [ -z "$found" ]; then
    command -v python3 >/dev/null || fail "python3 is missing." "It is in packages.txt: run make setup."
    rm -rf $venv
    quietly "Creating $venv" python3 -m venv $venv ||
      fail "python3 -m venv failed." "On Debian the module is in python3-venv; elsewhere in your distribution's Python."
    quietly "Installing torch $pin into $venv" $venv/bin/python3 -m pip install "torch==$pin" || fail \
      "pip could not install torch==$pin for $(python3 -V)." \
      "Without a network: put the wheel into a folder and run make PIP_FIND_LINKS=FOLDER setup." \
      "With a torch of your own ($torch_oldest or later, below $torch_below): make it importable by python3."
    found=$(supported_torch $venv/bin/python3 $kind) || found=
    [ -n "$found" ] || fail "pip installed torch, but $venv/bin/python3 cannot import it, or it lacks libtorch_$kind.so:" \
      "$($venv/bin/python3 -c 'import torch; print(torch.__version__)' 2>&1 | tail -n 1)"
  fi
  echo "libtorch: $found"
  mkdir -p "$(dirname "$1")"
  echo "$found" >"$1"
}

# The tests use .venv/bin/python3. If torch was found outside .venv, .venv sees the packages of that python3.
test_python() {
  if [ ! -x .venv/bin/python3 ]; then
    quietly "Creating .venv" python3 -m venv --system-site-packages .venv || fail "python3 -m venv failed."
  fi
  # Two major versions of transformers read our checkpoints: the newer one in .venv, version 4 in a folder of its own.
  if quietly "Installing the tests' Python packages" .venv/bin/python3 -m pip install -r tests/python-packages.txt &&
    quietly "Installing transformers 4 beside them" .venv/bin/python3 -m pip install --upgrade \
      --target "$(dirname "$1")/transformers_4" 'transformers>=4.45,<5'; then
    touch "$1"
  else
    echo "warning: tests that compare with Hugging Face transformers will skip themselves" >&2
  fi
}

jobs() {
  memory=$(awk '/^MemAvailable/ { print int($2 / 1024) }' /proc/meminfo 2>/dev/null || echo 4096)
  limit=$(cat /sys/fs/cgroup/memory.max 2>/dev/null || echo max)
  if [ "$limit" != max ] && [ $((limit / 1048576)) -lt "$memory" ]; then memory=$((limit / 1048576)); fi
  count=$(nproc)
  [ $((memory / mib_per_job)) -ge "$count" ] || count=$((memory / mib_per_job))
  [ "$count" -ge 1 ] || count=1
  echo "$count"
}

command=${1-}
case $command in
  packages | test_packages | torch | test_python | jobs | quietly) shift; "$command" "$@" ;;
  *) sed -n '2,11s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac
