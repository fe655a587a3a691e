[ -f /init ] && [ ! -L /init ] && [ ! -e /strata-init.guest ] && ! grep -q rdinit /proc/cmdline &&
    echo "the first program is the guest's: $(tr '\000' ' ' < /proc/1/cmdline)"
dmesg | grep 'strata: '
[ -e /dev/strata ] && echo 'there is a device'
workload --events 100 && echo 'workload done'
