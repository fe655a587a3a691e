# two of the CPUs that this script may use
cpus=$(sed -n 's/^Cpus_allowed_list:[^0-9]*//p' /proc/self/status)
first=${cpus%%[!0-9]*}
second=$((first + 1))
# waits until the log $1 has a line with $2
until_said() {
    waited=0
    until grep -q "$2" "$LAB_OUT/$1" || [ $waited -ge 900 ]; do
        usleep 100000
        waited=$((waited + 1))
    done
}
# keeps the vCPU $2 of the VM whose process is $1 on the CPU $second, and all of its other threads on the first one
place() {
    for task in /proc/$1/task/*; do
        case $(cat "$task/comm") in
            "vcpu$2") known_load pin "${task##*/}" $second ;;
            *) known_load pin "${task##*/}" $first ;;
        esac
    done
}
# the thread of the process $1 that is called $2
thread_of() {
    for task in /proc/$1/task/*; do
        [ "$(cat "$task/comm")" = "$2" ] && echo "${task##*/}"
    done
}
# CPU time of the neighbour's vCPU, ns
neighbours_time() {
    sed 's/ .*//' /proc/$neighbour/task/$vcpu/schedstat
}

# the thread that moves the packets of the VM whose process is $1: the kernel's, or since Linux 6.4 its own
mover_of() {
    for thread in /proc/[0-9]* /proc/$1/task/*; do
        [ "$(cat "$thread/comm" 2> /dev/null)" = "vhost-$1" ] && echo "${thread##*/}" && return
    done
}

for module in @MODULES@; do insmod "$LAB/$module" || echo "cannot load $module"; done
busybox tunctl -t strata8 || exit 1
echo 1 > /proc/sys/net/ipv6/conf/strata8/disable_ipv6
ip addr add 192.168.78.1/24 dev strata8
ip link set strata8 up
strata run --name neighbour --kernel "$LAB/vmlinux" --initrd "$LAB/guest.cpio" --memory 256M \
    --trace "$LAB_OUT/neighbour" --cmdline "$GUEST lab.script=neighbour" \
    < /dev/null > "$LAB_OUT/neighbour.console" 2>&1 &
neighbour=$!
mkfifo /tmp/input
strata run --kernel "$LAB/vmlinux" --initrd "$LAB/guest.cpio" --cpus 2 --memory 512M \
    --agent "$LAB/strata.ko" --trace "$LAB_OUT/trace" --writable "$LAB_OUT" --disk "$LAB/disk.img,ro,delay=500ms" \
    --net tap=strata8,vhost=on \
    --sub-buffers 64 --cmdline "$GUEST lab.script=loads" \
    < /tmp/input > "$LAB_OUT/guest.log" 2>&1 &
strata=$!
exec 3> /tmp/input
# what this script runs from here on keeps off the CPU of those who are waited for
known_load pin $$ $first
(sleep 200; kill -KILL $strata $neighbour) &
limit=$!
until_said neighbour.console 'guest is up'
strata ctl $neighbour pause
until_said guest.log 'guest is up'
place $neighbour 0
place $strata 1
vcpu=$(thread_of $neighbour vcpu0)
own_vcpu=$(thread_of $strata vcpu1)
strata ctl $strata session create blind --events 'guest-kernel:sched:*' --trace "$LAB_OUT/blind" &&
    strata ctl $strata session start blind
# its probes are set by the guest itself, in the time that others have not asked for
sleep 2
echo go >&3

until_said guest.log 'known: sleeper'
strata ctl $strata session stop blind
until_said guest.log 'begins: standstill'
strata ctl $strata pause
sleep 2
strata ctl $strata resume
until_said guest.log 'begins: preempted'
known_load hog $second 2 50 > "$LAB_OUT/hog.log"
until_said guest.log 'begins: late'
known_load bursts $second 3 400 "$own_vcpu" > "$LAB_OUT/bursts.log"
until_said guest.log 'known: compute .* begins'
before=$(neighbours_time)
strata ctl $neighbour resume
sleep 2
strata ctl $neighbour pause
echo "known: neighbour pid=$vcpu cpu_ns=$(($(neighbours_time) - before))" > "$LAB_OUT/neighbour.log"
until_said guest.log 'begins: packet'
mover=$(mover_of $strata)
# a CPU that no vCPU is on, if there is one
third=0
[ $first = 0 ] && third=$((first + 2))
[ -d /sys/devices/system/cpu/cpu$third ] || third=$first
known_load pin "$mover" $third
# the burst is not to be interrupted in favour of others
echo -1 > /proc/sys/kernel/sched_rt_runtime_us
known_load bursts $third 1 4000 "$mover" > "$LAB_OUT/holdup.log"
wait $strata
status=$?
strata ctl $neighbour stop
wait $neighbour
kill $limit
echo "known: mover pid=$mover" >> "$LAB_OUT/holdup.log"
cat "$LAB_OUT/hog.log" "$LAB_OUT/bursts.log" "$LAB_OUT/neighbour.log" "$LAB_OUT/holdup.log"
grep 'known:' "$LAB_OUT/guest.log"
tail -n 5 "$LAB_OUT/guest.log"
exit $status
