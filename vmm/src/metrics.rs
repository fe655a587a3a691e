//! `strata metrics`: what running VMs do, as OpenMetrics over HTTP. Each scrape asks the VMs' control sockets.

use crate::cli::MetricsArgs;
use crate::http::{self, Head, Next};
use crate::top::{self, OwnThread, bounded, own_threads};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use strata_recorder::control::directory::DirectoryError;
use strata_recorder::control::found_vm::{self, FoundVm};
use strata_recorder::control::patience::Patience;
use strata_recorder::control::protocol::{
    BalloonStatus, FIRST_CLASS, Live, LiveDisk, LiveVcpu, TIME_CLASSES, Times, Watched,
};
use strata_recording::text::terminal::foreign::Foreign;
use thiserror::Error;

const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// How long a request may take to come, and its answer to go.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long all VMs of this user may take together: with those of others, less than the 10 s that Prometheus waits.
const OWN_LIMIT: Duration = Duration::from_secs(4);
const NS_PER_SECOND: f64 = 1e9;
/// Values of a VM that are there once: the balloon's, the records' and the CPU time.
const OTHER_VALUES: usize = 5;
/// Most values that are written of one other user's VMs: those of some hundred, or about 13 MB.
const MAX_OF_OTHER: usize = 1 << 17;
/// Most threads of a process whose CPU time is known: a VM has some ten of strata's own.
const MAX_THREADS: usize = 1024;

/// Why metrics are not served.
#[derive(Debug, Error)]
pub enum MetricsError {
    /// The address cannot be listened to.
    #[error("cannot listen to {address}: give another --listen ADDRESS:PORT")]
    Listen {
        address: SocketAddr,
        #[source]
        source: io::Error,
    },
}

/// Serves what `args` say up to Ctrl-C; `notify` takes a line for the user.
///
/// # Errors
/// When the address cannot be listened to.
pub fn run(args: &MetricsArgs, notify: impl Fn(&str)) -> Result<(), MetricsError> {
    let failed = |source| MetricsError::Listen { address: args.listen, source };
    let listener = TcpListener::bind(args.listen).map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    notify(&format!("serving http://{address}/metrics; Ctrl-C ends it"));
    let names: Vec<String> = args.hosts.iter().cloned().chain([own_name()]).collect();
    let own_times = Mutex::new(OwnTimes::default());
    http::serve(&listener, PATIENCE, move |stream, head| answer(stream, head, &names, || scrape(&own_times).map(text)))
        .map_err(failed)
}

/// The name that this machine has given itself.
fn own_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Answers a request to one of `names`: with `text` where it is for the metrics, or why there is none.
fn answer(
    stream: &TcpStream,
    head: &Head,
    names: &[String],
    text: impl FnOnce() -> Result<String, DirectoryError>,
) -> io::Result<Next> {
    let (status, body) = match (head.method.as_str(), head.path.as_str()) {
        _ if !head.is_for(names) => ("421 Misdirected Request", "unknown Host: start it with --host NAME\n".into()),
        ("GET", path) if path.split('?').next() == Some("/metrics") => match text() {
            Ok(text) => ("200 OK", text),
            Err(error) => ("503 Service Unavailable", format!("{error}\n")),
        },
        _ => ("404 Not Found", String::new()),
    };
    let length = body.len();
    let answer = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {CONTENT_TYPE}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    );
    http::write_until(stream, answer.as_bytes(), Instant::now() + PATIENCE)?;
    Ok(Next::Serve)
}

/// What the running VMs say. One that does not answer, or is not traced, is left out.
fn scrape(own_times: &Mutex<OwnTimes>) -> Result<Scrape, DirectoryError> {
    let found = found_vm::runtime_folders().and_then(|runtimes| top::running(&runtimes))?;
    Ok(scrape_of(found, own_times))
}

