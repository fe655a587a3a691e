//! Control of running virtual machines from outside: each has a private folder with its trace region and a socket.
//!
//! - [`directory`]: the folder, which describes the VM also after a crash; [`found_vm`]: such folders as others find them.
//! - [`protocol`]: requests and answers on the socket, a line of JSON each.
//! - [`server`]: the VM's end, a thread of its own; [`client`]: the command line's end, which looks who the
//!   [`peer`] is; [`patience`]: how long it waits for several; [`answer_text`]: what it shows. Both wait as
//!   [`socket_wait`] does.
//! - [`list`]: `strata ps`; [`wait_trigger`]: `strata ctl VM wait-trigger`; [`balloon`]: `strata ctl VM balloon`.

pub mod answer_text;
pub mod balloon;
pub mod client;
pub mod directory;
pub mod found_vm;
pub mod list;
pub mod patience;
pub mod peer;
pub mod protocol;
pub mod server;
pub mod socket;
pub mod socket_wait;
pub mod wait_trigger;
