set -e
root=$1 image=$2
kib=$(($(du -s --apparent-size -k "$root" | cut -f 1) * 5 / 4 + 65536))
rm -f "$image"
truncate -s ${kib}K "$image"
truncate -s %128M "$image"
PATH=$PATH:/sbin:/usr/sbin mke2fs -q -t ext4 -b 4096 -d "$root" "$image"