/// The same of the VMs `found`, this user's first.
fn scrape_of(found: Vec<FoundVm>, own_times: &Mutex<OwnTimes>) -> Scrape {
    let lock = || own_times.lock().unwrap_or_else(PoisonError::into_inner);
    lock().keep(&found);
    let own_end = Instant::now() + OWN_LIMIT;
    let mut patience = Patience::new(top::OTHERS_LIMIT);
    let vm = |found: FoundVm| {
        // One that does not answer leaves time to those behind it.
        let own = own_end.saturating_duration_since(Instant::now()) / 2;
        let live = top::request_live(&found, own, &mut patience).ok()?;
        // Behind the answer, for which another user's VMs have a limit: looking at many threads takes of it, too.
        let threads = own_threads(found.vm.pid);
        let cost_ns = lock().with(found.vm.pid, &threads);
        Some(Scraped { live, user: found.owner.other_user(), process: None, cost_ns })
    };
    Scrape::of(found.into_iter().filter_map(vm))
}

/// The CPU time that strata's own threads had at most, by process and thread, ns. Those that have ended keep theirs: a
/// sum of it never goes down.
#[derive(Debug, Default)]
struct OwnTimes(BTreeMap<u32, BTreeMap<u32, u64>>);

impl OwnTimes {
    /// Forgets all processes but those of `running`.
    fn keep(&mut self, running: &[FoundVm]) {
        let pids: BTreeSet<u32> = running.iter().map(|found| found.vm.pid).collect();
        self.0.retain(|pid, _| pids.contains(pid));
    }

    /// What all threads of the process `pid` have had, whose `threads` live now.
    fn with(&mut self, pid: u32, threads: &BTreeMap<u32, OwnThread>) -> u64 {
        let known = self.0.entry(pid).or_default();
        for (&number, thread) in threads {
            if known.len() < MAX_THREADS || known.contains_key(&number) {
                let most = known.entry(number).or_default();
                *most = thread.cpu_ns.max(*most);
            }
        }
        known.values().sum()
    }
}

/// The answers of all VMs.
#[derive(Clone, Debug)]
struct Scrape(Vec<Scraped>);

impl Scrape {
    /// Of `vms`, each series once: processes distinguish those of one name. What another user's VMs have more
    /// than [`MAX_OF_OTHER`] values is left out.
    fn of(vms: impl Iterator<Item = Scraped>) -> Self {
        let mut seen = BTreeSet::new();
        let mut values: BTreeMap<Foreign<String>, usize> = BTreeMap::new();
        let mut names: BTreeMap<(Option<Foreign<String>>, Foreign<String>), usize> = BTreeMap::new();
        let mut kept = Vec::new();
        for vm in vms {
            let vm = Scraped { live: bounded(vm.live), ..vm };
            let name = (vm.user.clone(), vm.live.name.clone());
            let is_within = vm.user.clone().is_none_or(|user| {
                let values = values.entry(user).or_default();
                *values += vm.values();
                *values <= MAX_OF_OTHER
            });
            if is_within && seen.insert((name.clone(), vm.live.pid)) {
                *names.entry(name).or_default() += 1;
                kept.push(vm);
            }
        }
        for vm in &mut kept {
            let same_name = names.get(&(vm.user.clone(), vm.live.name.clone())).copied().unwrap_or_default();
            vm.process = (same_name > 1).then(|| vm.live.pid.to_string());
        }
        Self(kept)
    }
}

/// What a VM says, and the CPU time of strata's own threads.
#[derive(Clone, Debug)]
struct Scraped {
    live: Live,
    /// The user whose it is, where that is another.
    user: Option<Foreign<String>>,
    /// Its process, where that user has several of the name.
    process: Option<String>,
    cost_ns: u64,
}

impl Scraped {
    /// The labels that tell the VM from others, and `more`.
    fn labels(&self, more: &[(&str, &str)]) -> Vec<(String, String)> {
        let user = self.user.as_ref().map(|user| ("user", user.to_string()));
        let process = self.process.as_ref().map(|process| ("pid", process.clone()));
        let vm = std::iter::once(("vm", self.live.name.to_string()));
        let more = more.iter().map(|&(label, value)| (label, value.to_owned()));
        vm.chain(user).chain(process).chain(more).map(|(label, value)| (label.to_owned(), value)).collect()
    }

    /// How many values are written of it, at most.
    fn values(&self) -> usize {
        let host = self.live.host.as_ref();
        let (vcpus, exits) = host.map_or((0, 0), |host| (host.vcpus.len(), host.exits.len()));
        // A histogram has its classes, its sum and its number; there are those of being ready and of wake-ups, too.
        let histograms = (exits + self.live.disks.len() + 2) * (TIME_CLASSES + 2);
        vcpus * LiveVcpu::default().parts().len() + histograms + OTHER_VALUES
    }
}

