-- The packets that took longest, who sent them or was woken by them
select recording, host, vm, begin_ns, begin_utc, net, direction, id, device, bytes, tid, comm, duration_ns
from packets order by duration_ns desc nulls last, recording, vm, packet limit 20
