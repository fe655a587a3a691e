for module in @MODULES@; do insmod "$LAB/$module" || echo "cannot load $module"; done
busybox tunctl -t strata7 || exit 1
trap 'busybox tunctl -d strata7' EXIT
echo 1 > /proc/sys/net/ipv6/conf/strata7/disable_ipv6
ip addr add 192.168.77.1/24 dev strata7
ip link set strata7 up
vm() {
    strata run --kernel "$LAB/vmlinux" --initrd "$LAB/guest.cpio" --memory 512M --cpus 2 "$@" < /dev/null
}
vm --net tap=strata-none > "$LAB_OUT/missing.log" 2>&1
# Its own input stays open: an end of that would end the connection.
sleep 300 | busybox nc -l -p 7777 > "$LAB_OUT/received" &
mkdir -m 700 /tmp/sockets
sockets serve /tmp/sockets/vsock_78 > "$LAB_OUT/served" &
vm --net tap=strata7,mac=52:54:00:12:34:56 --vsock cid=3,path=/tmp/sockets/vsock \
    --rng --balloon --agent "$LAB/strata.ko" --trace "$LAB_OUT/network.trace" \
    --events 'default,guest-kernel:net:*,guest-kernel:napi:*,host-kernel:net:*' --sub-buffers 64 \
    --cmdline "$GUEST lab.script=network" > "$LAB_OUT/network.log" 2>&1 &
guest=$!
(sleep 260; kill -KILL $guest) &
limit=$!
says() { until grep -q "$1" "$LAB_OUT/network.log" || ! kill -0 $guest; do sleep 0.2; done; }
says 'free before the balloon'
process=$(strata ctl vm0 status --json | grep -m 1 '"pid"' | tr -dc 0-9)
resident_kib() { grep RssAnon: /proc/$process/status | tr -dc 0-9; }
resident() { echo "$1 $(resident_kib)" >> "$LAB_OUT/resident"; }
before=$(resident_kib)
resident before
for turn in $(seq 10); do
    strata ctl vm0 balloon 48M --json > "$LAB_OUT/inflated.json"
    grep -q '"given": 50331648' "$LAB_OUT/inflated.json" && break
done
resident inflated
says 'free with the balloon'
for turn in $(seq 10); do
    strata ctl vm0 balloon 0 --json > "$LAB_OUT/deflated.json"
    grep -q '"given": 0,' "$LAB_OUT/deflated.json" && break
done
says 'guest is up'
strata ctl vm0 balloon
vm --name vm1 --net tap=strata7 > "$LAB_OUT/busy.log" 2>&1
says 'ssh is open'
[ -e /lib64 ] || { mkdir /lib64 && ln -s "$LAB/ld-linux-x86-64.so.2" /lib64/; }
LD_LIBRARY_PATH=$LAB timeout -s KILL 25 dbclient -y -y -i "$LAB/ssh-key" root@192.168.77.2 'whoami; cat /proc/cmdline; touch /tmp/greeted' \
    < /dev/null > "$LAB_OUT/by-ssh" 2> "$LAB_OUT/ssh.log"
says 'port 22 is open'
# The guest waits for the call. It reports what is free bit by bit, every two seconds.
for turn in $(seq 60); do [ "$(resident_kib)" -lt $((before - 65536)) ] && break; sleep 0.5; done
resident reported
yes vsock | head -c 524288 | sockets call /tmp/sockets/vsock 22 > "$LAB_OUT/given-back"
wait $guest
echo $? > "$LAB_OUT/network.status"
kill $limit
ip link show > "$LAB_OUT/links"
ls /tmp/sockets > "$LAB_OUT/sockets"
tail -n 12 "$LAB_OUT/network.log"
cat > /tmp/passt.sh << 'PASST'
@PASST@
PASST
unshare -m -n sh /tmp/passt.sh
tail -n 12 "$LAB_OUT/passt.log"
exit 0
