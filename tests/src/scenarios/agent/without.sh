dmesg | grep 'strata: '
[ -e /dev/strata ] && echo 'there is a device'
workload --events 100 && echo 'workload done'
