-- The packets that took longest, who sent them or was woken by them
select vm, begin_ns, net, direction, id, device, bytes, tid, comm, duration_ns
from packets order by duration_ns desc nulls last limit 20
