# two of the CPUs that this script may use
cpus=$(sed -n 's/^Cpus_allowed_list:[^0-9]*//p' /proc/self/status)
first=${cpus%%[!0-9]*}
second=$((first + 1))
strata run --kernel "$LAB/vmlinux" --initrd "$LAB/guest.cpio" --cpus 2 --memory 512M \
    --agent "$LAB/strata.ko" --trace "$LAB_OUT/trace" --writable "$LAB_OUT" --disk "$LAB/disk.img,ro,delay=50ms" \
    --sub-buffers 64 --cmdline "$GUEST lab.script=analysis" \
    < /dev/null > "$LAB_OUT/guest.log" 2>&1 &
strata=$!
(sleep 240; kill -KILL $strata) &
limit=$!
waited=0
until grep -q 'known: compute' "$LAB_OUT/guest.log" || [ $waited -ge 120 ]; do
    sleep 1
    waited=$((waited + 1))
done
for task in /proc/$strata/task/*; do
    case $(cat "$task/comm") in
        vcpu1)
            vcpu=${task##*/}
            known_load pin "$vcpu" $second
            ;;
        *) known_load pin "${task##*/}" $first ;;
    esac
done
for thread in $(cat /sys/kernel/tracing/instances/strata-$strata-*/set_event_pid); do
    case $thread in
        *[!0-9]*) ;;
        *) echo "$(cat /proc/$thread/comm)" ;;
    esac
done > "$LAB_OUT/threads"
strata ctl vm0 session create late --events minimal --trace "$LAB_OUT/late.trace" &&
    strata ctl vm0 session start late
known_load hog $second 3 40 > "$LAB_OUT/hog.log"
# for a second vCPU 1 may not have all of its CPU, which nobody else wants
limited=/sys/fs/cgroup/limited
mount -t cgroup2 cgroup2 /sys/fs/cgroup
echo +cpu > /sys/fs/cgroup/cgroup.subtree_control
mkdir $limited
echo threaded > $limited/cgroup.type
echo "30000 100000" > $limited/cpu.max
echo "$vcpu" > $limited/cgroup.threads
sleep 1
# cpu.stat counts a throttling when it ends: the end of the limit ends the one that may be under way
echo "max 100000" > $limited/cpu.max
echo "$vcpu" > /sys/fs/cgroup/cgroup.threads
sed -n 's/^throttled_usec /known: limited throttled_us=/p' $limited/cpu.stat > "$LAB_OUT/limited.log"
wait $strata
status=$?
kill $limit
cat "$LAB_OUT/hog.log" "$LAB_OUT/limited.log"
grep 'known:' "$LAB_OUT/guest.log"
tail -n 5 "$LAB_OUT/guest.log"
exit $status
