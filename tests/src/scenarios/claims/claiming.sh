echo "CPUs online: $(cat /sys/devices/system/cpu/online)"
claims @SECONDS@ @OTHERS@ && echo 'claims done'
if dmesg | grep -v hw-vuln | grep -E 'BUG|WARNING|Oops|Call Trace|stall|general protection'; then
    echo 'guest kernel log has warnings'
fi
