insmod /strata.ko
dmesg | grep strata
echo guest is up
# brings processors online that are plugged in, and computes on all of them now and then
while :; do
    for cpu in /sys/devices/system/cpu/cpu[0-9]*/online; do
        [ "$(cat "$cpu")" = 1 ] || echo 1 > "$cpu"
    done
    workload --events 40 > /dev/null
    sleep 0.2
done
