-- The wakeups after which it took longest until the task ran, and what happened meanwhile
select recording, host, vm, begin_ns, begin_utc, tid, comm, vcpu, duration_ns, meanwhile
from wakeups order by duration_ns desc nulls last, recording, vm, begin_ns, tid, vcpu limit 20
