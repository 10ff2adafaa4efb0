#!/bin/sh
# Boots a small Debian in a virtual machine, with a kernel whose control groups are of version 2 alone, and lets a real
# schedd run there in a group that was delegated to it: see inside.py. "make vm" calls this.
#
# Needs: root, x86-64, qemu-system-x86, debootstrap, e2fsprogs, Debian's mirror and a package registry; 3 GB of memory,
# 3 GB of disk. Neither KVM nor anything of this machine's own control groups: the machine is emulated, so it takes some
# minutes. ACCEL=kvm is faster. What it builds stays in build/vm, and is used again.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
repo=$(cd "$here/../.." && pwd)
work=${VM_DIR:-$repo/build/vm}
python=${PY:-$repo/.venv/bin/python}
mirror=${MIRROR:-$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | head -1)}  # this machine's own

missing=""
for program in qemu-system-x86_64 debootstrap mke2fs; do
    command -v "$program" >/dev/null || missing="$missing $program"
done
test -z "$missing" || { echo "make vm: not installed:$missing (apt-get install qemu-system-x86 debootstrap e2fsprogs)" >&2; exit 2; }
test "$(id -u)" = 0 || { echo "make vm: debootstrap needs root" >&2; exit 2; }

mkdir -p "$work"
if ! test -e "$work/root/.made"; then
    rm -rf "$work/root"
    debootstrap --variant=minbase --include=python3,linux-image-cloud-amd64,initramfs-tools bookworm "$work/root" "$mirror" \
        >"$work/debootstrap.log" 2>&1 || { tail -5 "$work/debootstrap.log" >&2; exit 1; }
    touch "$work/root/.made"
fi

version=$(basename "$(ls "$work"/root/usr/bin/python3.*[0-9] | head -1)" | sed s/python//)
rm -rf "$work/root/schedd" "$work/wheel"
mkdir "$work/root/schedd"
"$python" -m pip wheel --quiet --no-deps --wheel-dir "$work/wheel" "$repo"
"$python" -m pip install --quiet --target "$work/root/schedd/site" --only-binary :all: --implementation cp \
    --python-version "$version" --platform manylinux_2_28_x86_64 --platform manylinux2014_x86_64 "$work"/wheel/schedd-*.whl
cp "$here/inside.py" "$here/vm_tasks.py" "$here/init" "$work/root/schedd/"
chmod 755 "$work/root/schedd/init"

rm -f "$work/disk"
mke2fs -q -t ext4 -d "$work/root" "$work/disk" 2G
# --foreground: so that Ctrl-C and Ctrl-A X reach it
timeout --foreground "${PATIENCE:-1800}" qemu-system-x86_64 -accel "${ACCEL:-tcg,thread=multi}" -machine q35 -cpu max -smp 2 -m 3G \
    -display none -monitor none -serial stdio -no-reboot -nic none \
    -kernel "$(ls "$work"/root/boot/vmlinuz-* | head -1)" -initrd "$(ls "$work"/root/boot/initrd.img-* | head -1)" \
    -drive "file=$work/disk,format=raw,if=virtio,cache=unsafe" \
    -append "root=/dev/vda rw console=ttyS0 quiet panic=-1 cgroup_no_v1=all init=/schedd/init" </dev/null | tee "$work/serial.log"
grep -q "^VM: ALL FINE" "$work/serial.log"
