-- Who took time from vCPUs: by VM and what the host ran instead, with the VM whose vCPU that was
select recording, host, vm, detail as thief, thief_comm, thief_tid, thief_vm,
  count(*) as times, sum(duration_ns) as ns, max(duration_ns) as longest_ns
from vcpu_states where state in ('preempted', 'woken')
group by recording, host, vm, detail, thief_comm, thief_tid, thief_vm order by ns desc nulls last
