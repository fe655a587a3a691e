-- Which layers lost records, and how many
select recording, host, vm, layer, pid, comm, records,
  lost_full + lost_wrapped + lost_too_large as lost, rejected_bytes
from losses order by lost desc nulls last, records desc nulls last
