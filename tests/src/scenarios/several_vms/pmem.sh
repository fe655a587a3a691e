disks() { echo "$(ls /sys/block | grep -c pmem) disks $1"; }
disk_appears() { for round in 1 2 3 4 5 6 7 8 9; do [ -e /sys/block/pmem0 ] || sleep 1; done; }
disk_appears
disks before
insmod /strata.ko
disks with
rmmod strata
echo /sys/bus/virtio/devices/* | sed 's|.*/||' > /sys/bus/virtio/drivers/virtio_pmem/bind
disk_appears
disks after
insmod /strata.ko
dmesg | grep strata
compute() { timeout 5 sh -c 'while :; do :; done'; }
echo guest is up
compute &
compute &
while kill -0 $!; do workload --events 200; sleep 1; done
wait
dmesg | grep -E 'BUG:|WARNING: CPU|Oops'
sleep 1
