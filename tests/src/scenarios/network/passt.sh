ip link set lo up
busybox tunctl -t strata7
ip addr add 192.168.77.1/24 dev strata7
ip link set strata7 up
ip route add default via 192.168.77.254 dev strata7
sleep 300 | busybox nc -l -p 7778 > "$LAB_OUT/received-by-passt" &
own=/tmp/own
mkdir $own
mount -t tmpfs own $own
for path in /*; do
    if [ -L "$path" ]; then
        cp -a "$path" $own/
    elif [ -d "$path" ] && [ "$path" != /etc ]; then
        mkdir "$own$path" && mount -o rbind "$path" "$own$path"
    fi
done
mkdir $own/etc
echo 'nobody:x:65534:65534::/:/bin/false' > $own/etc/passwd
[ -e $own/lib64 ] || { mkdir $own/lib64 && ln -s "$LAB/ld-linux-x86-64.so.2" $own/lib64/; }
cd "$own" || exit
mount -o move . /
exec chroot . sh -c '
    LD_LIBRARY_PATH=$LAB timeout -s KILL 120 strata run --kernel "$LAB/vmlinux" --initrd "$LAB/guest.cpio" \
        --memory 512M --cpus 2 --net passt --agent "$LAB/strata.ko" --trace "$LAB_OUT/passt.trace" \
        --events "default,guest-kernel:net:*,guest-kernel:napi:*" --sub-buffers 64 \
        --cmdline "$GUEST lab.script=passt" < /dev/null > "$LAB_OUT/passt.log" 2>&1
    echo $? > "$LAB_OUT/passt.status"'
