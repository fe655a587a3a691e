# until sessions are looked for
sleep 2
taskset 2 insmod /modules/faulting.ko
echo "insmod ended with status $?"
sleep 1
# more than three laps of a ring
for cpu in 0 1; do
    taskset $((1 << cpu)) dd if=/dev/zero of=/dev/null bs=1 count=@CALLS@ 2> /dev/null
    echo "dd done on CPU $cpu"
done
# until they are drained
sleep 2
for cpu in 0 1; do
    ln -s /bin/busybox /tmp/after-$cpu
    taskset $((1 << cpu)) /tmp/after-$cpu > /dev/null 2>&1
done
dmesg | grep -E 'strata: |BUG: |faulting: '
