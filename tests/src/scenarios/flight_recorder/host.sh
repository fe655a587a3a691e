start() {
    name=$1
    history=$2
    timeout -s KILL $((150 + 2 * WORK)) strata run --kernel "$LAB/vmlinux" --initrd "$LAB/guest.cpio" --memory 512M --cpus 2 \
        --agent "$LAB/strata.ko" --name "$name" --trace "$LAB_OUT/$name.trace" --writable "$LAB_OUT" \
        --mode flight-recorder --sub-buffer-size 64K --sub-buffers 8 --host-history "$history" \
        --disk "$LAB/disk.img,ro,lock=off,delay=5ms" \
        --cmdline "$GUEST lab.script=$name" > "$LAB_OUT/$name.log" 2>&1
    echo $? > "$LAB_OUT/$name.status"
}
await() {
    waited=0
    until grep -q 'guest is up' "$LAB_OUT/$1.log" 2> /dev/null || [ $waited -ge 100 ]; do
        sleep 1
        waited=$((waited + 1))
    done
}

exec > "$LAB_OUT/control.log" 2>&1
STRATA_RUNTIME_DIR=$(mktemp -d)
export STRATA_RUNTIME_DIR
mkfifo /tmp/console
start flight 64M < /tmp/console &
exec 3> /tmp/console
await flight
sleep 2
strata ps > "$LAB_OUT/during.ps"
strata ctl flight status
strata top flight --once --json --interval 4 > "$LAB_OUT/top.json"
strata top flight --once --interval 0.5
strata ctl flight trigger add 'event:guest-user:workload:file_read bytes>0' --every 1s
strata ctl flight trigger add 'event:guest-user:workload:file_read bytes>1000000000'
strata ctl flight trigger add 'event:guest-kernel:sched:sched_swich'
strata ctl flight wait-trigger --timeout 60s
strata ctl flight trigger remove 1
strata ctl flight trigger list
strata ctl flight session create calls --mode flight-recorder --events 'guest:raw_syscalls:*' --sub-buffer-size 16K
strata ctl flight session start calls
sleep $((WORK / 2))
strata ctl flight snapshot "$LAB_OUT/snapshot1.trace"
sleep $((WORK - WORK / 2))
strata ctl flight snapshot "$LAB_OUT/snapshot2.trace"
strata ctl flight snapshot --session calls "$LAB_OUT/calls.trace"
strata ctl flight status --json > "$LAB_OUT/status.json"
strata ctl flight session destroy calls
strata ctl flight flush
echo >&3
wait
exec 3>&-

start killed 2M < /dev/null &
await killed
sleep $WORK
pid=$(ls "$STRATA_RUNTIME_DIR" | sed -n 's/^killed-//p')
strata ctl "$pid" snapshot "$LAB_OUT/before.trace"
kill -9 "$pid"
wait
strata ps > "$LAB_OUT/after.ps"
strata recover "$STRATA_RUNTIME_DIR/killed-$pid/region" -o "$LAB_OUT/recovered.trace"
exit 0
