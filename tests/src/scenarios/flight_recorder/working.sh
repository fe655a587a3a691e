echo 'guest is up'
workload --exits &
while :; do workload --events 500 > /dev/null; sleep 0.1; done
