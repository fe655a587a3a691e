#!/bin/sh
# Makes a file of the corpus: boots a Debian kernel in QEMU, loads every module that has events, adds probe events with
# arguments of each type, and keeps the format files of all events.
#
# Usage: collect.sh ROOT [OUT]     ROOT: where linux-image-*.deb is unpacked (dpkg-deb -x); OUT: the corpus's folder
# Needs: qemu-system-x86_64, busybox (static), cpio, depmod, xz, zstd. Ten minutes a kernel.
set -eu

root=$(realpath "$1")
out=$(realpath "${2:-$(dirname "$0")}")
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

usr=$root
[ ! -d "$root/usr/lib/modules" ] || usr=$root/usr
release=$(ls "$usr/lib/modules")
modules=$usr/lib/modules/$release
kernel=$root/boot/vmlinuz-$release
[ -e "$kernel" ] || kernel=$modules/vmlinuz

depmod -b "$usr" "$release"
mkdir -p "$scratch/init/bin" "$scratch/init/modules" "$scratch/init/proc" "$scratch/init/sys" "$scratch/init/dev"
cp "$(command -v busybox)" "$scratch/init/bin/busybox"

# Modules with events and what they need, each behind what it needs.
find "$modules" -name '*.ko*' | while read -r module; do
    case $module in *.xz) xz -dc "$module" ;; *) cat "$module" ;; esac > "$scratch/module"
    ! grep -q _ftrace_events "$scratch/module" || printf '%s\n' "${module#"$modules/"}"
done > "$scratch/with-events"
while read -r module; do
    needed=$(grep "^$module:" "$modules/modules.dep" | cut -d: -f2)
    printf '%s\n' "$needed" | tr ' ' '\n' | sed '/^$/d' | tac
    echo "$module"
done < "$scratch/with-events" | awk '!seen[$0]++' > "$scratch/order"
while read -r module; do
    name=$(basename "${module%%.ko*}").ko
    case $module in *.xz) xz -dc "$modules/$module" ;; *) cat "$modules/$module" ;; esac > "$scratch/init/modules/$name"
    echo "$name"
done < "$scratch/order" > "$scratch/init/modules/order"

cat > "$scratch/init/probes" <<'PROBES'
kprobe_events p:strata/integers do_sys_openat2 a=%di:u8 b=%di:u16 c=%di:u32 d=%di:u64 e=%di:s8 f=%di:s16 g=%di:s32 h=%di:s64
kprobe_events p:strata/hexadecimals do_sys_openat2 a=%di:x8 b=%di:x16 c=%di:x32 d=%di:x64
kprobe_events p:strata/texts do_sys_openat2 a=+0(%si):string b=+0(%si):ustring
kprobe_events p:strata/user_text do_sys_openat2 a=+u0(%si):string
kprobe_events p:strata/symbols do_sys_openat2 a=%di:symbol b=$stack:symbol
kprobe_events p:strata/symbolic_text do_sys_openat2 a=%di:symstr
kprobe_events p:strata/bits do_sys_openat2 a=%di:b4@2/8 b=%di:b12@0/32
kprobe_events p:strata/arrays do_sys_openat2 a=+0(%dx):u8[8] b=+0(%dx):x16[3] c=+0(%dx):s64[2] d=+0(%dx):u32[64]
kprobe_events p:strata/text_array do_sys_openat2 a=+0(%si):string[3]
kprobe_events p:strata/characters do_sys_openat2 a=%di:char b=+0(%si):char[4]
kprobe_events p:strata/stack do_sys_openat2 a=$stack0 b=$stack c=$comm
kprobe_events r:strata/returned do_sys_openat2 a=$retval:s32
kprobe_events p:strata/nothing do_sys_openat2
uprobe_events p:strata_user/integers /bin/busybox:0x1000 a=%di:u64 b=%ax:x8
uprobe_events p:strata_user/texts /bin/busybox:0x1000 a=+0(%si):string b=+0(%si):u8[4]
uprobe_events r:strata_user/returned /bin/busybox:0x1000 a=$retval
dynamic_events e:strata_events/switched sched.sched_switch a=$prev_pid:s32 b=$next_comm:string
dynamic_events f:strata_functions/opened do_sys_openat2 a=$arg1:u64
dynamic_events t:strata_tracepoints/switched sched_switch a=$arg1:u64
PROBES

cat > "$scratch/init/init" <<'INIT'
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
mount -t tracefs tracefs /sys/kernel/tracing
cd /sys/kernel/tracing || poweroff -f
while read -r module; do insmod "/modules/$module"; done < /modules/order 2> /dev/null
while read -r file probe; do echo "$probe" >> "$file"; done < /probes
{
    echo "# $(uname -r)"
    for file in events/header_page events/header_event events/*/*/format; do
        name=${file#events/}
        echo "== ${name%/format}"
        cat "$file"
    done
    echo "== end"
} > /dev/ttyS1
poweroff -f
INIT
chmod +x "$scratch/init/init"

(cd "$scratch/init" && find . | cpio -o -H newc --quiet) > "$scratch/initramfs"
qemu-system-x86_64 -m 3G -cpu max -display none -no-reboot -serial "file:$scratch/console" \
    -serial "file:$scratch/formats" -kernel "$kernel" -initrd "$scratch/initramfs" \
    -append "console=ttyS0 rdinit=/init quiet nokaslr"
tail -n 1 "$scratch/formats" | grep -q '^== end' || { cat "$scratch/console"; echo "$release did not get to the end" >&2; exit 1; }
zstd -19 -q -f "$scratch/formats" -o "$out/$release.formats.zst"
echo "$out/$release.formats.zst: $(grep -c '^== ' "$scratch/formats") parts"
