workload --events 500 && echo 'workload done'
(while :; do cat /proc/interrupts; done > /dev/null) &
kernel_load=$!
(while :; do workload --events 20; sleep 0.2; done > /dev/null 2>&1) &
user_load=$!
i=0
while [ $i -lt 3 ]; do
    # a process that is just recording keeps the module
    until rmmod strata 2> /dev/null; do sleep 0.1; done
    cat /proc/interrupts > /dev/null
    insmod /strata/strata.ko || echo 'cannot load again'
    i=$((i + 1))
done
echo "reloaded $i times"
for state in 0 1 0 1; do
    echo $state > /sys/devices/system/cpu/cpu1/online && echo "CPUs online: $(cat /sys/devices/system/cpu/online)"
    cat /proc/interrupts > /dev/null
done
# the emulated machine does not wake from a real sleep
if [ -e /sys/power/pm_test ]; then
    echo 0 > /sys/module/suspend/parameters/pm_test_delay
    echo devices > /sys/power/pm_test
    echo mem > /sys/power/state && echo 'devices slept'
    echo none > /sys/power/pm_test
fi
# an image is made, and cannot be written
echo disk > /sys/power/state || echo 'not hibernated'
device=$(dirname "$(grep -l 0x1110 /sys/bus/pci/devices/*/device)")
echo 1 > "$device/reset" && echo 'region reset'
kill $kernel_load $user_load
wait
workload --events 500 && echo 'workload done again'
# a process that records when its region is let go of has no slot from then on
slots_used() { cat /sys/class/misc/strata/slots_used; }
await_slots_used() {
    i=0
    until [ "$(slots_used)" = "$1" ] || [ $i -ge 100 ]; do
        sleep 0.1
        i=$((i + 1))
    done
}
await_slots_used 0
# shellcheck disable=SC2046 # a size each
workload --burst $(seq 900) > /dev/null &
recording=$!
await_slots_used 1
echo 1 > "$device/reset"
await_slots_used 0
echo "slots used after a reset: $(slots_used)"
kill -9 $recording
dmesg | grep 'strata: '
if dmesg | grep -v hw-vuln | grep -E 'BUG|WARNING|Oops|Call Trace|stall|general protection'; then
    echo 'guest kernel log has warnings'
else
    echo 'guest kernel log is clean'
fi
