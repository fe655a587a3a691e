-- How many exits each VM had in each second, as UTC
select recording, host, vm, begin_utc, count(*) as exits
from exits group by recording, host, vm, begin_utc order by host, vm, begin_utc
