echo "symbols: $(grep -v ']$' /proc/kallsyms | md5sum)"
workload --events 100 > /dev/null
echo at work
n=0
while [ $n -lt 400 ]; do workload --events 10 > /dev/null; sleep 0.02; n=$((n + 1)); done &
sleep 8
sync
echo c > /proc/sysrq-trigger
sleep 60
