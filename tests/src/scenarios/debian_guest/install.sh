set -e
root=$1 base=$2 kernel=$3
shift 3
rm -rf "$root"
mkdir "$root"
tar -x -f "$base" -C "$root"
cp -a "$kernel/boot/." "$root/boot/"
cp -a "$kernel/usr/." "$root/usr/"
cp -a "$kernel/lib/." "$root/usr/lib/"
mkdir "$root/packages"
cp "$@" "$root/packages/"
unshare --mount --pid --fork sh -e -c 'mount -t proc proc "$1/proc"; exec chroot "$1" sh -e -c "
    export DEBIAN_FRONTEND=noninteractive PATH=/usr/sbin:/usr/bin TMPDIR=/tmp
    dpkg --install /packages/*.deb
    dkms status
    cd /usr/lib/modules
    for release in *; do
        depmod \$release
        update-initramfs -c -k \$release
        linux-update-symlinks install \$release /boot/vmlinuz-\$release
    done"' sh "$root"
rm -r "$root/packages"
ls -l "$root" "$root/boot"
