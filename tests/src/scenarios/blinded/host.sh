STRATA_RUNTIME_DIR=$(mktemp -d)
export STRATA_RUNTIME_DIR
cmdline="$GUEST lab.script"
# on a kernel by its name in $LAB
guest() {
    name=$1 kernel=$2 cpus=$3
    shift 3
    echo "== $name, host up for $(cut -d ' ' -f 1 /proc/uptime) s"
    timeout -s KILL 150 strata run --kernel "$LAB/vmlinux-$kernel" --initrd "$LAB/guest-$kernel.cpio" --memory 512M --cpus "$cpus" \
        --agent "$LAB/strata-$kernel.ko" --name "$name" --trace "$LAB_OUT/$name.trace" --writable "$LAB_OUT" "$@" \
        > "$LAB_OUT/$name.log" 2>&1
    echo $? > "$LAB_OUT/$name.status"
    tail -n 2 "$LAB_OUT/$name.log"
}
until_said() {
    waited=0
    until grep -q "$2" "$LAB_OUT/$1.log" 2> /dev/null || [ $waited -ge 120 ]; do
        sleep 1
        waited=$((waited + 1))
    done
}

mkfifo /tmp/console
# one CPU of two, and one where there is no other
for name in absent alone; do
    case $name in absent) cpus=2 ;; *) cpus=1 ;; esac
    guest $name cloud $cpus --cmdline "$cmdline=absent maxcpus=1" < /tmp/console &
    exec 3> /tmp/console
    until_said $name 'guest is up'
    strata ctl $name status > "$LAB_OUT/$name-status.log" 2>&1
    echo >&3
    wait
    exec 3>&-
done

guest kept rt 2 --events 'minimal,guest:raw_syscalls:*' --cmdline "$cmdline=kept" < /dev/null &
until_said kept 'CPUs are kept'
(
    strata ctl kept session create other --events 'guest:raw_syscalls:*' --trace "$LAB_OUT/kept-other.trace"
    strata ctl kept session start other
    strata ctl kept session create fresh --events 'guest:timer:hrtimer_expire_entry' --trace "$LAB_OUT/kept-fresh.trace"
    strata ctl kept session start fresh
    sleep 4
    strata ctl kept status
    strata ctl kept session destroy other
    strata ctl kept session destroy fresh
) > "$LAB_OUT/kept-control.log" 2>&1
wait
exit 0
