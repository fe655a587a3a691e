guest debug --kernel "$LAB/bzImage" --initrd "$LAB/guest.cpio" --cpus @CPUS@ --memory 2048 --trace "$LAB_OUT/debug.trace" \
    --events all --cmdline "$GUEST loglevel=7 log_buf_len=4M lab.script=work" &
exec > "$LAB_OUT/control.log" 2>&1
until [ -e "$LAB_OUT/debug.trace/session.json" ] || [ -e "$LAB_OUT/debug.status" ]; do sleep 0.1; done
rounds=0
round() {
    strata ctl debug session events main $1 &&
        strata ctl debug session create round$rounds --mode flight-recorder --events $1 &&
        strata ctl debug session start round$rounds && sleep 0.7 &&
        strata ctl debug snapshot "$LAB_OUT/snapshot" --session round$rounds && rm -r "$LAB_OUT/snapshot" &&
        strata ctl debug session destroy round$rounds && sleep 0.7
}
goes_on=true
while $goes_on; do
    for choice in minimal all default; do
        $goes_on && round $choice && rounds=$((rounds + 1)) || goes_on=false
    done
done
wait
echo "$rounds rounds of sessions"
exit 0
