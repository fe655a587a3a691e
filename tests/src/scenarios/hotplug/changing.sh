echo 'guest is up'
(while [ ! -e /tmp/done ]; do
    loaded=
    for module in @MODULES@; do insmod /modules/$module && loaded="${module%.ko} $loaded"; done
    for module in $loaded; do rmmod $module && echo 'modules loaded'; done
done) > /tmp/modules 2>&1 &
i=0
cycles=@CYCLES@
while [ $i -lt $cycles ]; do
    echo 0 > /sys/devices/system/cpu/cpu1/online
    ls / > /dev/null
    echo 1 > /sys/devices/system/cpu/cpu1/online
    ls / > /dev/null
    i=$((i + 1))
    echo "cycle $i"
done
touch /tmp/done
wait
sort /tmp/modules | uniq -c | head
workload --events 200 > /dev/null && echo 'workload done'
until rmmod strata 2> /dev/null; do sleep 0.1; done
insmod /modules/other-release.ko && echo 'a module of another release was loaded'
dmesg | grep 'strata: '
if dmesg | grep -v hw-vuln | grep -E -A 20 'BUG|WARNING|Oops|Call Trace|stall|blocked for more|general protection'; then
    echo 'guest kernel log has warnings'
else
    echo 'guest kernel log is clean'
fi
