//! Loads whose waits have a known cause: a lock's holder, a server, a disk, a child, a competitor.
//!
//! Who waits and who is waited for are threads with names of their own, whose thread ids are reported. Times are of the
//! guest's monotonic clock where somebody waits, and of the thread's CPU clock where somebody computes.

use super::{burn_for, cpu_time, ns, pin, read_blocks, set_policy};
use anyhow::{Context, Result, anyhow, ensure};
use rustix::process::getpid;
use rustix::thread::gettid;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Barrier, Mutex, PoisonError};
use std::thread::{self, Builder, Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

/// The guest's CPU of those who wait, and that of those who are waited for.
const WAITERS: usize = 0;
const HOLDERS: usize = 1;

/// A thread of a load: its thread id and what it measured.
struct Reported<T> {
    tid: i32,
    of: T,
}

/// Runs `work` in a thread that is called `name`, on `cpu`.
fn thread<'s, T: Send + 's>(
    scope: &'s Scope<'s, '_>,
    (name, cpu): (&str, usize),
    work: impl FnOnce() -> Result<T> + Send + 's,
) -> Result<ScopedJoinHandle<'s, Result<Reported<T>>>> {
    let work = move || {
        pin(None, cpu)?;
        Ok(Reported { tid: gettid().as_raw_nonzero().get(), of: work()? })
    };
    Ok(Builder::new().name(name.to_owned()).spawn_scoped(scope, work)?)
}

fn join<T>(thread: ScopedJoinHandle<'_, Result<T>>) -> Result<T> {
    thread.join().map_err(|_| anyhow!("a thread of the load panicked"))?
}

/// How long it takes to get `lock`.
fn wait_for(lock: &Mutex<()>) -> Duration {
    let requested = Instant::now();
    drop(lock.lock().unwrap_or_else(PoisonError::into_inner));
    requested.elapsed()
}

/// What the holder of a lock does meanwhile.
#[derive(Clone, Copy)]
pub enum Hold {
    /// Sleeps.
    Sleeping,
    /// Computes.
    Computing,
}

/// A `waiter` waits for the lock that a `holder` on the other CPU holds for a time.
pub fn held(name: &str, how: Hold, time: Duration) -> Result<()> {
    println!("begins: {name}");
    let (lock, is_held) = (Mutex::new(()), Barrier::new(2));
    thread::scope(|scope| {
        let holder = thread(scope, ("holder", HOLDERS), || {
            let _guard = lock.lock().unwrap_or_else(PoisonError::into_inner);
            is_held.wait();
            match how {
                Hold::Sleeping => thread::sleep(time),
                Hold::Computing => super::compute_for(time),
            }
            Ok(())
        })?;
        let waiter = thread(scope, ("waiter", WAITERS), || {
            is_held.wait();
            Ok(wait_for(&lock))
        })?;
        let (holder, waiter) = (join(holder)?, join(waiter)?);
        println!(
            "known: {name} waiter={} holder={} waited_ns={} asked_ns={}",
            waiter.tid,
            holder.tid,
            ns(waiter.of),
            ns(time)
        );
        Ok(())
    })
}

/// `first` waits for a lock of `second`, which waits for a lock of `third`, which reads from a disk.
pub fn chain(path: &str, count: u64) -> Result<()> {
    let (outer, inner) = (Mutex::new(()), Mutex::new(()));
    let (inner_is_held, both_are_held) = (Barrier::new(2), Barrier::new(3));
    thread::scope(|scope| {
        let third = thread(scope, ("third", HOLDERS), || {
            let _guard = inner.lock().unwrap_or_else(PoisonError::into_inner);
            inner_is_held.wait();
            both_are_held.wait();
            read_blocks(path, count)
        })?;
        let second = thread(scope, ("second", WAITERS), || {
            inner_is_held.wait();
            let _guard = outer.lock().unwrap_or_else(PoisonError::into_inner);
            both_are_held.wait();
            Ok(wait_for(&inner))
        })?;
        let first = thread(scope, ("first", WAITERS), || {
            both_are_held.wait();
            Ok(wait_for(&outer))
        })?;
        let (first, second, third) = (join(first)?, join(second)?, join(third)?);
        println!(
            "known: chain first={} second={} third={} waited_ns={} disk_ns={}",
            first.tid,
            second.tid,
            third.tid,
            ns(first.of),
            ns(third.of[1])
        );
        Ok(())
    })
}

