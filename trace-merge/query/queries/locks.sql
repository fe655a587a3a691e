-- Which locks of guests' kernels, and which futexes, were waited for longest
select recording, host, vm, what, name, address, case when what = 'futex' then pid end as futex_pid, kind, context,
  count(*) as waits, sum(duration_ns) as ns, max(duration_ns) as longest_ns
from locks where outcome in ('waited', 'timed-out')
group by recording, host, vm, what, name, address, case when what = 'futex' then pid end, kind, context
order by ns desc nulls last, recording, vm, what, address, futex_pid nulls last, kind, context limit 50
