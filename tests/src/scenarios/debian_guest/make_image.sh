set -e
root=$1 image=$2
cd "$root"
rm -rf usr/src/linux-headers-* usr/lib/linux-kbuild-* usr/lib/gcc usr/libexec/gcc usr/share/doc usr/share/locale \
    usr/share/man usr/share/perl usr/share/i18n usr/share/zoneinfo usr/lib/x86_64-linux-gnu/perl \
    usr/lib/x86_64-linux-gnu/*.a usr/lib/x86_64-linux-gnu/gconv usr/bin/*lto-dump* usr/include \
    boot/System.map* var/lib/apt/lists/* var/cache/apt/*.bin var/cache/apt/archives/*.deb
find usr/lib -name 'lib*san.so*' -delete
find usr/lib/modules/*/kernel -name '*.ko' | grep -vE '/(@KEPT@)[.]ko$' | xargs rm
cat > usr/lib/systemd/system/lab-report.service << 'END'
[Unit]
Description=What the lab wants to know
After=multi-user.target systemd-udev-settle.service network-online.target
Wants=network-online.target

[Service]
Type=oneshot
StandardOutput=journal+console
ExecStart=/usr/bin/lab-report
ExecStopPost=/usr/bin/systemctl poweroff

[Install]
WantedBy=graphical.target
END
cat > usr/lib/systemd/network/20-lab.network << 'END'
[Match]
Driver=virtio_net

[Network]
Address=192.168.77.2/24
LinkLocalAddressing=no
END
chroot . /usr/bin/systemctl --quiet enable systemd-networkd.service
echo 'deb [trusted=yes] http://192.168.77.1:8080/ ./' > etc/apt/sources.list
# a first boot asks questions
echo 5f0e0c9a3d7b4b0c8f3e2d1c0b9a8f7e > etc/machine-id
ln -sf /usr/lib/systemd/system/graphical.target etc/systemd/system/default.target
mkdir -p etc/systemd/system/graphical.target.wants
ln -sf /usr/lib/systemd/system/lab-report.service etc/systemd/system/graphical.target.wants/
size=$(($(du -s --apparent-size -k . | cut -f 1) * 5 / 4 + 16384))
rm -f "$image"
PATH=$PATH:/sbin:/usr/sbin mke2fs -q -t ext4 -d . "$image" "${size}k"
