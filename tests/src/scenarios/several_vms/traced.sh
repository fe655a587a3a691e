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
