//! What `ps`, `ctl`, `top`, `metrics` and `attach --qmp` of one's own do beside a [`stranger`](crate::stranger): one's own
//! VM is found and answers, each answer has its time, and nothing acts on a terminal.

use crate::attack::Attack;
use crate::setup::VmSetup;
use crate::stranger::{OWN_NAME, QMP_SERVERS};
use crate::tally::Tally;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};
use strata_recorder::control::found_vm::{self, FoundVm, Owner, RuntimeFolder};
use strata_recorder::control::protocol::{Answer, Request};
use strata_recorder::control::{answer_text, client, list};
use strata_recording::text::terminal::acts;
use vmm::attach::hot_plug::has_free_port;
use vmm::attach::stop::Stop;

/// How long a stranger's socket is waited for.
const WAIT: Duration = Duration::from_millis(300);
/// Faults that are kept to be told.
const MOST_FAULTS: usize = 5;

/// What came of it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Seen {
    /// Strokes by attack.
    pub strokes: BTreeMap<Attack, u64>,
    /// Looks for this user's VM.
    pub looks: u64,
    /// Why this user's VM was not found.
    pub lost: Vec<String>,
    /// Texts that were shown.
    pub texts: u64,
    /// Those that act on a terminal.
    pub acting: Vec<String>,
    /// The longest time that anything took, ms.
    pub worst_ms: u64,
}

impl Seen {
    fn strike(&mut self, attack: Attack) {
        *self.strokes.entry(attack).or_default() += 1;
    }

    fn show(&mut self, text: &str) {
        self.texts += 1;
        if text.chars().any(|character| acts(character) && character != '\n') && self.acting.len() < MOST_FAULTS {
            self.acting.push(format!("{text:?}"));
        }
    }

    fn took(&mut self, begun: Instant) {
        self.worst_ms = self.worst_ms.max(u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX));
    }
}

/// Looks at this user's VM that the file `setup` describes, beside the process `stranger` with the runtime folder `folder`,
/// until that VM's guest is to end; writes a line of [`Seen`].
///
/// # Errors
/// When the setup cannot be read.
pub fn run(setup: &Path, folder: &Path, stranger: u32, attacks: &[Attack]) -> anyhow::Result<()> {
    let setup = VmSetup::load(setup)?;
    let tally = Tally::open(&setup.tally())?;
    let runtimes = [folder.to_path_buf(), setup.runtime.clone()].map(RuntimeFolder::named);
    let mut seen = Seen::default();
    for number in 0.. {
        if tally.is_stopping() {
            break;
        }
        let begun = Instant::now();
        let found = found_vm::list_all(&runtimes)?;
        seen.show(&list::text(&list::listed(found.clone(), u64::MAX)));
        let own = client::find(&runtimes, OWN_NAME);
        seen.took(begun);
        seen.strike(Attack::RuntimeFolders);
        seen.looks += 1;
        match own {
            Ok(own) if own.owner == Owner::Own => {}
            // A recorder that has just been killed leaves nothing to find.
            _ if tally.is_stopping() => break,
            other => seen.lost.push(format!("{other:?}")),
        }
        seen.lost.truncate(MOST_FAULTS);
        let others: Vec<&FoundVm> = found.iter().filter(|vm| vm.alive && matches!(vm.owner, Owner::Other(_))).collect();
        if let Some(other) =
            others.get(number % others.len().max(1)).filter(|_| attacks.contains(&Attack::ControlAnswers))
        {
            request_status(other, &mut seen);
        }
        if attacks.contains(&Attack::QmpReplies) {
            let begun = Instant::now();
            let socket = folder.join(format!("qmp-{}", number % QMP_SERVERS));
            let stop = Stop::Signals(std::sync::Arc::default(), 0);
            match has_free_port(&socket, stranger, WAIT, &stop) {
                Ok(_) => {}
                Err(error) => seen.show(&error.to_string()),
            }
            seen.took(begun);
            seen.strike(Attack::QmpReplies);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    println!("{}", serde_json::to_string(&seen)?);
    Ok(())
}

/// Sends a stranger's VM every request.
fn request_status(other: &FoundVm, seen: &mut Seen) {
    for request in [Request::Status, Request::Live] {
        let begun = Instant::now();
        let answer = client::call_until(&other.socket(), &request, begun + WAIT);
        seen.took(begun);
        seen.strike(Attack::ControlAnswers);
        match answer {
            Ok(Answer::Live(live)) => seen.show(&vmm::metrics::text_of(*live)),
            Ok(answer) => seen.show(&answer_text::text(&answer)),
            Err(error) => seen.show(&format!("{error} {error:?}")),
        }
    }
}
