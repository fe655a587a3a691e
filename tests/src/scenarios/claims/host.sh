for cpus in @FEW@ @MANY@; do
    timeout -s KILL @LIMIT@ strata run --kernel "$LAB/vmlinux" --initrd "$LAB/guest.cpio" --memory 1G --cpus $cpus \
        --agent "$LAB/strata.ko" --trace "/tmp/claims-$cpus.trace" --events 'user:*' \
        --cmdline "$GUEST lab.script=claiming" < /dev/null > "$LAB_OUT/claims-$cpus.log" 2>&1
    echo $? > "$LAB_OUT/claims-$cpus.status"
    tail -n 3 "$LAB_OUT/claims-$cpus.log"
done
exit 0
