#!/bin/sh
# Builds kube-apiserver and kube-controller-manager from Debian 12's source package kubernetes, once for each version,
# and writes the directory that has them. Debian has no binary package of either. The source comes from the mirror that
# apt is configured with, and apt checks it; all that it needs is in it, so that Go fetches nothing.
# It takes 4 minutes of processor time, 1.5 GB below KUBE_BUILD (/var/tmp) until it is done, and no root.
set -eu
umask 022
cache="${XDG_CACHE_HOME:-$HOME/.cache}/schedd/kube"

say() { echo "$*" >&2; }
fail() { say "$*" && exit 1; }

for need in "go golang-go" "etcd etcd-server" "dpkg-source dpkg-dev"; do
  command -v "${need% *}" >/dev/null || fail "${need#* } is missing. On Debian 12: apt-get install ${need#* }"
done

built=""
for place in "$cache"/*/; do
  [ ! -x "$place/kube-apiserver" ] || built="${place%/}"
done
if [ -n "$built" ]; then
  echo "$built"
  exit 0
fi

work="$(mktemp -d "${KUBE_BUILD:-/var/tmp}/schedd-kube-XXXXXX")"
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM
chmod 755 "$work"
mkdir -p "$work/lists/partial" "$work/archives/partial" "$work/from" "$work/go/src/k8s.io" "$work/bin"

# The binary packages' lines of apt's own configuration, as lines of source packages.
apt-get indextargets --format 'deb-src $(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' 'Origin: Debian' |
  sort -u >"$work/sources.list"
[ -s "$work/sources.list" ] || fail "apt has no lists of Debian's packages: apt-get update"
ask_apt() {
  apt-get -q -o Dir::Etc::sourcelist="$work/sources.list" -o Dir::Etc::sourceparts=/dev/null \
    -o Dir::State::lists="$work/lists" -o Dir::Cache="$work" -o Dir::Cache::archives="$work/archives" \
    -o APT::Sandbox::User= "$@" >&2
}
say "Fetching Debian's source package kubernetes (34 MB)"
ask_apt update
(cd "$work/from" && ask_apt source --download-only kubernetes)
set -- "$work"/from/*.dsc
version="$(sed -n 's/^Version: //p' "$1")"
upstream="v${version##*really}"
upstream="${upstream%%-*}"
case "$upstream" in v1.20.*) ;; *) fail "Debian 12 has Kubernetes 1.20, this one $version: not tried" ;; esac
tree="$work/go/src/k8s.io/kubernetes"
dpkg-source --extract "$1" "$tree" >&2

export GOPATH="$work/go" GOCACHE="$work/cache" GOTMPDIR="$work" GO111MODULE=off GOFLAGS= GOPROXY=off CGO_ENABLED=0
cd "$tree"
vendor=k8s.io/kubernetes/vendor/k8s.io
told=""
for package in component-base client-go/pkg; do
  told="$told -X $vendor/$package/version.gitVersion=$upstream"
  told="$told -X $vendor/$package/version.gitMajor=1 -X $vendor/$package/version.gitMinor=20"
done
build() { nice -n 10 go build -p 2 "$@"; }

say "Building Kubernetes $upstream: 3 to 12 minutes on two cores"
# The one file that is generated and not in the source: the descriptions of the API's types.
build -o "$work/bin/openapi-gen" "$vendor/kube-openapi/cmd/openapi-gen"
types="$({
  grep -rl --include='*.go' '^// +k8s:openapi-gen=' pkg cmd plugin
  (cd staging/src && grep -rl --include='*.go' '^// +k8s:openapi-gen=' k8s.io) |
    grep -v -e ^k8s.io/code-generator -e ^k8s.io/sample-apiserver | sed s,^,vendor/,
} | xargs -n 1 dirname | sort -u | sed s,^,k8s.io/kubernetes/, | paste -sd ,)"
"$work/bin/openapi-gen" --logtostderr -i "$types" -p k8s.io/kubernetes/pkg/generated/openapi -O zz_generated.openapi \
  -h vendor/k8s.io/code-generator/hack/boilerplate.go.txt -r "$work/violations" >&2
for program in kube-controller-manager kube-apiserver; do
  build -tags providerless -ldflags "-s -w$told" -o "$work/bin/$program" "k8s.io/kubernetes/cmd/$program" >&2
done

mkdir -p "$cache"
rm -rf "${cache:?}/$version" "$cache/new"
mkdir "$cache/new"
mv "$work/bin/kube-controller-manager" "$work/bin/kube-apiserver" "$cache/new"
mv "$cache/new" "$cache/$version"
echo "$cache/$version"
