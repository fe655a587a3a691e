-- The disk requests that took longest, who issued them and whom they woke
select vm, begin_ns, disk, kind, sector, bytes, issuer_comm, woken_comm, duration_ns, host_io_ns
from flows order by duration_ns desc nulls last limit 20
