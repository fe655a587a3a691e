-- How many exits each VM had in each second
select vm, cast(floor(begin_ns / 1e9) as bigint) as second, count(*) as exits
from exits group by vm, cast(floor(begin_ns / 1e9) as bigint) order by vm, second
