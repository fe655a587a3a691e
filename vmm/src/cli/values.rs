//! Values of options: sizes, disks, names. The command line's error message repeats the value that cannot be used, so
//! these errors only say what to write.

use crate::agentless;
use crate::run::{OnReboot, OnTraceFailure};
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use shared_ring::layout::{MAX_SUB_BUFFER_SIZE, MAX_SUB_BUFFERS, MIN_SUB_BUFFER_SIZE, MIN_SUB_BUFFERS};
use std::fmt::Display;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;
use strata_machine::{CID_MAX, CID_MIN, DiskConfig, LinkConfig, MemoryBacking, NetConfig, VsockConfig};
use strata_rate_limit::RateLimit;
use strata_recorder::control::protocol::{LayerLimit, Mode};
use strata_recorder::drain::scheduling::Drain;
use strata_recorder::layer::kernel_rings::{sub_buffer_counts, sub_buffer_sizes};
use strata_recording::clock::length::parse_length;
use strata_recording::files::access::Readers;
use strata_recording::files::compression::Compression;
use strata_recording::layer::LayerKind;
use strata_recording::manifest::is_vm_name;
use strata_recording::writer::MIN_ROTATED_SIZE;

/// The trace that commands read, and record where they must, when none is named.
pub const DEFAULT_TRACE: &str = "trace";

/// Longest delay of a slow disk: a guest gives up a request after 30 s.
const MAX_DELAY: Duration = Duration::from_secs(10);

/// Least bandwidth that a device can be limited to, bytes each second.
const MIN_BANDWIDTH: u64 = 4 << 10;
/// Least and most memory for the host kernel's records in a flight recorder, bytes.
const MIN_HOST_HISTORY: usize = 1 << 20;
const MAX_HOST_HISTORY: usize = 64 << 30;
/// A burst holds at least what comes in this part of a second, which is longer than devices wait at least: smaller ones
/// would limit the rate.
const BURSTS_PER_SECOND: u64 = 50;

/// Longest time that a recording can be given, ms: a year.
const MAX_DURATION_MS: u64 = 365 * 24 * 3_600_000;

/// A layer, by its name or short form.
pub fn layer() -> impl TypedValueParser<Value = LayerKind> {
    let value = |kind: LayerKind| {
        let short = Some(kind.short_name()).filter(|short| *short != kind.name());
        PossibleValue::new(kind.name()).aliases(short)
    };
    PossibleValuesParser::new(LayerKind::ALL.map(value)).try_map(|name| name.parse::<LayerKind>())
}

/// What rings do when they are full.
pub fn mode() -> impl TypedValueParser<Value = Mode> {
    PossibleValuesParser::new(Mode::ALL.map(Mode::name)).try_map(|name| name.parse::<Mode>())
}

/// When records are taken out of the rings.
pub fn drain() -> impl TypedValueParser<Value = Drain> {
    PossibleValuesParser::new(Drain::ALL.map(Drain::name)).try_map(|name| name.parse::<Drain>())
}

/// Who may read a recording.
pub fn readers() -> impl TypedValueParser<Value = Readers> {
    PossibleValuesParser::new(Readers::ALL.map(Readers::name)).try_map(|name| name.parse::<Readers>())
}

/// How a recording is compressed.
pub fn compression() -> impl TypedValueParser<Value = Compression> {
    PossibleValuesParser::new(Compression::ALL.map(Compression::name)).try_map(|name| name.parse::<Compression>())
}

/// How a VM's process is confined.
pub fn jail() -> impl TypedValueParser<Value = strata_jail::Mode> {
    let named =
        |name: String| strata_jail::Mode::ALL.into_iter().find(|mode| mode.name() == name).ok_or("on, log or off");
    PossibleValuesParser::new(strata_jail::Mode::ALL.map(strata_jail::Mode::name)).try_map(named)
}

/// What happens to a VM whose trace fails.
pub fn on_trace_failure() -> impl TypedValueParser<Value = OnTraceFailure> {
    PossibleValuesParser::new(OnTraceFailure::ALL.map(OnTraceFailure::name))
        .try_map(|name| name.parse::<OnTraceFailure>())
}

/// What a guest's memory is made of.
pub fn memory_backing() -> impl TypedValueParser<Value = MemoryBacking> {
    PossibleValuesParser::new(MemoryBacking::ALL.map(MemoryBacking::name)).try_map(|name| name.parse::<MemoryBacking>())
}

