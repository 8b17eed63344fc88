#!/bin/sh
# Tries the first screen of README.md on a clean Debian 12, as a new user would.
#
#   tools/try_readme.sh [--bind DIR]... [--mirror URL] [--only WORD] [--log FILE]
#
#   --bind DIR    shows a folder of this machine in the image at the same path, read-only; for wheels that pip's
#                 configuration of this machine names
#   --mirror URL  where debootstrap reads packages (default: the mirror of bookworm in this machine's apt sources)
#   --only WORD   runs apt-get and the commands that contain WORD
#   --log FILE    keeps the output of the commands in this file
#
# It makes an image in a temporary folder by debootstrap, without package lists, like the images of containers. It
# clones HEAD into the image, reads the commands from README.md, runs them by chroot, and checks that what README.md
# promises appears. apt's settings for downloads, pip's configuration and the proxy variables of this machine apply in
# the image, and it keeps the name of this machine.
# Mounts exist only in a mount namespace of its own and vanish with it; the image is deleted at the end. It needs root
# (or sudo), because mounts, chroot and the packages of the image do. `nice -n 10` in front keeps the machine usable.
set -eu
suite=bookworm
source=$(cd "$(dirname "$0")/.." && pwd)

fail() {
  printf 'error: %s\n' "$1" >&2
  exit 1
}

# Runs in the mount namespace: mounts what the image needs, then runs a shell command in the clone in the image. The
# answer to each question is yes, as it is on the terminal of a user.
if [ "${1-}" = --in-image ]; then
  image=$2 binds=$3 command=$4
  mount -t proc proc "$image/proc"
  mount --rbind /sys "$image/sys"
  mount --rbind /dev "$image/dev"
  for folder in $binds; do
    mkdir -p "$image$folder"
    mount --bind "$folder" "$image$folder"
    mount -o remount,bind,ro "$image$folder"
  done
  set -- HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8
  for name in http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY; do
    eval "value=\${$name-}"
    [ -z "$value" ] || set -- "$@" "$name=$value"
  done
  # The caller runs this in the background, where the shell ignores SIGINT and SIGQUIT.
  yes | exec env -i --default-signal=INT,QUIT "$@" chroot "$image" sh -c "cd /root/orthant && $command"
  exit
fi

# Writes the configuration of pip of this machine into the image, with copies of the files that it names. Fails if it
# names a folder that the image does not have.
copy_pip_configuration() {
  python3 -m pip config list 2>/dev/null | python3 -c '
import ast, pathlib, re, shutil, sys
image, binds = pathlib.Path(sys.argv[1]), sys.argv[2].split()
values = {}
for line in sys.stdin:  # such as global.cert=VALUE; the environment comes first, and wins
    name, _, value = line.rstrip().partition("=")
    values.setdefault(name.rsplit(".", 1)[-1], ast.literal_eval(value))
copies = image / "etc/pip"
copies.mkdir()
for key, value in values.items():
    words = value.split()
    for i, word in enumerate(words):
        path = pathlib.Path(re.sub("^file://", "", word))
        if path.is_absolute() and path.is_file():
            shutil.copy(path, copies / f"{key}-{i}")
            words[i] = f"/etc/pip/{key}-{i}"
        elif path.is_absolute() and path.is_dir() and not any(path.is_relative_to(bind) for bind in binds):
            sys.exit(f"error: pip is configured to read {path} ({key}); add --bind {path}, or a folder above it")
    values[key] = " ".join(words)
lines = [f"{key} = {value}" for key, value in values.items()]
(image / "etc/pip.conf").write_text("\n".join(["[global]", *lines, ""]))
' "$image" "$binds"
}

# Checks what a command printed and wrote, which README.md describes. Prints the lines that show it.
check() {
  case $1 in
    "make train")
      grep -E '^step +[0-9]+/[0-9]+ +loss' "$log" | tail -n 1 | grep . || fail "$1 shows no line with a loss"
      losses=$(sed -n 's/.*loss  *first \([0-9.]*\), last \([0-9.]*\).*/\1 \2/p' "$log")
      echo "$losses" | awk '{ exit !(NF == 2 && $2 < $1) }' || fail "$1: the loss does not fall: '$losses'"
      grep -A 2 '^Sample:' "$log" || fail "$1 shows no sample of text"
      for what in checkpoint report; do
        path=$(sed -n "s/.*│ *$what  *\([^ ]*\) .*/\1/p" "$log")
        [ -n "$path" ] && [ -e "$image/root/orthant/$path" ] || fail "$1: there is no $what '$path'"
        echo "$what: $path"
      done
      ;;
    "make test") grep '^100% tests passed' "$log" || fail "$1: not all tests passed" ;;
    apt-get*) ;;
    *) fail "this script does not know what '$1' should print; add it to check()" ;;
  esac
}

