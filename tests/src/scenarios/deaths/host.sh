STRATA_RUNTIME_DIR=$(mktemp -d)
export STRATA_RUNTIME_DIR
crash_memory=0
guest() {
    name=$1 trace=$2
    shift 2
    echo "== $name, host up for $(cut -d ' ' -f 1 /proc/uptime) s"
    timeout -s KILL 150 strata run --kernel "$LAB/vmlinux" --initrd "$LAB/guest.cpio" --memory 512M --cpus 2 \
        --agent "$LAB/strata.ko" --name "$name" --trace "$trace" \
        --cmdline "$GUEST lab.script=$name crashkernel=$crash_memory" "$@" < /dev/null > "$LAB_OUT/$name.log" 2>&1
    echo $? > "$LAB_OUT/$name.status"
    tail -n 2 "$LAB_OUT/$name.log"
}

for name in oops soft-lockup hung-task triple-fault reboot; do
    guest $name "$LAB_OUT/$name.trace"
done

crash_memory=160M
guest crash-kernel "$LAB_OUT/crash-kernel.trace" --mode flight-recorder --trigger guest-panic --on-reboot restart
crash_memory=0
guest kexec "$LAB_OUT/kexec.trace"

guest hang "$LAB_OUT/hang.trace" --mode flight-recorder --trigger 'guest-hang=1s vcpu=1' &
waited=0
until [ -e "$LAB_OUT/hang.trace-snapshots/trigger-1/session.json" ] || [ $waited -ge 100 ]; do
    sleep 1
    waited=$((waited + 1))
done
kill "$(ls "$STRATA_RUNTIME_DIR" | sed -n 's/^hang-//p')"
wait

mkdir /tmp/small
mount -t tmpfs -o size=4M none /tmp/small
guest full /tmp/small/trace --on-trace-failure stop
cp -r /tmp/small/trace "$LAB_OUT/full.trace"

if [ -e /dev/pmem0 ]; then
    mkdir /tmp/persistent
    mount -t ext4 -o dax=always /dev/pmem0 /tmp/persistent
    mkdir -m 700 /tmp/persistent/runtime
    STRATA_RUNTIME_DIR=/tmp/persistent/runtime guest crashed /tmp/crashed.trace --mode flight-recorder &
    waited=0
    until grep -q 'guest is up' "$LAB_OUT/crashed.log" 2> /dev/null || [ $waited -ge 100 ]; do
        sleep 1
        waited=$((waited + 1))
    done
    sleep 1
    touch /tmp/crash
fi
exit 0