/// What happens when a guest reboots.
pub fn on_reboot() -> impl TypedValueParser<Value = OnReboot> {
    PossibleValuesParser::new(OnReboot::ALL.map(OnReboot::name)).try_map(|name| name.parse::<OnReboot>())
}

/// A whole number, 0 or more.
pub fn number<T: FromStr>(text: &str) -> Result<T, String> {
    let is_number = !text.is_empty() && text.bytes().all(|digit| digit.is_ascii_digit());
    let wrong = if is_number { "the number is too large" } else { "not a whole number, 0 or more" };
    text.parse().map_err(|_| wrong.into())
}

/// A whole number in `range`.
pub fn number_in<T>(range: RangeInclusive<T>) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync
where
    T: FromStr + PartialOrd + Display + Clone + Send + Sync,
{
    move |text| {
        let number = text.parse().ok().filter(|number| range.contains(number));
        number.ok_or_else(|| format!("write a number from {} to {}", range.start(), range.end()))
    }
}

/// How many rows are shown.
pub fn rows(text: &str) -> Result<usize, String> {
    number(text).and_then(|rows| if rows == 0 { Err("write 1 or more".into()) } else { Ok(rows) })
}

/// The number of a process that runs a VM.
pub fn process(text: &str) -> Result<u32, String> {
    number(text).map_err(|_| "write the number of a process; `strata attach` alone lists those that run a VM".into())
}

/// An address to listen to.
pub fn listen_address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| "write ADDRESS:PORT, as in 127.0.0.1:9464".into())
}

/// A number of bytes: plain, or with a suffix K, M, G or T (powers of 1024).
pub fn size(text: &str) -> Result<u64, String> {
    let refuse = || "write a number of bytes, or one with K, M, G or T, as in 512M".to_owned();
    let digits = text.trim_end_matches(|last: char| last.is_ascii_alphabetic());
    let shift = match text[digits.len()..].to_ascii_uppercase().as_str() {
        "" => 0,
        "K" | "KB" | "KIB" => 10,
        "M" | "MB" | "MIB" => 20,
        "G" | "GB" | "GIB" => 30,
        "T" | "TB" | "TIB" => 40,
        _ => return Err(refuse()),
    };
    let number: u64 = digits.parse().map_err(|_| refuse())?;
    number.checked_mul(1 << shift).ok_or_else(refuse)
}

/// A size that a recording can keep within, bytes.
pub fn max_size(text: &str) -> Result<u64, String> {
    let size = size(text)?;
    let too_small = || format!("write {}M or more", MIN_ROTATED_SIZE >> 20);
    Some(size).filter(|size| *size >= MIN_ROTATED_SIZE).ok_or_else(too_small)
}

/// Memory for the ring of a guest that is traced without an agent, bytes.
pub fn agentless_size(text: &str) -> Result<u64, String> {
    let size = size(text)?;
    let [least, most] = agentless::SIZES;
    let refuse = || format!("write {}M to {}G, a whole number of megabytes", least >> 20, most >> 30);
    Some(size).filter(|size| (least..=most).contains(size) && size.is_multiple_of(least)).ok_or_else(refuse)
}

/// Events that a guest's kernel is to record itself: what its command line takes.
pub fn agentless_events(text: &str) -> Result<String, String> {
    let is_pattern = |pattern: &str| {
        let fits = |part: &str| {
            !part.is_empty() && part.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '*' | '-' | '?'))
        };
        pattern.split_once(':').is_some_and(|(group, event)| fits(group) && fits(event))
    };
    match text.split(',').find(|pattern| !is_pattern(pattern)) {
        None => Ok(text.to_owned()),
        Some(wrong) => Err(format!("'{wrong}' is not GROUP:EVENT, as in sched:*,irq:softirq_entry")),
    }
}

/// Memory for the host kernel's records in a flight recorder, bytes.
pub fn host_history(text: &str) -> Result<usize, String> {
    let size = size(text)?;
    let fits = |size: &usize| (MIN_HOST_HISTORY..=MAX_HOST_HISTORY).contains(size);
    let refuse = || format!("write {}M to {}G", MIN_HOST_HISTORY >> 20, MAX_HOST_HISTORY >> 30);
    usize::try_from(size).ok().filter(fits).ok_or_else(refuse)
}

