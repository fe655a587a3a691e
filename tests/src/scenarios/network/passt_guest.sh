echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6
cat > /tmp/lease << 'END'
#!/bin/sh
[ "$1" = bound ] || exit 0
echo "leased $ip/$mask behind $router"
ip addr add $ip/$mask dev $interface
ip route add default via $router
END
chmod 755 /tmp/lease
ip link set eth0 up
udhcpc -i eth0 -s /tmp/lease -n -q
yes strata | head -c 262144 | nc 192.168.77.254 7778
echo "sent with status $?"
