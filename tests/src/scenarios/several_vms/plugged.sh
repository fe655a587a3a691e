insmod /strata.ko wait=1
(timeout 200 sh -c 'while :; do :; done') &
echo guest is up
for round in 1 2; do
until [ -e /dev/strata ]; do sleep 1; done
workload --events 1000000000 > /dev/null &
long=$!
while [ -e /dev/strata ]; do workload --events 200 > /dev/null; sleep 1; done
sleep 1
kill -0 $long && kill $long && echo "application $round outlives its region"
done
rmmod strata
dmesg | grep strata
dmesg | grep -E 'BUG:|WARNING: CPU|Oops'
sleep 1