/// A time of whole milliseconds: seconds, or a number with a unit.
pub fn duration(text: &str) -> Result<Duration, String> {
    let is_allowed = |time: &Duration| {
        let allowed = 1..=u128::from(MAX_DURATION_MS);
        time.subsec_nanos().is_multiple_of(1_000_000) && allowed.contains(&time.as_millis())
    };
    parse_length(text)
        .filter(is_allowed)
        .ok_or_else(|| "write a number of seconds, or one with ms, s, m or h, as in 90s or 1.5s".into())
}

/// The size of a sub-buffer, bytes.
pub fn sub_buffer_size(text: &str) -> Result<u64, String> {
    let limits = MIN_SUB_BUFFER_SIZE..=MAX_SUB_BUFFER_SIZE;
    let size = size(text).ok().filter(|size| size.is_power_of_two() && limits.contains(size));
    size.ok_or_else(|| format!("write {}", sub_buffer_sizes()))
}

/// The number of sub-buffers of a ring.
pub fn sub_buffers(text: &str) -> Result<u32, String> {
    let count = text.parse().ok().filter(|count: &u32| count.is_power_of_two());
    let count = count.filter(|count| (MIN_SUB_BUFFERS..=MAX_SUB_BUFFERS).contains(count));
    count.ok_or_else(|| format!("write {}", sub_buffer_counts()))
}

/// A disk: a file, and options after commas.
pub fn disk(text: &str) -> Result<DiskConfig, String> {
    let mut disk = DiskConfig::new(text);
    let mut rest = text;
    // Options are read from the end: a comma in the name of a file does not begin one.
    while let Some((path, option)) = rest.rsplit_once(',') {
        match option.split_once('=') {
            None if option == "ro" => disk.read_only = true,
            Some(("lock", "off")) => disk.lock = false,
            Some(("format", "raw")) => disk.is_raw = true,
            Some(("format", other)) => {
                return Err(format!("disks are raw images: write 'format=raw', or convert the {other} image"));
            }
            Some(("delay", delay)) => disk.delay = self::delay(delay)?,
            Some(("iops", rate)) => disk.limits.operations = Some(operations(rate)?),
            Some(("bandwidth", rate)) => disk.limits.bytes = Some(bandwidth(rate)?),
            _ => break,
        }
        rest = path;
    }
    if rest.is_empty() {
        return Err("a disk needs a file: --disk FILE or --disk FILE,ro".into());
    }
    disk.path = rest.into();
    Ok(disk)
}

/// A network device: what carries its frames, and options after commas.
pub fn net(text: &str) -> Result<NetConfig, String> {
    let mut parts = text.split(',');
    let first = parts.next().unwrap_or_default();
    let link = match first.split_once('=').map_or((first, None), |(kind, name)| (kind, Some(name))) {
        ("tap", Some(name)) if !name.is_empty() => LinkConfig::Tap(name.into()),
        ("passt", None) => LinkConfig::Passt(None),
        ("passt", Some(socket)) if !socket.is_empty() => LinkConfig::Passt(Some(socket.into())),
        _ => {
            let forms = "'--net tap=tap0', '--net passt' or '--net passt=/tmp/passt_1.socket'";
            return Err(format!("write what carries the frames first, as in {forms}"));
        }
    };
    let mut net = NetConfig::new(link);
    for option in parts {
        match option.split_once('=') {
            Some(("mac", address)) => net.mac = Some(address.parse().map_err(|error| format!("{error}"))?),
            Some(("pps", rate)) => net.limits.packets = Some(packets(rate)?),
            Some(("bandwidth", rate)) => net.limits.bytes = Some(bandwidth(rate)?),
            Some(("vhost", switch @ ("on" | "off"))) => net.vhost = switch == "on",
            _ => return Err(format!("'{option}' is not an option: there are mac=, pps=, bandwidth= and vhost=on")),
        }
    }
    net.check_mover().map_err(|error| error.to_string())?;
    Ok(net)
}

