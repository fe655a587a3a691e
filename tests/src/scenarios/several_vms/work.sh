workload --events 500
timeout 2 sh -c 'while :; do :; done'
workload --events 500