binds='' mirror='' only='' kept=/dev/null
options='the options are --bind DIR, --mirror URL, --only WORD, --log FILE'
while [ $# -gt 0 ]; do
  [ $# -gt 1 ] || fail "$1 is no option, or it lacks its value; $options"
  case $1 in
    --bind) [ -d "$2" ] || fail "--bind $2: no such folder"; binds="$binds $(cd "$2" && pwd)" ;;
    --mirror) mirror=$2 ;;
    --only) only=$2 ;;
    --log) kept=$2; : >"$kept" ;;
    *) fail "$1 is no option; $options" ;;
  esac
  shift 2
done
[ "$(id -u)" = 0 ] || fail "mounts and chroot need root: run sudo $0"
command -v debootstrap >/dev/null || fail "debootstrap is missing: apt-get install debootstrap"
[ -n "$mirror" ] || mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' "Codename: $suite" |
  head -n 1)
[ -n "$mirror" ] || fail "apt's sources of this machine do not name $suite; pass --mirror URL"

folder=$(mktemp -d)
image=$folder/image log=$folder/log
child=
trap 'rm -rf "$folder"' EXIT
trap '[ -z "$child" ] || { kill -KILL "$child"; wait "$child" || true; } 2>/dev/null; exit 130' INT TERM
started=$(date +%s)
unshare --mount debootstrap --variant=minbase $suite "$image" "$mirror" >"$log" 2>&1 || { tail "$log" >&2; fail "debootstrap failed"; }
rm -rf "$image"/var/lib/apt/lists/* "$image"/var/cache/apt/archives/*.deb
apt-config dump | grep -E '^Acquire::(http|https|Check[-A-Za-z]*)(::Proxy)? ' \
  >"$image/etc/apt/apt.conf.d/90acquire" || true
cp /etc/resolv.conf "$image/etc/resolv.conf"
echo "127.0.0.1 localhost $(uname -n)" >"$image/etc/hosts"  # torchrun looks its own machine up
copy_pip_configuration
git clone --quiet --no-hardlinks "$source" "$image/root/orthant"
[ -z "$(git -C "$source" status --porcelain)" ] || echo "Changes that are not committed are left out."
echo "Image with $suite and $(git -C "$source" rev-parse --short HEAD): $(($(date +%s) - started)) s"

# The commands of the first screen, which ends at the first picture: `apt-get ...` in a sentence, then indented lines.
sed '/^!\[/q' "$image/root/orthant/README.md" >"$folder/screen"
{ grep -o '`apt-get [^`]*`' "$folder/screen" | tr -d '`'; sed -n 's/^    //p' "$folder/screen"; } >"$folder/commands"
grep -q '^make ' "$folder/commands" || fail "the first screen of README.md has no command that begins with make"
grep '^make ' "$folder/commands" | grep -q -e "$only" || fail "--only $only: no command contains it"
while IFS= read -r line <&3; do
  command=$(echo "$line" | sed 's/ *#.*//')
  case $line in apt-get*|*"$only"*) ;; *) continue ;; esac
  echo "\$ $line"
  started=$(date +%s)
  status=0
  unshare --mount --pid --fork --kill-child "$0" --in-image "$image" "$binds" "$command" >"$log" 2>&1 </dev/null &
  child=$!
  wait "$child" || status=$?
  child=
  cat "$log" >>"$kept"
  if [ $status != 0 ]; then
    tail -n 60 "$log" >&2
    fail "$command failed after $(($(date +%s) - started)) s (exit $status)"
  fi
  check "$command"
  echo "$command: $(($(date +%s) - started)) s"
done 3<"$folder/commands"
echo "The first screen of README.md works on a clean $suite; the image took $(du -sh "$image" | cut -f 1)."