/// A socket device: `cid=N,path=SOCKET`.
pub fn vsock(text: &str) -> Result<VsockConfig, String> {
    let refuse = || {
        format!("write the guest's address, {CID_MIN} to {CID_MAX}, and a socket, as in '--vsock cid=3,path=run/vsock'")
    };
    let (cid, path) = text.split_once(',').ok_or_else(refuse)?;
    let cid = cid.strip_prefix("cid=").and_then(|cid| cid.parse().ok());
    let cid = cid.filter(|cid| (CID_MIN..=CID_MAX).contains(cid)).ok_or_else(refuse)?;
    let path = path.strip_prefix("path=").filter(|path| !path.is_empty()).ok_or_else(refuse)?;
    Ok(VsockConfig { cid, path: path.into() })
}

/// A limit of packets: `RATE` or `RATE:BURST`.
fn packets(text: &str) -> Result<RateLimit, String> {
    rate_limit(text, |text| text.parse().ok(), 1)
        .ok_or_else(|| "write packets each second, and behind ':' how many at once, as in 'pps=1000:2000'".into())
}

/// A limit of operations: `RATE` or `RATE:BURST`.
fn operations(text: &str) -> Result<RateLimit, String> {
    let number = |text: &str| text.parse().ok();
    rate_limit(text, number, 1)
        .ok_or_else(|| "write operations each second, and behind ':' how many at once, as in 'iops=500:1000'".into())
}

/// A limit of bytes: `RATE` or `RATE:BURST`.
pub fn bandwidth(text: &str) -> Result<RateLimit, String> {
    rate_limit(text, |text| size(text).ok(), MIN_BANDWIDTH).ok_or_else(|| {
        let least = MIN_BANDWIDTH >> 10;
        format!("write bytes each second, {least}K or more, and behind ':' how many at once, as in '10M:64M'")
    })
}

/// The limit of a layer's records: `LAYER=RATE` or `LAYER=RATE:BURST`.
pub fn layer_limit(text: &str) -> Result<LayerLimit, String> {
    let refuse = || {
        "write a layer, '=', records each second, and behind ':' how many at once, as in 'guest-user=50000:200000'"
            .to_owned()
    };
    let (layer, rate) = text.split_once('=').ok_or_else(refuse)?;
    let layer = layer.parse::<LayerKind>().map_err(|error| error.to_string())?;
    let RateLimit { per_second, burst } = rate_limit(rate, |text| text.parse().ok(), 1).ok_or_else(refuse)?;
    Ok(LayerLimit { layer, per_second, burst })
}

/// A limit of `least` or more each second. The burst is what comes in a second by default, and at least what
/// comes in the shortest time between two timers.
fn rate_limit(text: &str, number: impl Fn(&str) -> Option<u64>, least: u64) -> Option<RateLimit> {
    let (rate, burst) = text.split_once(':').unwrap_or((text, text));
    let (per_second, burst) = (number(rate)?, number(burst)?);
    (per_second >= least && burst > 0 && burst >= per_second / BURSTS_PER_SECOND)
        .then_some(RateLimit { per_second, burst })
}

/// The delay of a slow disk.
fn delay(text: &str) -> Result<Duration, String> {
    let delay = parse_length(text).filter(|delay| *delay <= MAX_DELAY);
    delay.ok_or_else(|| format!("write a delay of up to {} s, as in 'delay=5ms'", MAX_DELAY.as_secs()))
}

