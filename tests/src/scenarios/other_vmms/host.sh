mkdir -p /lib64
ln -s "$LAB/ld-linux-x86-64.so.2" /lib64/
export LD_LIBRARY_PATH="$LAB"
until_said() {
    waited=0
    until grep -q "$2" "$LAB_OUT/$1.log" 2> /dev/null || [ $waited -ge 60 ]; do
        sleep 1
        waited=$((waited + 1))
    done
}
# begins to record the process $2
begin() {
    echo "== $1, host up for $(cut -d ' ' -f 1 /proc/uptime) s"
    strata attach > "$LAB_OUT/$1-listed.log" 2>&1
    strata attach "$2" --name "$1" --trace "$LAB_OUT/$1" > "$LAB_OUT/$1-attach.log" 2>&1 &
    recorder=$!
    until_said "$1-attach" 'attached to'
    strata ps > "$LAB_OUT/$1-ps.log" 2>&1
}
end() {
    wait $recorder
    echo $? > "$LAB_OUT/$1-attach.status"
    cat "$LAB_OUT/$1.log" "$LAB_OUT/$1-attach.log"
}

# it takes a terminal for its input, and a disk to be told that its guest is recorded
truncate -s 1M /alioth.img
timeout -s KILL 100 alioth boot --pvh "$LAB/vmlinux" -i "$LAB/guest.cpio" -c "$GUEST lab.script=load" \
    -p count=2 -m size=512M --blk file,path=/alioth.img < /dev/ttyS0 > "$LAB_OUT/alioth.log" 2>&1 &
limit=$!
until_said alioth 'guest is up'
begin alioth "$(pidof alioth)"
echo recorded | dd of=/alioth.img conv=notrunc 2> /dev/null
wait $limit
echo $? > "$LAB_OUT/alioth.status"
end alioth

# its guest's root is a folder of a file system with extended attributes
insmod "$LAB/loop.ko"
mkdir /disk
mount -o loop "$LAB/disk.img" /disk
for folder in bin dev etc proc root run sys tmp usr var; do mkdir -p /disk/root/$folder; done
cp /bin/busybox /disk/root/bin/
for program in dd sh sleep taskset timeout true; do ln -s busybox /disk/root/bin/$program; done
echo root:x:0:0:root:/root:/bin/sh > /disk/root/etc/passwd
cat > /disk/root/load.sh << 'END'
compute() { taskset "$1" timeout @COMPUTED_SECONDS@ sh -c 'while :; do :; done'; }
compute 1 &
compute 2
wait
taskset 2 dd if=/dev/port of=/dev/null bs=1 skip=$((@FIRST_PORT@)) count=@PORTS@
END
export MSB_PATH="$LAB/msb" MSB_LIBKRUNFW_PATH="$LAB/libkrunfw.so.5" MSB_HOME=/disk/msb
guest() { timeout -s KILL 60 msb "$@" >> "$LAB_OUT/libkrun.log" 2>&1; }
guest create -q --pull never -n libkrun -c 2 -m 512M --no-net /disk/root
begin libkrun "$(pidof msb)"
guest exec libkrun --no-stdin -- /bin/sh /load.sh
echo $? > "$LAB_OUT/libkrun-load.status"
guest pause libkrun
sleep @PAUSED_SECONDS@
guest resume libkrun
guest exec libkrun --no-stdin -- /bin/true
echo $? > "$LAB_OUT/libkrun-resumed.status"
guest stop -q libkrun
echo $? > "$LAB_OUT/libkrun.status"
end libkrun
echo "host up for $(cut -d ' ' -f 1 /proc/uptime) s"
df -k /disk
exit 0
