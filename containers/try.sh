#!/bin/sh
# Runs the image's entry point without a container engine: the same user, a read-only root, pid 1, and the checks of
# docs/guides/containers.md.
#   sh containers/try.sh ROOT     as root; ROOT: a Debian with python3 and python3-venv, such as debootstrap makes. It is copied.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
from=$(cd "$1" && pwd)
place=$(mktemp -d "${TMPDIR:-/var/tmp}/schedd-image.XXXXXX")
root=$place/root
daemon=
trap '[ -z "$daemon" ] || kill -KILL "$daemon" 2>/dev/null || true; rm -rf "$place"' EXIT
fail() { echo "FAILED: $*" >&2; tail -n 20 "$place/log" >&2 2>/dev/null || true; exit 1; }

version='import sys; print("%d.%d" % sys.version_info[:2])'
here_has=$(python3 -c "$version")
root_has=$(chroot "$from" /usr/bin/python3 -c "$version") || fail "$from has no python3"
[ "$here_has" = "$root_has" ] || fail "$from has Python $root_has, but the wheels are fetched by Python $here_has: let python3 be $root_has here"

echo "Copying the parts of $from that an image has, and building the wheels"
mkdir -p "$root/tmp" "$root/proc" "$root/dev" "$root/etc/schedd" "$root/var/lib/schedd" "$root/src"
cp -a "$from/usr" "$from/etc" "$root/" # a Debian since 12 has /bin, /lib and /sbin in /usr
for link in bin lib lib64 sbin; do ln -s "usr/$link" "$root/$link"; done
python3 -m pip wheel --quiet --disable-pip-version-check --wheel-dir "$root/src" "$here[postgres,metrics,console,door]"
mknod -m 666 "$root/dev/null" c 1 3
mknod -m 666 "$root/dev/urandom" c 1 9

echo "Installing as the Dockerfile does"
if [ ! -x "$root/usr/bin/tini" ]; then
  (cd "$place" && apt-get -q download tini && dpkg-deb --extract tini_*.deb "$root") || fail "tini, which apt-get could not get"
fi
chroot "$root" python3 -m venv /opt/schedd
chroot "$root" /opt/schedd/bin/pip install --quiet --no-index --find-links /src "schedd[postgres,metrics,console,door]"
rm -r "$root/src"
cp "$here/containers/config.toml" "$root/etc/schedd/config.toml"
: >"$root/etc/schedd/console_users"

cat >"$place/start" <<'END'
mount --bind "$1" "$1"
mount -t tmpfs -o uid=10001,gid=10001,mode=700 tmpfs "$1/var/lib/schedd"
mount -t tmpfs tmpfs "$1/tmp"
mount -t proc proc "$1/proc"
mount -o remount,bind,ro "$1"
exec chroot "$1" env -i PATH=/opt/schedd/bin:/usr/bin:/bin PYTHONDONTWRITEBYTECODE=1 \
  SCHEDD_STORE__URL=sqlite:////var/lib/schedd/schedd.db SCHEDD_METRICS__LISTEN=127.0.0.1:19464 \
  setpriv --reuid 10001 --regid 10001 --clear-groups --no-new-privs --bounding-set=-all --inh-caps=-all \
  sh -c 'cd /var/lib/schedd && exec tini -- schedd --config /etc/schedd/config.toml'
END

# inside COMMAND...: run it in the daemon's namespaces, root and user, as an engine's exec does.
inside() {
  nsenter --target "$daemon" --mount --pid chroot --userspec=10001:10001 "$root" env -i PATH=/opt/schedd/bin:/usr/bin:/bin \
    SCHEDD_STORE__URL=sqlite:////var/lib/schedd/schedd.db PYTHONDONTWRITEBYTECODE=1 "$@"
}

unshare --mount --pid --fork sh "$place/start" "$root" 2>"$place/log" &
unshared=$!
ready="from urllib.request import urlopen; urlopen('http://127.0.0.1:19464/readyz', timeout=3)"
for _ in $(seq 240); do
  daemon=$(pgrep --parent "$unshared" || true)
  [ -n "$daemon" ] && inside python3 -c "$ready" 2>/dev/null && break
  kill -0 "$unshared" 2>/dev/null || fail "the daemon ended"
  sleep 0.5
done
inside python3 -c "$ready" || fail "/readyz"
echo "ok: /readyz answers, by the command of HEALTHCHECK"
grep -q '^NSpid:.*[^0-9]1$' "/proc/$daemon/status" || fail "tini is not pid 1"
echo "ok: tini is pid 1"
[ "$(sed -n 's/^Uid:\t\([0-9]*\).*/\1/p' "/proc/$daemon/status")" = 10001 ] || fail "its user"
[ "$(sed -n 's/^CapEff:\t//p' "/proc/$daemon/status")" = 0000000000000000 ] || fail "its capabilities"
echo "ok: it runs as user 10001, without a capability"
if inside touch /opt/schedd/x 2>/dev/null || inside touch /x 2>/dev/null; then fail "the root can be written"; fi
mount_options=$(nsenter --target "$daemon" --mount findmnt --noheadings --output OPTIONS "$root")
case $mount_options in ro*) echo "ok: the root is read-only" ;; *) fail "the root is $mount_options" ;; esac
task=$(inside schedctl --config /etc/schedd/config.toml run -- sh -c 'sleep 0.2 & echo done')
inside schedctl --config /etc/schedd/config.toml wait "$task" --timeout 60 || fail "task $task"
echo "ok: a task has run"
sleep 1
zombies=$(inside python3 -c "
import pathlib
states = [line for p in pathlib.Path('/proc').glob('[0-9]*/stat') for line in [p.read_text()] if ') Z ' in line]
print(len(states))")
[ "$zombies" = 0 ] || fail "$zombies processes were left behind and not reaped"
echo "ok: a process that the task left behind was reaped"
kill -TERM "$daemon"
status=0
wait "$unshared" || status=$?
daemon=
[ "$status" = 0 ] || fail "after SIGTERM its status is $status"
echo "ok: SIGTERM ended it with status 0"
