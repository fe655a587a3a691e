kernel=$LAB/vmlinux
guest() {
    scenario=$1
    shift
    echo "== $scenario, host up for $(cut -d ' ' -f 1 /proc/uptime) s"
    # a guest that hangs must not cost the results of the others, nor all together the host's time
    timeout -s KILL 75 strata run --kernel "$kernel" --initrd "$LAB/guest.cpio" --memory 512M \
        --agent "$LAB/strata.ko" --trace "$LAB_OUT/$scenario.trace" \
        --cmdline "$GUEST lab.script=$scenario" "$@" \
        < /dev/null > "$LAB_OUT/$scenario.log" 2>&1 &
    strata=$!
    echo $strata > "$LAB_OUT/$scenario.pid"
    wait $strata
    echo $? > "$LAB_OUT/$scenario.status"
    tail -n 3 "$LAB_OUT/$scenario.log"
}

# sends signal $1 to scenario $2 once its guest has said $3
signal_once() {
    waited=0
    until grep -q "$3" "$LAB_OUT/$2.log" 2> /dev/null || [ $waited -ge 60 ]; do
        sleep 1
        waited=$((waited + 1))
    done
    sleep 1
    kill -"$1" "$(cat "$LAB_OUT/$2.pid")"
}

guest activity --cpus 2
guest burst --cpus 2

cp "$LAB/disk.img" "$LAB_OUT/disk.img"
guest disk --cpus 1 --disk "$LAB_OUT/disk.img,bandwidth=1M:256K"

guest panic --cpus 2

# the kernel as it is distributed
kernel=$LAB/vmlinuz
guest reboot --cpus 1
kernel=$LAB/vmlinux

# guests that are started again
cp "$LAB/disk.img" "$LAB_OUT/reboot-once.img"
guest reboot-once --cpus 1 --disk "$LAB_OUT/reboot-once.img" --on-reboot restart
cp "$LAB/disk.img" "$LAB_OUT/reboot-and-stay.img"
signal_once TERM reboot-and-stay 'guest is up again' &
guest reboot-and-stay --cpus 1 --disk "$LAB_OUT/reboot-and-stay.img" --on-reboot restart --mode flight-recorder
wait

# an interrupt, as from the keyboard, once the guest is up
signal_once INT forever 'guest is up' &
guest forever --cpus 2
wait

ls /sys/kernel/tracing/instances > "$LAB_OUT/instances"
exit 0
