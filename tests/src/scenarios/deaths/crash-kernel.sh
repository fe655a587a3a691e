workload --events 100 > /dev/null
second_kernel load-crash /modules/reset.bzimage '' || exit
echo 1 > /proc/sys/kernel/panic_on_oops
taskset 2 insmod /modules/dying.ko how=oops
sleep 60
