for module in @MODULES@; do insmod "$LAB/$module" || echo "cannot load $module"; done
busybox tunctl -t strata7 || exit 1
trap 'busybox tunctl -d strata7' EXIT
echo 1 > /proc/sys/net/ipv6/conf/strata7/disable_ipv6
ip addr add 192.168.77.1/24 dev strata7
ip link set strata7 up
mkdir "$LAB/repository"
mv "$LAB/Packages" "$LAB/lab-greeting.deb" "$LAB/repository/"
busybox httpd -p 192.168.77.1:8080 -h "$LAB/repository"
timeout -s KILL 500 strata run --image "$LAB/debian.img" --memory 768M --cpus 2 --net tap=strata7 --rng \
    --trace "$LAB_OUT/debian.trace" --cmdline "console=ttyS0 panic=-1 quiet systemd.show_status=false" \
    < /dev/null > "$LAB_OUT/debian.log" 2>&1 &
guest=$!
until grep -q 'out of' "$LAB_OUT/debian.log" || ! kill -0 $guest; do sleep 0.2; done
sleep 2
strata run --name vm1 --image "$LAB/debian.img" --memory 768M < /dev/null > "$LAB_OUT/busy.log" 2>&1
wait $guest
echo $? > "$LAB_OUT/debian.status"
tail -n 5 "$LAB_OUT/debian.log"
exit 0
