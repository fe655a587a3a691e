start() {
    taskset 2 timeout -s KILL 240 strata run --kernel "$LAB/vmlinux" --initrd "$LAB/guest.cpio" --memory 512M \
        --cmdline "$GUEST lab.script=work" \
        --agent "$LAB/strata.ko" --trace "$LAB_OUT/$1" < /dev/null > "$LAB_OUT/$1.log" 2>&1
    echo "$1: status $?"
    tail -n 8 "$LAB_OUT/$1.log"
}
start one &
start two &
wait

# records the process $2 until it ends, with the region $3 if there is one, and notes how that ended
attach() {
    strata attach "$2" --name "$1" --trace "$LAB_OUT/$1" ${3:+--region "$3"} > "$LAB_OUT/$1-attach.log" 2>&1
    echo $? > "$LAB_OUT/$1-attach.status"
    wait "$2"
    echo $? > "$LAB_OUT/$1.status"
    echo "$1: host up for $(cut -d ' ' -f 1 /proc/uptime) s"
    cat "$LAB_OUT/$1-attach.log"
}
# starts the VMM of the guest $1, whose console goes to its log, and records it once that guest is up
record_guest() {
    name=$1
    shift
    "$@" < /dev/null > "$LAB_OUT/$name.log" 2>&1 &
    vmm=$!
    (sleep 200; kill -KILL $vmm) &
    limit=$!
    waited=0
    until grep -q 'guest is up' "$LAB_OUT/$name.log" || [ $waited -ge 60 ]; do
        sleep 1
        waited=$((waited + 1))
    done
    attach "$name" $vmm $region
    kill $limit
}
arguments="$GUEST lab.script=compute"
record_guest outside strata run --kernel "$LAB/vmlinux" --initrd "$LAB/guest.cpio" --memory 512M --cpus 2 \
    --cmdline "$arguments"
mkdir -p /lib64
ln -s "$LAB/ld-linux-x86-64.so.2" /lib64/
export LD_LIBRARY_PATH="$LAB"
region=/qemu-region
strata region create $region --cpus 2 --size 64M > "$LAB_OUT/region.log" 2>&1
record_guest qemu qemu-system-x86_64 -L "$LAB" -name guest=web,debug-threads=on -nodefaults -display none -no-reboot \
    -machine q35 -accel kvm -cpu host -smp 2 -m 512 -serial stdio \
    -object memory-backend-file,id=strata,share=on,mem-path=$region,size=64M -device ivshmem-plain,memdev=strata \
    -kernel "$LAB/vmlinux" -initrd "$LAB/guest.cpio" -append "$GUEST lab.script=traced"
region=/pmem-region
strata region create $region --cpus 2 --size 64M > /dev/null
record_guest pmem qemu-system-x86_64 -L "$LAB" -name guest=pmem,debug-threads=on -nodefaults -display none -no-reboot \
    -machine q35 -accel kvm -cpu host -smp 2 -m 512,slots=1,maxmem=1G -serial stdio \
    -object memory-backend-file,id=strata,share=on,mem-path=$region,size=64M -device virtio-pmem-pci,memdev=strata \
    -kernel "$LAB/vmlinux" -initrd "$LAB/pmem.cpio" -append "$GUEST lab.script=pmem"
region=
mkdir -p /dev/shm
mount -t tmpfs tmpfs /dev/shm
qemu-system-x86_64 -L "$LAB" -name guest=plugged,debug-threads=on -nodefaults -display none -no-reboot \
    -machine q35 -accel kvm -cpu host -smp 2 -m 512 -serial stdio -qmp unix:/qmp,server=on,wait=off \
    -device pcie-root-port,id=strata-port,chassis=1,pref64-reserve=128M \
    -kernel "$LAB/vmlinux" -initrd "$LAB/guest.cpio" \
    -append "$GUEST lab.script=plugged" < /dev/null > "$LAB_OUT/plugged.log" 2>&1 &
vmm=$!
(sleep 240; kill -KILL $vmm) &
limit=$!
until grep -q 'guest is up' "$LAB_OUT/plugged.log" || ! kill -0 $vmm; do sleep 1; done
for socket in /nonexistent /dev/null; do
    strata attach $vmm --qmp $socket --trace "$LAB_OUT/refused"
    echo "status $?"
done > "$LAB_OUT/refused.log" 2>&1
for name in plugged again; do
    strata attach $vmm --name $name --qmp /qmp --duration 5s --trace "$LAB_OUT/$name" \
        > "$LAB_OUT/$name-attach.log" 2>&1
    echo $? > "$LAB_OUT/$name-attach.status"
    cat "$LAB_OUT/$name-attach.log"
done
wait $vmm
echo $? > "$LAB_OUT/plugged.status"
kill $limit
ls -A /dev/shm > "$LAB_OUT/left.log"
tiny-vmm 6 2 > "$LAB_OUT/tiny.log" 2>&1 &
tiny=$!
sleep 1
attach tiny $tiny
exit 0
