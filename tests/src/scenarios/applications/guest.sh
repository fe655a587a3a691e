status() {
    echo "== status $*"
    strata-agent status "$@"
    echo "== status ended with $?"
}
try() {
    echo "== $*"
    "$@"
    echo "== $1 ended with $?"
}
# as udev's rule does, with a number for the group
chown 0:4242 /dev/strata
chmod 660 /dev/strata
processes late-cpu 1 &
sleep 1
echo 1 > /sys/devices/system/cpu/cpu1/online
wait
status
status --json
try isolation
try processes fork
try processes exec
try processes kill
try processes migrate
# as with a C library that registers no rseq areas
try env GLIBC_TUNABLES=glibc.pthread.rseq=0 processes migrate
try shop 1000
try baker
try orders
sleep 1
try processes crowd CROWD
sleep 1
try processes crowd USERS_CROWD 1000 4242
sleep 1
try processes crowd USERS_CROWD 1001 4242 2
status --json
try processes fork-in-handler
try rmmod strata
status
echo '== kernel log'
dmesg | grep -E 'BUG|WARNING|Oops|strata'
