//! The user that a VM runs as once everything that needs root is open.

use rustix::io::Errno;
use rustix::process::{
    Gid, Signal, Uid, getegid, geteuid, parent_process_death_signal, set_parent_process_death_signal,
};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use std::fs;
use thiserror::Error;

/// The users of this host.
const USERS: &str = "/etc/passwd";
/// Nobody's number: a change of user or group to it changes nothing.
const UNCHANGED: u32 = u32::MAX;

/// Why no user can be had.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum UserError {
    /// The name is not in the list of users.
    #[error("--user {0}: {USERS} has no such user; write UID:GID for one that it does not list")]
    Unknown(String),
    /// A number whose group is not known.
    #[error("--user {0}: {USERS} does not say this user's group; write UID:GID")]
    NoGroup(String),
    /// A number that no user or group can have.
    #[error("--user {0}: {UNCHANGED} is the number of no user and no group")]
    NoNumber(String),
    /// Who stays the same user keeps the group, too.
    #[error("--user {0}: strata is this user already and keeps its group; leave the group out, or name another user")]
    OwnGroup(String),
    /// Only root can become another user.
    #[error("--user {0}: only root can run a VM as another user; start strata with sudo")]
    NotRoot(String),
}

/// A user and a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct User {
    /// The user's number.
    pub uid: u32,
    /// The number of the user's group.
    pub gid: u32,
}

impl User {
    /// Whom to run as: `wanted` (a name, a number or `UID:GID`), else the one who called sudo; `None` to stay who we
    /// are.
    ///
    /// # Errors
    /// `wanted` is nobody, or us with another group, or we are not root.
    pub fn choose(wanted: Option<&str>) -> Result<Option<Self>, UserError> {
        let variable = |name| std::env::var(name).ok();
        let sudo = variable("SUDO_UID").zip(variable("SUDO_GID"));
        let users = fs::read_to_string(USERS).unwrap_or_default();
        let own = Self { uid: geteuid().as_raw(), gid: getegid().as_raw() };
        Self::of(wanted, own, sudo, &users)
    }

    fn of(
        wanted: Option<&str>,
        own: Self,
        sudo: Option<(String, String)>,
        users: &str,
    ) -> Result<Option<Self>, UserError> {
        let sudo = sudo.and_then(|(uid, gid)| Some(Self { uid: uid.parse().ok()?, gid: gid.parse().ok()? }));
        let Some(wanted) = wanted else {
            return Ok(sudo.filter(|user| own.uid == 0 && user.uid != 0));
        };
        let user = Self::named(wanted, users)?;
        // No user's name has a colon.
        let is_group_wanted = wanted.contains(':');
        match (own.uid, user.uid) {
            (own_uid, uid) if own_uid == uid && is_group_wanted && own.gid != user.gid => {
                Err(UserError::OwnGroup(wanted.into()))
            }
            (own_uid, uid) if own_uid == uid => Ok(None),
            (0, _) => Ok(Some(user)),
            _ => Err(UserError::NotRoot(wanted.into())),
        }
    }

    /// The user `wanted` by `users`, the contents of `/etc/passwd`.
    fn named(wanted: &str, users: &str) -> Result<Self, UserError> {
        let both = wanted.split_once(':').and_then(|(uid, gid)| Some((uid.parse().ok()?, gid.parse().ok()?)));
        match both {
            Some((UNCHANGED, _) | (_, UNCHANGED)) => return Err(UserError::NoNumber(wanted.into())),
            Some((uid, gid)) => return Ok(Self { uid, gid }),
            None => {}
        }
        let number: Option<u32> = wanted.parse().ok();
        let listed = users.lines().find_map(|line| {
            let mut fields = line.split(':');
            let (name, _, uid, gid) = (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
            let user = Self { uid: uid.parse().ok()?, gid: gid.parse().ok()? };
            (name == wanted || Some(user.uid) == number).then_some(user)
        });
        listed.ok_or_else(|| match number {
            Some(_) => UserError::NoGroup(wanted.into()),
            None => UserError::Unknown(wanted.into()),
        })
    }

    /// The number of the user `name`, a name or a number; `None` where no such name is known here.
    #[must_use]
    pub fn number_of(name: &str) -> Option<u32> {
        let users = || fs::read_to_string(USERS).unwrap_or_default();
        name.parse().ok().or_else(|| Self::named(name, &users()).ok().map(|user| user.uid))
    }

    /// The name of the user `uid`, or the number where no name is known here.
    #[must_use]
    pub fn name_of(uid: u32) -> String {
        name_in(&fs::read_to_string(USERS).unwrap_or_default(), uid).unwrap_or_else(|| uid.to_string())
    }

    /// Does `deed` with this user's permissions on files: what it makes is this user's, and it reaches no more than this
    /// user does. For root, before threads are started.
    ///
    /// # Errors
    /// We are not root.
    pub fn act<T>(self, deed: impl FnOnce() -> T) -> Result<T, Errno> {
        let _kept = KeptDeathSignal::of_this_thread();
        set_thread_groups(&[])?;
        set_thread_res_gid(None, Gid::from_raw(self.gid), None)?;
        let _back = Back;
        set_thread_res_uid(None, Uid::from_raw(self.uid), None)?;
        Ok(deed())
    }

    /// Becomes this user for good, in the calling thread and those that it starts.
    ///
    /// # Errors
    /// We are not root.
    pub fn become_for_good(self) -> Result<(), Errno> {
        let _kept = KeptDeathSignal::of_this_thread();
        let (uid, gid) = (Uid::from_raw(self.uid), Gid::from_raw(self.gid));
        set_thread_groups(&[])?;
        set_thread_res_gid(gid, gid, gid)?;
        set_thread_res_uid(uid, uid, uid)
    }
}

/// The name of the user `uid` by `users`, the contents of `/etc/passwd`.
fn name_in(users: &str, uid: u32) -> Option<String> {
    let uid = uid.to_string();
    users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let (name, number) = (fields.next()?, fields.nth(1)?);
        (number == uid).then(|| name.to_owned())
    })
}

