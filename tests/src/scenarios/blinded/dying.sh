mark() {
    for cpu in 0 1; do
        ln -s /bin/busybox /tmp/$1-$cpu
        taskset $((1 << cpu)) /tmp/$1-$cpu > /dev/null 2>&1
    done
}
mark before
taskset 2 insmod /modules/faulting.ko
echo "insmod ended with status $?"
sleep 1
for cpu in 0 1; do
    taskset $((1 << cpu)) workload --events 200 > /dev/null && echo "workload done on CPU $cpu"
done
mark after
dmesg | grep -E 'strata: |BUG: |faulting: '
