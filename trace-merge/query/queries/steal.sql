-- Who took time from vCPUs: by VM and what the host ran instead
select recording, host, vm, detail as thief, count(*) as times, sum(duration_ns) as ns, max(duration_ns) as longest_ns
from vcpu_states where state in ('preempted', 'woken')
group by recording, host, vm, detail order by ns desc nulls last
