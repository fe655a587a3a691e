mkdir -p /tmp/out
mount -t tracefs tracefs /sys/kernel/tracing
# shellcheck disable=SC2010 # names of events are plain
ls /sys/kernel/tracing/events/*/*/format | grep -v -e /ftrace/ -e /syscalls/ | xargs cat > /tmp/out/formats
workload --events 200 > /dev/null
ls -lR /proc/sys > /dev/null
dd if=/dev/zero of=/dev/vdb bs=64k count=16 2> /dev/null
sync
(i=0; while [ $i -lt 60 ]; do ls / > /dev/null; i=$((i + 1)); done) &
sleep 2
rmmod strata; echo "rmmod ended with $?"
wait
ls / > /dev/null
dmesg > /tmp/out/dmesg
tar cf /dev/vda -C /tmp/out formats dmesg
sync
