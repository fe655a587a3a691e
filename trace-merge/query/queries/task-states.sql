-- What each process of a guest really did: running, stolen, in exits, waiting
select recording, host, vm, pid, comm, state, sum(duration_ns) as ns from task_states
where state not in ('unknown', 'vcpu_unknown')
group by recording, host, vm, pid, comm, state
order by ns desc nulls last, recording, vm, pid nulls last, comm nulls last, state limit 100
