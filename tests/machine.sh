#!/usr/bin/env bash
# Gets what the tests need beside Python packages: `bash tests/machine.sh` for make test; .ci/run sources it for more.
# As root it installs Debian's packages; what cannot be had is said, and its tests are left out (tests/support/needs.py).

# Whether a program of that name is on PATH, or a file matches the pattern.
is_there() { command -v "$1" >/dev/null || compgen -G "$1" >/dev/null; }

# get NAME WHAT PACKAGE...: install Debian's packages unless WHAT, a program or a pattern of files, is there already.
# Only root can; a failure is reported and ends nothing. Returns whether WHAT is there afterwards.
get() {
  local name="$1" what="$2" package log
  shift 2
  if ! is_there "$what" && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "Debian's $name is not installed: installing it"
    log="$(mktemp)"
    {
      export DEBIAN_FRONTEND=noninteractive
      timeout 120 apt-get -q update && for package; do
        timeout 400 apt-get -q -y install --no-install-recommends "$package" || break
        [ "$package" != postgresql-common ] || # no cluster: the tests make their own
          sed -ri 's/^#?(create_main_cluster).*$/\1 = false/' /etc/postgresql-common/createcluster.conf ||
          break
      done
    } >"$log" 2>&1 </dev/null || true
    grep -E '^(Need to get|After this operation)' "$log" || true
    is_there "$what" || { echo "It could not be installed:" && tail -n 3 "$log"; }
    rm -f "$log"
  fi
  is_there "$what"
}

# What make test needs of Debian.
get_packages() {
  get Chromium chromium-headless-shell chromium-headless-shell fonts-dejavu-core ||
    get Chromium chromium chromium fonts-dejavu-core || true
  if get Prometheus promtool prometheus; then
    echo "The dashboard and the alert rules are tested with $(promtool --version 2>&1 | head -n 1)"
  fi
  get git git git || true
}

if [ "${BASH_SOURCE[0]}" = "$0" ]; then
  get_packages
  # Chromium has a second source: see tests/support/chromium.py.
  PYTHONPATH=tests "${PY:-.venv/bin/python}" -m support.chromium || true
fi
