free_kib() { grep MemFree: /proc/meminfo | tr -dc 0-9; }
# $1 is how MemFree is to compare with the number of KiB $2.
until_free() { for turn in $(seq 200); do test "$(free_kib)" "$1" "$2" && break; sleep 0.1; done; }
mkdir /tmp/pieces
for piece in $(seq 128); do head -c 1048576 /dev/zero > /tmp/pieces/$piece; done
rm /tmp/pieces/*[13579]
before=$(free_kib)
echo "free before the balloon: $before"
until_free -lt $((before - 40000))
echo "free with the balloon: $(free_kib)"
until_free -gt $((before - 10000))
echo "free after the balloon: $(free_kib)"
rm -r /tmp/pieces
# only whole blocks of 2 MiB are reported as free
echo 1 > /proc/sys/vm/compact_memory
echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6
ip addr add 192.168.77.2/24 dev eth0
ip link set eth0 up
cat /sys/class/net/eth0/address
echo "guest is up"
ping -c 5 192.168.77.1
yes strata | head -c 262144 | nc 192.168.77.1 7777
echo "sent with status $?"
mkdir -p /etc/dropbear
echo root:x:0:0::/root:/bin/sh > /etc/passwd
dropbear -F -E -R -s -p 192.168.77.2:22 &
until grep -q ':0016 ' /proc/net/tcp; do sleep 0.1; done
echo "ssh is open"
for turn in $(seq 300); do [ -e /tmp/greeted ] && break; sleep 0.1; done
while grep -q '0016 [0-9A-F:]* 01 ' /proc/net/tcp; do sleep 0.1; done
sleep 1
ip link set eth0 down
echo "packets sent: $(cat /sys/class/net/eth0/statistics/tx_packets)"
echo "packets received: $(cat /sys/class/net/eth0/statistics/rx_packets)"
echo "random bytes: $(head -c 300 /dev/hwrng | wc -c)"
echo hello from the guest | sockets send 78
echo hello | sockets send 79
sockets echo 22
