workload --events 100 > /dev/null
sleep 0.2
echo b > /proc/sysrq-trigger
sleep 60
