//! What a QMP server says to `strata attach --qmp`, up to the port for a region.

use std::io::Write;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::Duration;
use strata_recording::text::terminal::acts;
use vmm::attach::hot_plug::has_free_port_behind;
use vmm::attach::stop::Stop;

/// How long the conversation may take. The server has said all that it will before it begins: what waits for more is an
/// input that takes too long.
const LIMIT: Duration = Duration::from_secs(60);

/// Runs an input: all that the server says.
///
/// # Panics
/// When a property that the target checks does not hold.
pub fn run(data: &[u8]) {
    let (ours, mut theirs) = UnixStream::pair().expect("there are descriptors");
    // Less than what a socket takes at once, as the requests are: neither waits for the other.
    theirs.write_all(&data[..data.len().min(32 << 10)]).expect("a socket takes so much");
    theirs.shutdown(Shutdown::Write).expect("it is open");
    let found = has_free_port_behind(ours, LIMIT, &Stop::Signals(std::sync::Arc::default(), 0));
    if let Err(error) = found {
        assert!(!error.to_string().chars().any(acts), "{error:?}");
    }
}
