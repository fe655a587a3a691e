workload --events 2000
echo 'guest is up'
(while :; do workload --events 500 > /dev/null; sleep 0.1; done) &
(while :; do known_load reads /dev/vda 25 > /dev/null; sleep 1; done) &
read -r line < /dev/ttyS0
echo c > /proc/sysrq-trigger
sleep 60
