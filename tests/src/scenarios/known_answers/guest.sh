echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6
echo guest is up
read -r go < /dev/ttyS0
known_load held sleeper sleeping 1500
known_load reads /dev/vda 3
known_load chain /dev/vda 3
known_load request 1500
known_load inversion 1200
known_load competition 1200
known_load sleeps nap 1 100 7
known_load child 3000
known_load cpuid 8000
known_load fresh-memory 64
known_load port 4096
known_load standstill 5000
known_load held preempted computing 6000
known_load sleeps late 1 20 150
known_load compute 1 6
# the driver lets go of its device and takes it again, which begins anew then
device=$(readlink /sys/class/net/eth0/device)
echo "${device##*/}" > /sys/bus/virtio/drivers/virtio_net/unbind
echo "${device##*/}" > /sys/bus/virtio/drivers/virtio_net/bind
ip addr add 192.168.78.2/24 dev eth0
ip link set eth0 up
# finds out where the host is
ping -c 2 192.168.78.1 > /dev/null
echo begins: packet
sleep 2
sh -c 'echo "known: packet pid=$$"; exec ping -c 1 -W 20 192.168.78.1'
