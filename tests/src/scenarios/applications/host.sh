"$LAB/strata-agent" status > "$LAB_OUT/host-status.log" 2>&1
echo "status ended with $?" >> "$LAB_OUT/host-status.log"
guest applications --kernel "$LAB/vmlinux" --initrd "$LAB/guest.cpio" --agent "$LAB/strata.ko" \
    --trace "$LAB_OUT/applications.trace" --cmdline "$GUEST maxcpus=1 lab.script=applications"
exit "$(cat "$LAB_OUT/applications.status")"
