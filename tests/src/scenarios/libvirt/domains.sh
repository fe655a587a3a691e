# One domain with a region, which is paused, gets and loses a vCPU and is destroyed while it is recorded; then one without
# whose name has a blank, by each of its names.
export PATH=/lab:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
console=/var/log/libvirt/qemu/console.log
log() { echo "host up for $(cut -d ' ' -f 1 /proc/uptime) s: $*"; }
# creates the domain $1 with the devices in the file $2, and waits until its guest is up
create() {
    sed -e "s/@NAME@/$1/; s|@CMDLINE@|$GUEST lab.script=work|; /@REGION@/r $2" -e /@REGION@/d /lab/domain.xml > /run/domain.xml
    : > $console
    timeout 100 virsh create /run/domain.xml
    waited=0
    until grep -qa 'guest is up' $console || [ $waited -ge 120 ]; do
        sleep 1
        waited=$((waited + 1))
    done
    log "$1 is up"
}
# microseconds since the host's start
now() { sed 's/\.\([0-9]*\) .*/\10000/' /proc/uptime; }

apparmor_parser --replace --skip-cache /etc/apparmor.d/usr.sbin.libvirtd /etc/apparmor.d/usr.lib.libvirt.virt-aa-helper
# as udev leaves it
chmod 666 /dev/kvm
mkdir -p /run/dbus
dbus-daemon --system --fork
virtlogd --daemon
libvirtd --daemon
mkdir -p /var/lib/libvirt/boot
cp /lab/vmlinux /lab/guest.cpio /var/lib/libvirt/boot/
truncate -s 16M /var/lib/libvirt/images/web.img
log 'libvirt is there'

strata region create /dev/shm/web --cpus 3 > /out/region.log
sed -n '/<shmem/,/<\/shmem>/p' /out/region.log > /run/region.xml
chown libvirt-qemu /dev/shm/web
create web /run/region.xml
cat /proc/"$(cat /run/libvirt/qemu/web.pid)"/attr/current > /out/confined
strata attach --libvirt web --region /dev/shm/web --trace /out/web > /out/web-attach.log 2>&1 &
attached=$!
until grep -q 'attached to' /out/web-attach.log || ! kill -0 $attached; do sleep 0.1; done
sleep 2
virsh suspend web
begin=$(now)
sleep 3
end=$(now)
virsh resume web
echo "known: suspended us=$((end - begin))" > /out/known.log
sleep 2
for vcpus in 3 2 3; do
    virsh setvcpus web $vcpus --live
    log "$vcpus vCPUs"
    sleep 4
done
virsh destroy web
wait $attached
echo $? > /out/web-attach.status
cp $console /out/web.log

: > /run/none.xml
create 'my web (1)' /run/none.xml
number=$(virsh domid 'my web (1)')
uuid=$(virsh domuuid 'my web (1)')
for by in "name my web (1)" "number $number" "uuid $uuid" "nobody my web"; do
    strata attach --libvirt "${by#* }" --trace "/out/by-${by%% *}" --duration 1s > "/out/by-${by%% *}.log" 2>&1
    echo $? > "/out/by-${by%% *}.status"
done
virsh destroy 'my web (1)'
exit 0
