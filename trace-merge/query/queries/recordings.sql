-- Which recordings there are: of which host and kernel, how long, how many records, and what is missing of them
select recording, host, started_utc, duration_ns / 1e9 as seconds, records, kernel, outcome, incomplete
from recordings order by started_utc, recording
