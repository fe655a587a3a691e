on() {
    local name=$1 kernel=$2
    shift 2
    guest "$name" --kernel "$LAB/vmlinux-$kernel" --initrd "$LAB/guest-$kernel.cpio" --agent "$LAB/strata-$kernel.ko" "$@"
}

for kernel in @KERNELS@; do
    on $kernel $kernel --trace "$LAB_OUT/$kernel.trace" --cmdline "$GUEST lab.script=hardship"
done

on @COUNTED_CALLS@ @COUNTED_CALLS_KERNEL@ --trace "$LAB_OUT/@COUNTED_CALLS@.trace" \
    --cmdline "$GUEST lab.script=counted spectre_v2=retpoline retbleed=stuff"

on unsigned bookworm --trace "$LAB_OUT/unsigned.trace" --cmdline "$GUEST lab.script=without module.sig_enforce=1"

# no region, as on a hypervisor that is not strata
strata agent inject --initrd "$LAB/guest-bookworm.cpio" --module "$LAB/strata-bookworm.ko" --kernel "$LAB/vmlinux-bookworm" \
    --out "$LAB/injected.cpio" > "$LAB_OUT/inject.log" 2>&1
guest absent --kernel "$LAB/vmlinux-bookworm" --initrd "$LAB/injected.cpio" --cmdline "$GUEST lab.script=without"

region=$STRATA_RUNTIME_DIR/newer
strata region create "$region" --cpus 2
printf '@VERSION@' | dd of="$region" bs=1 seek=@OFFSET@ conv=notrunc
cp "$region" "$region.before"
on newer bookworm --region "$region" --cmdline "$GUEST lab.script=without"
cmp "$region.before" "$region" && echo 'the guest has written nothing' > "$LAB_OUT/newer-region.log"
exit 0
