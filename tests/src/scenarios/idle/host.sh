STRATA_RUNTIME_DIR=$(mktemp -d)
export STRATA_RUNTIME_DIR
timeout -s KILL @SECONDS@ strata run --kernel "$LAB/vmlinux" --initrd "$LAB/guest.cpio" --memory 512M --cpus 2 \
    --name idle --trace "$LAB_OUT/idle.trace" \
    --cmdline "$GUEST lab.script=idling" < /dev/null > "$LAB_OUT/idle.log" 2>&1 &
guest=$!
exec 3>&1 > "$LAB_OUT/control.log" 2>&1
said() {
    until grep -q "$1" "$LAB_OUT/idle.log" || ! kill -0 $guest; do sleep 0.2; done
}
said 'guest is up'
strata ctl idle session stop main
said 'guest wants a session'
strata ctl idle session start main
said 'guest wants a flush'
strata ctl idle flush
wait $guest
echo $? > "$LAB_OUT/idle.status"
tail -n 3 "$LAB_OUT/idle.log" >&3
exit 0