/// The metrics of one VM, which is another user's and says `live`.
#[must_use]
pub fn text_of(live: Live) -> String {
    let vm = Scraped { live, user: Some("another".into()), process: None, cost_ns: 0 };
    text(Scrape::of(std::iter::once(vm)))
}

/// The metrics as text.
fn text(scrape: Scrape) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(scrape));
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = encode(&mut text, &registry);
    text
}

/// What is counted of a VM.
type CountOf = fn(&Watched) -> u64;
/// What is measured of a VM's balloon.
type LevelOf = fn(&BalloonStatus) -> u64;

/// A value of a metric.
enum Sample<'t> {
    Seconds(u64),
    Count(u64),
    Level(u64),
    Times(&'t Times),
}

impl EncodeMetric for Sample<'_> {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        match *self {
            Self::Seconds(ns) => encoder.encode_counter::<[(&str, &str); 0], f64, f64>(&seconds(ns), None),
            Self::Count(count) => encoder.encode_counter::<[(&str, &str); 0], u64, f64>(&count, None),
            Self::Level(level) => encoder.encode_gauge(&level),
            Self::Times(times) => {
                // All classes each time: those of several VMs can be added up only where they are the same.
                let class = |(class, count): (u32, u64)| {
                    let below = if class + 1 == CLASSES { f64::INFINITY } else { seconds(1 << (FIRST_CLASS + class)) };
                    (below, count)
                };
                let counts = times.classes.iter().copied().chain(std::iter::repeat(0));
                let buckets: Vec<(f64, u64)> = (0..CLASSES).zip(counts).map(class).collect();
                encoder.encode_histogram::<[(&str, &str); 0]>(seconds(times.total_ns), times.count, &buckets, None)
            }
        }
    }

    fn metric_type(&self) -> MetricType {
        match self {
            Self::Seconds(_) | Self::Count(_) => MetricType::Counter,
            Self::Level(_) => MetricType::Gauge,
            Self::Times(_) => MetricType::Histogram,
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "26")]
const CLASSES: u32 = TIME_CLASSES as u32;

