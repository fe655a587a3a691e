for mode in @GUESTS@; do
    guest $mode --kernel "$LAB/vmlinux" --initrd "$LAB/guest.cpio" --agent "$LAB/strata.ko" --trace "$LAB_OUT/$mode.trace" \
        --events all --mode $mode --sub-buffers @SUB_BUFFERS@ --cmdline "$GUEST lab.script=dying"
done
