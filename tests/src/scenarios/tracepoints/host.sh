start() {
    local name=$1
    shift
    guest "$name" --kernel "$LAB/vmlinux" --initrd "$LAB/guest.cpio" --agent "$LAB/strata.ko" \
        --trace "$LAB_OUT/$name.trace" --cmdline "$GUEST lab.script=$name" "$@"
}
truncate -s 32M "$LAB_OUT/guest.tar" "$LAB_OUT/scratch"
start all --events all --disk "$LAB_OUT/guest.tar" --disk "$LAB_OUT/scratch" --sub-buffers 64
rm "$LAB_OUT/scratch"

exec > "$LAB_OUT/control.log" 2>&1
# Waits until the growing trace has events of this name, or its guest has ended.
recorded() {
    until strata events "$LAB_OUT/chosen.trace" --layer guest-kernel 2> /dev/null | grep -q "$1"; do
        [ ! -e "$LAB_OUT/chosen.status" ] || { echo "no $1 was recorded"; break; }
        sleep 1
    done
}
start chosen --events minimal &
recorded sched:sched_switch
strata ctl chosen session events main 'guest:raw_syscalls:*'
recorded raw_syscalls:sys_enter
sleep 2
strata ctl chosen session events main 'guest:nosuch:*'
strata ctl chosen stop
wait
exit 0
