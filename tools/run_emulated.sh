#!/usr/bin/env bash
# Runs a test program on an emulated CPU with AVX-512 (F, CD, BW, DQ, VL; no VNNI, no BF16), so that those
# kernels are executed also where the real CPU has none. Correctness only, never timing.
#
# usage: run_emulated.sh [-m MEGABYTES] [-s SECONDS] [-f FILE]... PROGRAM [ARG]...
#   -m  memory of the emulated machine (512): it holds the program, its libraries and every FILE
#   -s  give up after so many seconds (600)
#   -f  a file or folder the program needs; it stands in its working directory under its base name
# Prints what the program prints and exits with its status; 124 on time-out, 125 if the machine did not start.
#
# Bochs boots a Debian cloud kernel whose initramfs holds the program and the libraries that ldd names: about
# 40 s to start, then 50 to 100 million instructions a second. Two XSAVE features that this Bochs reports wrongly
# are hidden from the kernel, which would otherwise switch AVX off. Installs its Debian packages when missing.
set -euo pipefail
memory=512 limit=600 files=()
while getopts m:s:f: o; do case $o in m) memory=$OPTARG;; s) limit=$OPTARG;; f) files+=("$OPTARG");; *) exit 2;; esac; done
shift $((OPTIND - 1))
[ $# -ge 1 ] || { sed -n '2,8p' "$0" >&2; exit 2; }
program=$(readlink -f "$1"); shift
cache=${XDG_CACHE_HOME:-$HOME/.cache}/emulated-avx512; mkdir -p "$cache"

need=(bochs bochs-term bochsbios vgabios isolinux syslinux-common xorriso busybox-static cpio tmux)
missing=(); for p in "${need[@]}"; do dpkg -s "$p" >/dev/null 2>&1 || missing+=("$p"); done
if [ ${#missing[@]} -gt 0 ]; then
  { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${missing[@]}"; } >"$cache/apt.log" 2>&1 ||
    { echo "run_emulated: cannot install ${missing[*]} (see $cache/apt.log)" >&2; exit 125; }
fi
if [ ! -s "$cache/vmlinuz" ]; then # the kernel's package is only unpacked, not installed
  image=$(apt-cache depends linux-image-cloud-amd64 | sed -n 's/.*Depends: //p' | head -n 1)
  (cd "$cache" && rm -rf kernel && apt-get download "$image" >/dev/null 2>&1 && dpkg -x "$image"_*.deb kernel &&
    cp kernel/boot/vmlinuz-* vmlinuz && rm -rf kernel "$image"_*.deb) || { echo "run_emulated: cannot get a kernel" >&2; exit 125; }
fi

work=$(mktemp -d); session=emulated-$$
trap 'tmux kill-session -t "$session" 2>/dev/null; rm -rf "$work"' EXIT
mkdir -p "$work"/root/{bin,dev,proc,sys,tmp,run} "$work"/iso/isolinux
cp /bin/busybox "$work/root/bin/"
cp "$program" "$work/root/run/program"
ldd "$program" 2>/dev/null | grep -oE '/[^ ]+' | while read -r lib; do mkdir -p "$work/root$(dirname "$lib")"; cp -L "$lib" "$work/root$lib"; done || true # a static program names none
for f in "${files[@]}"; do cp -rL "$f" "$work/root/run/"; done
args=; for a in "$@"; do args+=" $(printf %q "$a")"; done
cat >"$work/root/init" <<EOF
#!/bin/busybox sh
/bin/busybox mount -t proc p /proc; /bin/busybox mount -t devtmpfs d /dev
cd /run; export HOME=/tmp OMP_NUM_THREADS=1; exec >/dev/ttyS0 2>&1 </dev/null
echo; echo "@@begin"
./program$args
status=\$?; echo; echo "@@end \$status"
/bin/busybox sleep 2 # until the serial line has drained
/bin/busybox poweroff -f
EOF
chmod +x "$work/root/init"
(cd "$work/root" && find . | cpio -o -H newc 2>/dev/null | gzip -1) >"$work/iso/initrd.gz"
cp "$cache/vmlinuz" "$work/iso/"; cp /usr/lib/ISOLINUX/isolinux.bin /usr/lib/syslinux/modules/bios/ldlinux.c32 "$work/iso/isolinux/"
cat >"$work/iso/isolinux/isolinux.cfg" <<EOF
default l
label l
 kernel /vmlinuz
 append initrd=/initrd.gz console=ttyS0,115200 loglevel=1 nokaslr mitigations=off clearcpuid=321,323,515 lsm= audit=0
EOF
xorriso -as mkisofs -quiet -o "$work/disk.iso" -b isolinux/isolinux.bin -c isolinux/boot.cat -no-emul-boot -boot-load-size 4 \
  -boot-info-table "$work/iso" 2>/dev/null
cat >"$work/bochsrc" <<EOF
display_library: term
megs: $memory
cpu: model=${EMULATED_CPU:-corei7_skylake_x}, count=1, ips=100000000, reset_on_triple_fault=0
romimage: file=/usr/share/bochs/BIOS-bochs-latest
vgaromimage: file=/usr/share/bochs/VGABIOS-lgpl-latest
ata0: enabled=1, ioaddr1=0x1f0, ioaddr2=0x3f0, irq=14
ata0-master: type=cdrom, path=$work/disk.iso, status=inserted
boot: cdrom
com1: enabled=1, mode=file, dev=$work/serial
clock: sync=none
log: $work/log
panic: action=fatal
EOF
: >"$work/serial"; echo c >"$work/go"
tmux new-session -d -s "$session" -x 100 -y 40 "bochs -q -f $work/bochsrc -rc $work/go >/dev/null 2>$work/err"
for ((i = 0; i < limit; i++)); do
  sleep 1
  if grep -aq '^@@end' "$work/serial" 2>/dev/null; then break; fi
  tmux has-session -t "$session" 2>/dev/null || { sleep 1; break; }
done
tr -d '\r' <"$work/serial" 2>/dev/null | sed -n '/^@@begin/,/^@@end/p' | grep -av '^@@' || true
status=$(tr -d '\r' <"$work/serial" 2>/dev/null | sed -n 's/^@@end //p' | tail -n 1)
if [ -z "$status" ]; then
  [ $i -lt "$limit" ] || { echo "run_emulated: still running after $limit s" >&2; exit 124; }
  echo "run_emulated: the machine did not start; last lines:" >&2; tail -n 3 "$work/serial" "$work/err" "$work/log" >&2 2>/dev/null || true; exit 125
fi
exit "$status"