/// Root again, when this is dropped: also when a deed panics.
struct Back;

impl Drop for Back {
    fn drop(&mut self) {
        // The saved numbers are root's, so neither can be refused.
        let _ = set_thread_res_uid(None, Uid::ROOT, None);
        let _ = set_thread_res_gid(None, Gid::ROOT, None);
    }
}

/// The signal by which this thread learns that its parent died: the kernel forgets it at each change of user, so it is
/// set again when this is dropped.
struct KeptDeathSignal(Option<Signal>);

impl KeptDeathSignal {
    fn of_this_thread() -> Self {
        Self(parent_process_death_signal().ok().flatten())
    }
}

impl Drop for KeptDeathSignal {
    fn drop(&mut self) {
        // What was a signal before is one.
        let _ = set_parent_process_death_signal(self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_have_names_where_the_list_has_them() {
        let users = "root:x:0:0:root:/root:/bin/sh\nweb:x:33:34::/:\n";

        assert_eq!(name_in(users, 33).as_deref(), Some("web"));
        assert_eq!(name_in(users, 34), None);
    }

    const LIST: &str = "root:x:0:0:root:/root:/bin/sh\nbroken\nann:x:1000:1001:Ann:/home/ann:/bin/sh\n";
    const ROOT: User = User { uid: 0, gid: 0 };
    const ANN: User = User { uid: 1000, gid: 1001 };

    fn sudo(uid: &str, gid: &str) -> Option<(String, String)> {
        Some((uid.into(), gid.into()))
    }

    #[test]
    fn root_becomes_who_called_sudo_and_nobody_else_becomes_another() {
        let of = |own, sudo| User::of(None, own, sudo, LIST).unwrap();

        assert_eq!(of(ROOT, sudo("1000", "1001")), Some(ANN));
        assert_eq!(of(ROOT, None), None);
        assert_eq!(of(ROOT, sudo("0", "0")), None);
        assert_eq!(of(ROOT, sudo("ann", "1001")), None);
        assert_eq!(of(ANN, sudo("1000", "1001")), None);
    }

    #[test]
    fn user_is_named_by_name_by_number_or_by_both_numbers() {
        let of = |wanted| User::of(Some(wanted), ROOT, None, LIST);

        assert_eq!(of("ann"), Ok(Some(ANN)));
        assert_eq!(of("1000"), Ok(Some(ANN)));
        assert_eq!(of("77:78"), Ok(Some(User { uid: 77, gid: 78 })));
        assert_eq!(of("root"), Ok(None));
        assert_eq!(of("bob"), Err(UserError::Unknown("bob".into())));
        assert_eq!(of("77"), Err(UserError::NoGroup("77".into())));
    }

    #[test]
    fn number_by_which_root_would_stay_root_is_refused() {
        let refused = ["4294967295:78", "77:4294967295"].map(|wanted| User::of(Some(wanted), ROOT, None, LIST));

        assert!(refused.iter().all(|user| matches!(user, Err(UserError::NoNumber(_)))), "{refused:?}");
    }

    #[test]
    fn another_group_for_who_stays_the_same_user_is_refused() {
        let of = |own, wanted| User::of(Some(wanted), own, None, LIST);

        assert_eq!(of(ROOT, "0:5"), Err(UserError::OwnGroup("0:5".into())));
        assert_eq!(of(ANN, "1000:5"), Err(UserError::OwnGroup("1000:5".into())));
        assert_eq!([of(ROOT, "0:0"), of(ANN, "1000:1001")], [Ok(None), Ok(None)]);
    }

    #[test]
    fn named_user_goes_before_sudo_and_needs_root() {
        assert_eq!(User::of(Some("root"), ROOT, sudo("1000", "1001"), LIST), Ok(None));
        assert_eq!(User::of(Some("root"), ANN, None, LIST), Err(UserError::NotRoot("root".into())));
        assert_eq!(User::of(Some("ann"), ANN, None, LIST), Ok(None));
    }
}
