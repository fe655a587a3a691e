cd /sys/kernel/tracing 2> /dev/null && mount -t tracefs tracefs . || echo 'no tracefs'
cd /sys/kernel/tracing || exit
for event in timer/hrtimer_expire_entry timer/timer_expire_entry workqueue/workqueue_execute_start irq/irq_handler_entry; do
    echo 1 > events/$event/enable
done
interrupts() {
    awk '$1 ~ /:$/ { sum = 0; for (i = 2; $i ~ /^[0-9]+$/; i++) sum += $i; print substr($1, 1, length($1) - 1), sum }' \
        /proc/interrupts
}
# Until CPUs no longer have each other do things: attaching probes takes seconds where a CPU is emulated.
settle() {
    called=0
    for _ in 1 2 3 4 5 6 7 8 9 10; do
        before=$called
        sleep 4
        called=$(interrupts | sed -n 's/^CAL //p')
        [ $((called - before)) -gt 20 ] || break
    done
}
idle() {
    settle
    echo > trace
    interrupts > /tmp/before
    sleep @SECONDS@
    interrupts > /tmp/after
    echo "own $1 $(grep -v '^#' trace | grep -c strata)"
    awk -v state=$1 'NR == FNR { before[$1] = $2; next } $2 > before[$1] { print "idle " state ": " $1, $2 - before[$1] }' \
        /tmp/before /tmp/after
}
echo 'guest is up'
sleep 5
idle without
insmod /modules/strata.ko
idle module
echo 'guest wants a session'
sleep 5
idle session
grep strata /proc/interrupts
echo 'guest wants a flush'
sleep 5
dmesg | grep 'strata: '
