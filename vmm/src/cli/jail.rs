//! The options of the jail, which `strata run` and `strata attach` share.

use super::recording::RECORDED;
use super::values;
use clap::Args;
use std::path::PathBuf;
use strata_jail::inherited::Inherited;
use strata_jail::{JailRequest, Mode, NewUser};

/// The heading of options about the process itself.
pub(super) const PROCESS: &str = "Process";

/// How the process is confined.
#[derive(Debug, Args)]
#[command(next_help_heading = PROCESS)]
pub struct JailArgs {
    /// Give up capabilities, files and system calls not needed once everything that needs root is open; `run` also its
    /// user
    ///
    /// 'log' lets forbidden system calls through and names them in the kernel's log; 'off' keeps everything
    #[arg(long, value_name = "MODE", default_value = Mode::default().name(), value_parser = values::jail())]
    pub jail: Mode,
    /// Let snapshots and further sessions be written into this folder, as into TRACE-snapshots. May be repeated
    #[arg(long = "writable", value_name = "DIR", requires = RECORDED)]
    pub writable: Vec<PathBuf>,
}

impl JailArgs {
    /// The request for the jail of a process that becomes `user`.
    #[must_use]
    pub fn into_request(self, user: NewUser) -> JailRequest {
        JailRequest { mode: self.jail, user, writable: self.writable, inherited: Inherited::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attach::AttachRequest;
    use crate::cli::{Cli, Command};
    use crate::run::RunRequest;
    use clap::Parser;

    /// What a command line makes of its jail.
    fn jail(words: &[&str]) -> Option<JailRequest> {
        match Cli::try_parse_from(["strata"].iter().chain(words)).ok()?.command {
            Command::Run(args) => Some(RunRequest::from(*args).jail),
            Command::Attach(args) => Some(AttachRequest::try_from(args).ok()?.jail),
            _ => None,
        }
    }

    #[test]
    fn options_mean_the_same_to_each_command_but_that_who_attaches_stays_who_it_is() {
        let options = ["--jail", "log", "--writable", "/a", "--writable", "/b"];
        let commands = [&["run", "--kernel", "k", "--trace", "t"][..], &["attach", "42", "--trace", "t"]];

        let [run, attach] = commands.map(|command| jail(&[command, &options].concat()).unwrap());

        let reported = |jail: &JailRequest| (jail.mode, jail.writable.clone());
        assert_eq!(reported(&run), (Mode::Log, vec!["/a".into(), "/b".into()]));
        assert_eq!(reported(&run), reported(&attach));
        assert_eq!((run.user, attach.user), (NewUser::Caller, NewUser::Same));
        assert!(jail(&["run", "--kernel", "k", "--writable", "/a"]).is_none());
    }
}
