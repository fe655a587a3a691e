echo 'guest is up'
workload --exits &
while :; do workload --events 500 > /dev/null; done