#[expect(clippy::cast_precision_loss, reason = "right to 53 bits: below a microsecond in a century")]
fn seconds(ns: u64) -> f64 {
    ns as f64 / NS_PER_SECOND
}

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let hosts = || self.0.iter().filter_map(|vm| Some((vm, vm.live.host.as_ref()?)));
        let states = |vcpu: &LiveVcpu| {
            [
                ("guest", vcpu.guest_ns),
                ("kvm", vcpu.kvm_ns),
                ("vmm", vcpu.vmm_ns),
                ("preempted", vcpu.preempted_ns),
                ("woken", vcpu.woken_ns),
                ("halted", vcpu.halted_ns),
                ("blocked", vcpu.blocked_ns),
                ("unknown", vcpu.unknown_ns),
            ]
        };
        let mut metric =
            encoder.encode_descriptor("strata_vcpu_seconds", "Time of vCPUs by state", None, MetricType::Counter)?;
        for (vm, Watched { vcpus, .. }) in hosts() {
            for vcpu in vcpus {
                let number = vcpu.vcpu.to_string();
                for (state, ns) in states(vcpu) {
                    let labels = vm.labels(&[("vcpu", &number), ("state", state)]);
                    Sample::Seconds(ns).encode(metric.encode_family(&labels)?)?;
                }
            }
        }
        let help = "From being ready, woken or preempted, until a vCPU's thread ran";
        let mut metric = encoder.encode_descriptor("strata_vcpu_ready_seconds", help, None, MetricType::Histogram)?;
        for (vm, host) in hosts() {
            Sample::Times(&host.ready).encode(metric.encode_family(&vm.labels(&[]))?)?;
        }
        let help = "From an exit until the vCPU was in the guest again, by reason";
        let mut metric = encoder.encode_descriptor("strata_exit_seconds", help, None, MetricType::Histogram)?;
        for (vm, host) in hosts() {
            for exits in &host.exits {
                let labels = vm.labels(&[("reason", &exits.reason.to_string())]);
                Sample::Times(&exits.times).encode(metric.encode_family(&labels)?)?;
            }
        }
        let help = "How long the VMM took for a request to a disk, by disk and kind";
        let mut metric = encoder.encode_descriptor("strata_disk_seconds", help, None, MetricType::Histogram)?;
        for vm in &self.0 {
            for LiveDisk { disk, kind, times } in &vm.live.disks {
                let disk = disk.to_string();
                let labels = vm.labels(&[("disk", &disk), ("kind", &kind.to_string())]);
                Sample::Times(times).encode(metric.encode_family(&labels)?)?;
            }
        }
        let help = "From being woken until a task of the guest ran";
        let mut metric = encoder.encode_descriptor("strata_guest_wakeup_seconds", help, None, MetricType::Histogram)?;
        for vm in &self.0 {
            if let Some(guest) = &vm.live.guest {
                Sample::Times(&guest.wakeups).encode(metric.encode_family(&vm.labels(&[]))?)?;
            }
        }
        let levels: [(&str, &str, LevelOf); 2] = [
            ("strata_balloon_wanted_bytes", "Memory that the host wants back", |balloon| balloon.wanted),
            ("strata_balloon_given_bytes", "Memory that the guest has given back", |balloon| balloon.given),
        ];
        for (name, help, level) in levels {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for vm in &self.0 {
                if let Some(balloon) = &vm.live.balloon {
                    Sample::Level(level(balloon)).encode(metric.encode_family(&vm.labels(&[]))?)?;
                }
            }
        }
        let counts: [(&str, &str, CountOf); 2] = [
            ("strata_host_records", "Records of the host's kernel that were read", |host| host.records),
            ("strata_host_records_lost", "Records of the host's kernel that were lost", |host| host.lost),
        ];
        for (name, help, count) in counts {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for (vm, host) in hosts() {
                Sample::Count(count(host)).encode(metric.encode_family(&vm.labels(&[]))?)?;
            }
        }
        let help = "CPU time of strata's own threads";
        let mut metric = encoder.encode_descriptor("strata_own_cpu_seconds", help, None, MetricType::Counter)?;
        for vm in &self.0 {
            Sample::Seconds(vm.cost_ns).encode(metric.encode_family(&vm.labels(&[]))?)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::Ipv4Addr;
    use std::os::unix::net::UnixListener;
    use std::thread;
    use strata_recorder::control::directory::{SOCKET_FILE, VmDescription};
    use strata_recorder::control::found_vm::Owner;
    use strata_recorder::control::protocol::{Answer, LiveExits, LiveGuest};

    fn scraped(name: &str) -> Scraped {
        let mut times = Times::default();
        [700, 1_500, 3_000_000].into_iter().for_each(|ns| times.add(ns));
        let host = Watched {
            vcpus: vec![LiveVcpu { vcpu: 1, guest_ns: 2_500_000_000, ..LiveVcpu::default() }],
            exits: vec![LiveExits { reason: "hlt".into(), times: times.clone() }],
            ready: times.clone(),
            records: 9,
            ..Watched::default()
        };
        let disks = vec![LiveDisk { disk: 1, kind: "read".into(), times: times.clone() }];
        let guest = Some(LiveGuest { wakeups: times, ..LiveGuest::default() });
        let balloon = Some(BalloonStatus { wanted: 4096, given: 8192, ..BalloonStatus::default() });
        let live = Live { name: name.into(), host: Some(host), guest, disks, balloon, ..Live::default() };
        Scraped { live, user: None, process: None, cost_ns: 1_000_000 }
    }

    fn text_of_all<const N: usize>(vms: [Scraped; N]) -> String {
        text(Scrape::of(vms.into_iter()))
    }

    #[test]
    fn metrics_are_those_of_each_vm_with_cumulative_classes() {
        let text = text_of_all([scraped("web"), scraped("db\"")]);

        for line in [
            "# TYPE strata_vcpu_seconds counter",
            "strata_vcpu_seconds_total{vm=\"web\",vcpu=\"1\",state=\"guest\"} 2.5",
            "# TYPE strata_vcpu_ready_seconds histogram",
            "strata_vcpu_ready_seconds_bucket{le=\"0.000001024\",vm=\"web\"} 1",
            "strata_vcpu_ready_seconds_bucket{le=\"0.000002048\",vm=\"web\"} 2",
            "strata_vcpu_ready_seconds_bucket{le=\"+Inf\",vm=\"web\"} 3",
            "strata_vcpu_ready_seconds_count{vm=\"web\"} 3",
            "strata_exit_seconds_count{vm=\"db\\\"\",reason=\"hlt\"} 3",
            "# TYPE strata_disk_seconds histogram",
            "strata_disk_seconds_bucket{le=\"0.000002048\",vm=\"web\",disk=\"1\",kind=\"read\"} 2",
            "strata_disk_seconds_count{vm=\"db\\\"\",disk=\"1\",kind=\"read\"} 3",
            "strata_guest_wakeup_seconds_bucket{le=\"+Inf\",vm=\"web\"} 3",
            "# TYPE strata_balloon_given_bytes gauge",
            "strata_balloon_given_bytes{vm=\"web\"} 8192",
            "strata_balloon_wanted_bytes{vm=\"db\\\"\"} 4096",
            "strata_host_records_total{vm=\"web\"} 9",
            "strata_own_cpu_seconds_total{vm=\"web\"} 0.001",
        ] {
            assert!(text.lines().any(|known| known == line), "{line} is not in\n{text}");
        }
        assert!(text.ends_with("# EOF\n"));
    }

    #[test]
    fn metrics_of_another_users_vm_carry_the_user() {
        let of_other = Scraped { user: Some("alice".into()), ..scraped("web") };

        let text = text_of_all([scraped("web"), of_other]);

        for line in [
            "strata_host_records_total{vm=\"web\"} 9",
            "strata_host_records_total{vm=\"web\",user=\"alice\"} 9",
            "strata_disk_seconds_count{vm=\"web\",user=\"alice\",disk=\"1\",kind=\"read\"} 3",
        ] {
            assert!(text.lines().any(|known| known == line), "{line} is not in\n{text}");
        }
    }

    /// The lines of `text` up to their values.
    fn series(text: &str) -> Vec<&str> {
        text.lines()
            .filter(|line| !line.starts_with('#'))
            .filter_map(|line| line.rsplit_once(' '))
            .map(|line| line.0)
            .collect()
    }

    fn of_other(pid: u32, live: Live) -> Scraped {
        Scraped { live: Live { pid, ..live }, user: Some("alice".into()), process: None, cost_ns: 0 }
    }

    #[test]
    fn series_are_written_once_whatever_an_answer_repeats() {
        let live = scraped("web").live;
        let twice = |live: &Live| {
            let mut live = live.clone();
            live.host.iter_mut().for_each(|host| {
                host.vcpus.extend_from_within(..);
                host.exits.extend_from_within(..);
                let exits = |reason: &str| LiveExits { reason: reason.into(), times: Times::default() };
                host.exits.extend(["\x1b[2J", "\\u{1b}[2J"].map(exits));
            });
            live.disks.extend_from_within(..);
            live
        };

        let text = text_of_all([of_other(1, twice(&live)), of_other(1, live.clone()), of_other(2, live)]);

        let series = series(&text);
        assert_eq!(series.iter().collect::<BTreeSet<_>>().len(), series.len(), "{text}");
        assert!(series.contains(&"strata_host_records_total{vm=\"web\",user=\"alice\",pid=\"2\"}"), "{text}");
        assert!(text.contains("u{1b}[2J") && !text.contains('\x1b'), "{text}");
    }

    #[test]
    fn other_users_vms_have_a_bounded_number_of_values_and_take_none_of_ones_own() {
        let exits = |reason: usize| LiveExits { reason: reason.to_string().into(), times: Times::default() };
        let host = Watched { exits: (0..300).map(exits).collect(), ..Watched::default() };
        let large = Live { name: "large".into(), host: Some(host), ..Live::default() };
        let others = (0..30).map(|pid| of_other(pid, large.clone()));

        let text = text(Scrape::of(others.chain([scraped("web")])));

        let (of_others, own): (Vec<_>, Vec<_>) = series(&text).into_iter().partition(|line| line.contains("alice"));
        assert!((1..=MAX_OF_OTHER).contains(&of_others.len()), "{}", of_others.len());
        assert!(own.contains(&"strata_host_records_total{vm=\"web\"}"));
    }

    #[test]
    fn values_are_counted_as_they_are_written() {
        let vm = scraped("web");

        assert_eq!(series(&text_of_all([vm.clone()])).len(), vm.values());
    }

    #[test]
    fn only_the_metrics_are_served() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let server = thread::spawn(move || {
            http::serve(&listener, PATIENCE, |stream, head| {
                answer(stream, head, &["web".into()], || Ok("the text".into()))?;
                Ok(if head.host.as_deref() == Some("evil.example") { Next::End } else { Next::Serve })
            })
        });
        let request = |path: &str, host: &str| {
            let mut stream = TcpStream::connect(address).unwrap();
            write!(stream, "GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n").unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            answer
        };

        let (metrics, other) = (request("/metrics", "web:9464"), request("/", "127.0.0.1"));
        let with_parameters = request("/metrics?target=web", "web:9464");
        let elsewhere = request("/metrics", "evil.example");
        server.join().unwrap().unwrap();

        assert!(metrics.starts_with("HTTP/1.1 200 OK") && metrics.ends_with("\r\n\r\nthe text"), "{metrics}");
        assert!(metrics.contains("application/openmetrics-text"), "{metrics}");
        assert_eq!(with_parameters, metrics);
        assert!(other.starts_with("HTTP/1.1 404 "), "{other}");
        assert!(elsewhere.starts_with("HTTP/1.1 421 ") && elsewhere.contains("--host NAME"), "{elsewhere}");
    }

    #[test]
    fn scrape_that_no_vms_can_be_looked_for_is_told_so() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, _) = listener.accept().unwrap();
        let head = Head { method: "GET".into(), path: "/metrics".into(), host: Some("localhost".into()) };

        answer(&stream, &head, &[], || Err(DirectoryError::NoRuntime)).unwrap();
        drop(stream);

        let mut text = String::new();
        client.read_to_string(&mut text).unwrap();
        assert!(text.starts_with("HTTP/1.1 503 ") && text.contains("set XDG_RUNTIME_DIR"), "{text}");
    }

    #[test]
    fn own_time_keeps_what_ended_threads_had() {
        let threads = |all: &[(u32, u64)]| {
            let thread = |&(number, cpu_ns)| (number, OwnThread { name: "strata-x".into(), cpu_ns });
            all.iter().map(thread).collect::<BTreeMap<_, _>>()
        };
        let mut times = OwnTimes::default();

        let first = times.with(7, &threads(&[(8, 100), (9, 20)]));
        let behind_an_end = times.with(7, &threads(&[(8, 130)]));
        times.keep(&[]);

        assert_eq!([first, behind_an_end, times.with(7, &threads(&[(8, 140)]))], [120, 150, 140]);
    }

    #[test]
    fn own_vm_that_does_not_answer_leaves_time_to_the_others() {
        let folder = tempfile::tempdir().unwrap();
        let found = |name: &str| {
            let path = folder.path().join(name);
            std::fs::create_dir(&path).unwrap();
            let listener = UnixListener::bind(path.join(SOCKET_FILE)).unwrap();
            let vm = VmDescription::of_this_process(name, 1);
            (listener, FoundVm { path: path.into(), vm, alive: true, owner: Owner::Own })
        };
        let ((_silent, busy), (listener, web)) = (found("busy"), found("web"));
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            BufReader::new(&stream).read_line(&mut String::new()).unwrap();
            let answer = serde_json::to_string(&Answer::Live(Box::default())).unwrap();
            writeln!(stream, "{answer}").unwrap();
        });

        let scrape = scrape_of(vec![busy, web], &Mutex::default());

        assert_eq!(scrape.0.iter().map(|vm| vm.live.name.to_string()).collect::<Vec<_>>(), ["web"]);
    }

    #[test]
    fn address_in_use_is_reported_with_the_way_out() {
        let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let args = MetricsArgs { listen: taken.local_addr().unwrap(), hosts: Vec::new() };

        let error = run(&args, |_| ()).unwrap_err();

        assert!(error.to_string().contains("--listen"), "{error}");
    }
}
