-- How many records there are of each event type
select recording, host, vm, layer, event, count(*) as records
from events group by recording, host, vm, layer, event order by records desc
