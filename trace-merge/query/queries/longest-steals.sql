-- The longest times in which a vCPU was ready and not run, and who ran
select recording, host, vm, vcpu, begin_ns, begin_utc, duration_ns, detail as thief, thief_vm
from vcpu_states where state in ('preempted', 'woken')
order by duration_ns desc nulls last, recording, vm, vcpu, begin_ns limit 20