/// The name of a VM.
pub fn vm_name(text: &str) -> Result<String, String> {
    if is_vm_name(text) { Ok(text.into()) } else { Err("write letters, digits, '.', '_' and '-'".into()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;
    use clap::Parser;

    #[test]
    fn times_take_suffixes() {
        assert_eq!(duration("90"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(duration("2h"), Ok(Duration::from_secs(7200)));
        assert_eq!(duration("1.5s"), Ok(Duration::from_millis(1500)));
        for text in ["", "s", "0", "-1s", "1d", "1.0005s", "999us", "99999999999h"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_take_suffixes() {
        assert_eq!(size("4096"), Ok(4096));
        assert_eq!(size("512M"), Ok(512 << 20));
        assert_eq!(size("2g"), Ok(2 << 30));
        assert_eq!([size("1GB"), size("1gib"), size("3kb")], [Ok(1 << 30), Ok(1 << 30), Ok(3 << 10)]);
        assert!(size("12Q").is_err() && size("M").is_err() && size("99999999999T").is_err());
    }

    #[test]
    fn what_is_no_number_is_refused_with_what_to_write() {
        let refused = |line: &str| Cli::try_parse_from(line.split(' ')).unwrap_err().to_string();

        for (line, expected) in [
            ("strata attach qemu", "write the number of a process; `strata attach` alone lists"),
            ("strata attach 1 --trace t --vm a", "not a whole number"),
            ("strata run --kernel k --cpus two", "not a whole number"),
            ("strata events t --cpu a", "not a whole number"),
            ("strata events t --cpu -1", "'-1' for '--cpu <N>': not a whole number"),
            ("strata events t --cpu 4294967296", "the number is too large"),
            ("strata report exits t --cpu -1", "'-1' for '--cpu <N>': not a whole number"),
            ("strata report exits t --limit abc", "not a whole number"),
            ("strata report exits t --limit 0", "write 1 or more"),
            ("strata why t --worst abc", "write a number from 1 to 1000"),
            ("strata open t --port abc", "write a number from 0 to 65535"),
            ("strata metrics --listen 9464", "write ADDRESS:PORT, as in 127.0.0.1:9464"),
            ("strata metrics --listen :9464", "write ADDRESS:PORT, as in 127.0.0.1:9464"),
            ("strata metrics --listen 127.0.0.1:80000", "write ADDRESS:PORT, as in 127.0.0.1:9464"),
        ] {
            let error = refused(line);
            assert!(error.contains(expected), "{line}: {error}");
        }
    }

    #[test]
    fn host_history_has_limits() {
        assert_eq!(host_history("1G"), Ok(1 << 30));
        assert_eq!(host_history("1023K"), Err("write 1M to 64G".into()));
        assert_eq!(host_history("65G"), Err("write 1M to 64G".into()));
    }

    #[test]
    fn disk_may_be_read_only_and_slow() {
        let disk = |path: &str, read_only, ms| {
            Ok(DiskConfig { read_only, delay: Duration::from_millis(ms), ..DiskConfig::new(path) })
        };

        assert_eq!(super::disk("a.img"), disk("a.img", false, 0));
        assert_eq!(super::disk("a.img,ro"), disk("a.img", true, 0));
        assert_eq!(super::disk("a.img,delay=5ms"), disk("a.img", false, 5));
        assert_eq!(super::disk("a,b.img,delay=20ms,ro"), disk("a,b.img", true, 20));
        assert_eq!(super::disk("a,b"), disk("a,b", false, 0));
        assert_eq!(super::disk("a,lock=off").map(|disk| (disk.path, disk.lock)), Ok(("a".into(), false)));
        assert_eq!(super::disk("a,format=raw").map(|disk| (disk.path, disk.is_raw)), Ok(("a".into(), true)));
        assert!(super::disk("a,format=qcow2").unwrap_err().contains("convert the qcow2 image"));
        assert!(super::disk(",ro").is_err());
        assert_eq!(super::disk("a.img,delay=0.005"), disk("a.img", false, 5));
        assert!(super::disk("a.img,delay=5d").unwrap_err().contains("'delay=5ms'"));
        assert!(super::disk("a.img,delay=10.1s").is_err());
    }

    #[test]
    fn limits_are_rates_and_bursts() {
        let limit = |per_second, burst| Some(RateLimit { per_second, burst });
        let limits = |text: &str| super::disk(text).map(|disk| (disk.limits.operations, disk.limits.bytes));

        assert_eq!(limits("a.img,iops=500"), Ok((limit(500, 500), None)));
        assert_eq!(limits("a.img,ro,bandwidth=1M:4M,iops=500:9"), Err(limits("a,iops=x").unwrap_err()));
        assert_eq!(limits("a.img,ro,bandwidth=1M:4M,iops=500:10"), Ok((limit(500, 10), limit(1 << 20, 4 << 20))));
        assert!(limits("a.img,iops=0").unwrap_err().contains("iops=500:1000"));
        assert!(limits("a.img,iops=1:0").is_err() && limits("a.img,iops=").is_err());
        assert!(limits("a.img,bandwidth=4095").unwrap_err().contains("4K or more"));
    }

    #[test]
    fn network_device_has_a_link_an_address_and_limits() {
        let limit = |per_second, burst| Some(RateLimit { per_second, burst });

        let plain = net("tap=tap0").unwrap();
        let full = net("tap=tap0,mac=52:54:00:12:34:56,pps=1000:2000,bandwidth=1M").unwrap();

        assert_eq!(plain, NetConfig::new(LinkConfig::Tap("tap0".into())));
        assert_eq!(full.link, plain.link);
        assert_eq!(net("tap=tap0,vhost=on"), Ok(NetConfig { vhost: true, ..plain.clone() }));
        assert_eq!(net("tap=tap0,vhost=off,pps=5").map(|net| net.vhost), Ok(false));
        assert_eq!(net("passt").unwrap().link, LinkConfig::Passt(None));
        assert_eq!(net("passt=/a.socket,pps=5").unwrap().link, LinkConfig::Passt(Some("/a.socket".into())));
        assert_eq!(full.mac.map(|mac| mac.to_string()).as_deref(), Some("52:54:00:12:34:56"));
        assert_eq!((full.limits.packets, full.limits.bytes), (limit(1000, 2000), limit(1 << 20, 1 << 20)));
        for (text, states) in [
            ("tap0", "tap=tap0"),
            ("tap=", "tap=tap0"),
            ("passt=", "'--net passt'"),
            ("tap=t,mac=1", "mac=52:54:00:12:34:56"),
            ("tap=t,pps=0", "pps=1000:2000"),
            ("tap=t,vlan=3", "'vlan=3' is not an option"),
            ("tap=t,vhost=yes", "'vhost=yes' is not an option"),
            ("tap=t,vhost=on,pps=5", "vhost=on and limits exclude each other"),
            ("passt,vhost=on", "vhost=on is for taps"),
        ] {
            assert!(net(text).unwrap_err().contains(states), "{text}");
        }
    }

    #[test]
    fn socket_device_has_an_address_and_a_socket() {
        assert_eq!(vsock("cid=3,path=/a,b"), Ok(VsockConfig { cid: 3, path: "/a,b".into() }));
        for text in ["", "cid=3", "cid=2,path=/a", "cid=4294967295,path=/a", "cid=3,path=", "path=/a,cid=3", "3,/a"] {
            assert!(vsock(text).unwrap_err().contains("--vsock cid=3,path=run/vsock"), "{text}");
        }
    }

    #[test]
    fn layers_are_limited_by_name_and_rate() {
        let limit = |layer, per_second, burst| Ok(LayerLimit { layer, per_second, burst });

        assert_eq!(layer_limit("guest-user=5000"), limit(LayerKind::GuestUser, 5000, 5000));
        assert_eq!(layer_limit("host=5000:100"), limit(LayerKind::HostKernel, 5000, 100));
        assert!(layer_limit("guest-usr=1").unwrap_err().contains("nearest: guest-user"));
        for text in ["guest-user", "vmm=", "vmm=0", "vmm=1:0", "vmm=-1", "vmm=5000:99", "vmm=1K"] {
            assert!(layer_limit(text).unwrap_err().contains("'guest-user=50000:200000'"), "{text}");
        }
    }

    #[test]
    fn geometry_is_checked_before_anything_runs() {
        assert_eq!(sub_buffer_size("64K"), Ok(65536));
        assert!(sub_buffer_size("100K").unwrap_err().contains("4K to 4M"));
        assert!(sub_buffer_size("8M").is_err() && sub_buffer_size("2K").is_err());
        assert_eq!(sub_buffers("256"), Ok(256));
        assert!(sub_buffers("3").unwrap_err().contains("2 to 256"));
        assert!(sub_buffers("1").is_err() && sub_buffers("512").is_err() && sub_buffers("x").is_err());
    }

    #[test]
    fn layer_is_read_by_name_and_short_form() {
        let read = |name: &str| {
            let command = clap::Command::new("x").arg(clap::Arg::new("layer").value_parser(layer()));
            command.try_get_matches_from(["x", name]).map(|matches| *matches.get_one::<LayerKind>("layer").unwrap())
        };

        let error = read("guest-kernle").unwrap_err().to_string();

        assert_eq!(LayerKind::ALL.map(|kind| read(kind.name()).unwrap()), LayerKind::ALL);
        assert_eq!(LayerKind::ALL.map(|kind| read(kind.short_name()).unwrap()), LayerKind::ALL);
        assert!(error.contains("host-kernel, vmm, guest-kernel, guest-user"), "{error}");
        assert!(error.contains("similar") && error.contains("'guest-kernel'"), "{error}");
    }
}
