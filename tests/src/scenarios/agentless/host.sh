guest() {
    name=$1 kernel=$2 image=$3 script=$4
    shift 4
    echo "== $name, host up for $(cut -d ' ' -f 1 /proc/uptime) s"
    timeout -s KILL 120 strata run --kernel "$LAB/$kernel" --initrd "$LAB/$image" --memory 512M --cpus 2 \
        --name vm0 --trace "$LAB_OUT/$name.trace" --writable "$LAB_OUT" --cmdline "$GUEST lab.script=$script" "$@" \
        < /dev/null > "$LAB_OUT/$name.log" 2>&1
    echo $? > "$LAB_OUT/$name.status"
    tail -n 3 "$LAB_OUT/$name.log"
}

snapshot() {
    log=$LAB_OUT/$1.log snapshot=$2
    n=0
    until grep -q 'at work' "$log" 2> /dev/null || [ $n -ge 600 ]; do sleep 0.1; n=$((n + 1)); done
    strata ctl vm0 snapshot "$LAB_OUT/$snapshot.trace" > "$LAB_OUT/$snapshot.log" 2>&1
    echo $? > "$LAB_OUT/$snapshot.status"
}

snapshot panic-6.12 running &
guest panic-6.12 panic-6.12.bzimage panic-6.12.cpio panic --agentless --agentless-size 2M --mode flight-recorder
wait
for name in @OTHERS@; do
    guest $name $name.bzimage $name.cpio panic --agentless
done
guest elf elf.vmlinux panic-6.12.cpio hello --agentless='sched:*' --agentless-size 1M --mode flight-recorder
guest old old.vmlinux panic-6.12.cpio hello --agentless
exit 0
