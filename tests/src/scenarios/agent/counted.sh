sh /scripts/hardship
(cd /sys/devices/system/cpu/vulnerabilities && grep . spectre_v2 retbleed)
room() {
    from=$((0x$(sed -n "s/ [tT] $1	.*//p" /proc/kallsyms) - 16))
    # type and flags, offset, address, physical address, size, size in memory, alignment of each segment
    # shellcheck disable=SC2046 # one word for each number
    set -- $(od -A n -v -t x8 -j 64 -N 1120 /proc/kcore)
    while [ $# -ge 7 ]; do
        offset=$((0x$2)) begin=$((0x$3)) size=$((0x$6))
        if [ $begin -lt 0 ] && [ $from -ge $begin ] && [ $((from - begin)) -lt $size ]; then
            dd if=/proc/kcore bs=1 skip=$((offset + from - begin)) count=16 2> /dev/null | od -A n -t x1
            return
        fi
        shift 7
    done
}
for function in @CALLED@; do
    echo "before $function:$(room $function)"
done
