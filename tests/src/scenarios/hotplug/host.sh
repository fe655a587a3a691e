STRATA_RUNTIME_DIR=$(mktemp -d)
export STRATA_RUNTIME_DIR
timeout -s KILL @SECONDS@ strata run --kernel "$LAB/vmlinux" --initrd "$LAB/guest.cpio" --memory 512M --cpus 2 \
    --agent "$LAB/strata.ko" --name hotplug --trace "$LAB_OUT/hotplug.trace" --events all --mode flight-recorder \
    --cmdline "$GUEST hung_task_panic=0 lab.script=changing" < /dev/null > "$LAB_OUT/hotplug.log" 2>&1 &
guest=$!
exec 3>&1 > "$LAB_OUT/control.log" 2>&1
until grep -q 'guest is up' "$LAB_OUT/hotplug.log" || ! kill -0 $guest; do sleep 0.2; done
# until the guest has ended
while strata ctl hotplug session events main minimal; do
    sleep 0.3
    strata ctl hotplug session events main all
    sleep 0.3
done
wait $guest
echo $? > "$LAB_OUT/hotplug.status"
tail -n 3 "$LAB_OUT/hotplug.log" >&3
exit 0
