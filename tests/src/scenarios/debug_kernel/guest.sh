insmod /strata.ko
dmesg | grep 'strata: '
end=$(cut -d . -f 1 /proc/uptime)
seconds=@SECONDS@
end=$((end + seconds))
goes_on() { [ "$(cut -d . -f 1 /proc/uptime)" -lt "$end" ]; }
# tells how often each of the things that go on at once was done
count() { echo "$1: $2 times"; }
(n=0; while goes_on; do cat /proc/interrupts /proc/*/stat; n=$((n + 1)); done > /dev/null 2>&1; count 'kernel load' $n >&2) &
(n=0; while goes_on; do
    echo 0 > /sys/devices/system/cpu/cpu2/online; sleep 0.2
    echo 1 > /sys/devices/system/cpu/cpu2/online; sleep 0.2
    n=$((n + 1))
done; count 'CPU taken and given back' $n) &
(n=0; while goes_on; do
    insmod /colliding.ko; sleep 0.1; rmmod colliding
    n=$((n + 1))
done; count 'module with tracepoints loaded' $n) &
(n=0; while goes_on; do workload --events 20; n=$((n + 1)); done > /dev/null 2>&1; count 'workload' $n >&2) &
n=0
while goes_on; do
    for life in fork exec kill migrate fork-in-handler 'crowd 20'; do
        goes_on || break
        processes $life > /tmp/life 2>&1 || { echo "processes $life:"; cat /tmp/life; }
    done
    # a process that is just recording keeps the module
    until rmmod strata 2> /dev/null; do sleep 0.1; done
    insmod /strata.ko || echo 'cannot load again'
    n=$((n + 1))
done
count 'processes, then the module loaded again' $n
wait
workload --events 20 > /dev/null && echo 'workload done'
until rmmod strata 2> /dev/null; do sleep 0.1; done
if dmesg | grep -v hw-vuln | grep -E -A 30 '@REPORTS@'; then
    echo 'the log has reports'
else
    echo 'the log has no report'
fi
echo '== provoked'
insmod /provoking.ko
dmesg | grep -E '@REPORTS@'