/// A `client` sends a request to a `server`, which computes for a time and answers.
pub fn request(work: Duration) -> Result<()> {
    let (mut near, mut far) = UnixStream::pair()?;
    thread::scope(|scope| {
        let server = thread(scope, ("server", HOLDERS), move || {
            far.read_exact(&mut [0])?;
            let used = burn_for(work);
            far.write_all(&[0])?;
            Ok(used)
        })?;
        let client = thread(scope, ("client", WAITERS), move || {
            near.write_all(&[0])?;
            let requested = Instant::now();
            near.read_exact(&mut [0])?;
            Ok(requested.elapsed())
        })?;
        let (client, server) = (join(client)?, join(server)?);
        println!(
            "known: request client={} server={} waited_ns={} cpu_ns={}",
            client.tid,
            server.tid,
            ns(client.of),
            ns(server.of)
        );
        Ok(())
    })
}

/// A `high` task waits for the lock of a `low` one, which a `middle` one keeps from running.
pub fn inversion(work: Duration) -> Result<()> {
    let (lock, all_are_there) = (Mutex::new(()), Barrier::new(3));
    thread::scope(|scope| {
        let low = thread(scope, ("low", HOLDERS), || {
            set_policy(libc::SCHED_IDLE)?;
            let _guard = lock.lock().unwrap_or_else(PoisonError::into_inner);
            all_are_there.wait();
            let begin = (Instant::now(), cpu_time());
            burn_for(work / 8);
            Ok(begin.0.elapsed().saturating_sub(cpu_time() - begin.1))
        })?;
        let middle = thread(scope, ("middle", HOLDERS), || {
            all_are_there.wait();
            Ok(burn_for(work))
        })?;
        let high = thread(scope, ("high", WAITERS), || {
            all_are_there.wait();
            // the lock may be `high`'s at once if `low` has not got it yet
            Ok(wait_for(&lock))
        })?;
        let (low, middle, high) = (join(low)?, join(middle)?, join(high)?);
        println!(
            "known: inversion high={} middle={} low={} waited_ns={} cpu_ns={} kept_ns={}",
            high.tid,
            middle.tid,
            low.tid,
            ns(high.of),
            ns(middle.of),
            ns(low.of)
        );
        Ok(())
    })
}

/// Two tasks compute on one CPU: the time that one of them has not had is the `rival`'s.
pub fn competition(work: Duration) -> Result<()> {
    let (has_begun, is_over) = (Barrier::new(2), AtomicBool::new(false));
    thread::scope(|scope| {
        let rival = thread(scope, ("rival", HOLDERS), || {
            has_begun.wait();
            while !is_over.load(Ordering::Relaxed) {
                super::spin(10_000);
            }
            Ok(())
        })?;
        has_begun.wait();
        let contender = thread(scope, ("contender", WAITERS), || {
            let begin = Instant::now();
            pin(None, HOLDERS)?;
            let used = burn_for(work);
            Ok((begin.elapsed(), used))
        })?;
        let contender = join(contender);
        is_over.store(true, Ordering::Relaxed);
        let (contender, rival) = (contender?, join(rival)?);
        let (wall, used) = contender.of;
        println!(
            "known: competition contender={} rival={} waited_ns={} cpu_ns={}",
            contender.tid,
            rival.tid,
            ns(wall.saturating_sub(used)),
            ns(used)
        );
        Ok(())
    })
}

/// Sleeps again and again: how long, and by how much those sleeps were late that took more than twice their time.
pub fn sleeps(name: &str, cpu: usize, time: Duration, count: u32) -> Result<()> {
    pin(None, cpu)?;
    println!("begins: {name}");
    let (mut slept, mut late) = (Duration::ZERO, Duration::ZERO);
    for _ in 0..count {
        let begin = Instant::now();
        thread::sleep(time);
        let took = begin.elapsed();
        slept += took;
        late += if took > 2 * time { took - time } else { Duration::ZERO };
    }
    let requested = time * count;
    println!(
        "known: {name} pid={} asked_ns={} slept_ns={} late_ns={}",
        std::process::id(),
        ns(requested),
        ns(slept),
        ns(late)
    );
    Ok(())
}

/// Waits for a child that computes, and says itself for how long.
pub fn child(ms: &str) -> Result<()> {
    let mut child = Command::new(std::env::current_exe()?).args(["burn", ms]).spawn().context("cannot run a child")?;
    let begin = Instant::now();
    let status = child.wait()?;
    let waited = begin.elapsed();
    ensure!(status.success(), "the child ended with {status}");
    println!("known: child pid={} waited_ns={}", getpid().as_raw_nonzero(), ns(waited));
    Ok(())
}
