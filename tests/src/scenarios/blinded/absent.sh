echo 'guest is up'
workload --events 100 > /dev/null
read -r line < /dev/ttyS0
workload --events 100 > /dev/null && echo 'workload done'
