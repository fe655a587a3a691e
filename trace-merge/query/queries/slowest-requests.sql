-- The disk requests that took longest, who issued them and whom they woke
select recording, host, vm, begin_ns, begin_utc, disk, kind, sector, bytes, issuer_comm, woken_comm, duration_ns, host_io_ns
from flows
order by duration_ns desc nulls last, recording, vm, flow limit 20
