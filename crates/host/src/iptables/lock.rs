//! The xtables lock: who holds it, for how long, and taking it for programs too old to wait for it themselves.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Where the programs keep the lock unless told otherwise.
const DEFAULT_PATH: &str = "/run/xtables.lock";
/// How long and how often an old program's lock is tried.
const TAKE_TIMEOUT: Duration = Duration::from_secs(2);
const RETRY_INTERVAL: Duration = Duration::from_millis(200);

/// The lock file: the programs' own variable can move it.
pub(super) fn path() -> PathBuf {
    std::env::var_os("XTABLES_LOCKFILE").map_or_else(|| DEFAULT_PATH.into(), PathBuf::from)
}

/// A process that holds the lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Its id in our process namespace; zero if it lives in another one.
    pub pid: u32,
    /// Its name, if it could be read.
    pub name: Option<String>,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => write!(f, "{name} (pid {})", self.pid),
            None => write!(f, "pid {}", self.pid),
        }
    }
}

/// A time spent waiting for the lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockWait {
    /// Who held it.
    pub holder: Holder,
    /// How long it was seen in that process's hands.
    pub held: Duration,
}

pub(super) fn described(lock: &Option<LockWait>) -> String {
    match lock {
        Some(LockWait { holder, held }) => {
            format!(
                "; {holder} held the xtables lock for at least {:.1} s",
                held.as_secs_f32()
            )
        }
        None => String::new(),
    }
}

/// Who holds an exclusive lock on this file, other than the process `but`.
pub(super) fn holder(path: &Path, but: u32) -> Option<Holder> {
    let inode = fs::metadata(path).ok()?.ino();
    let locks = fs::read_to_string("/proc/locks").ok()?;
    let pid = locks
        .lines()
        .filter_map(|line| held_on(line, inode))
        .find(|pid| *pid != but)?;
    let name = fs::read_to_string(format!("/proc/{pid}/comm"))
        .ok()
        .map(|name| name.trim_end().to_owned());
    Some(Holder { pid, name })
}

/// `3: FLOCK  ADVISORY  WRITE 812 00:1a:4242 0 EOF`: the pid if the lock is on this inode and is not just wanted.
fn held_on(line: &str, inode: u64) -> Option<u32> {
    let mut words = line.split_whitespace().skip(1);
    let (kind, _, _, pid, file) = (
        words.next()?,
        words.next()?,
        words.next()?,
        words.next()?,
        words.next()?,
    );
    let on = file.rsplit(':').next()?.parse::<u64>().ok()?;
    (kind != "->" && on == inode).then(|| pid.parse().unwrap_or(0))
}

/// Both locks that old versions use, held until dropped.
#[derive(Debug)]
pub(super) struct OwnLock {
    _file: File,
    _socket: UnixListener,
}

impl OwnLock {
    pub(super) fn take(path: &Path) -> io::Result<OwnLock> {
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(path)?;
        retry(|| {
            rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).map_err(Into::into)
        })?;
        let address = SocketAddr::from_abstract_name("xtables")?;
        let socket = retry(|| UnixListener::bind_addr(&address))?;
        Ok(OwnLock {
            _file: file,
            _socket: socket,
        })
    }
}

fn retry<T>(mut attempt: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let start = Instant::now();
    loop {
        match attempt() {
            Ok(value) => return Ok(value),
            Err(error) if start.elapsed() >= TAKE_TIMEOUT => return Err(error),
            Err(_) => sleep(RETRY_INTERVAL),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_locks_lines_are_read() {
        let line = "3: FLOCK  ADVISORY  WRITE 812 00:1a:4242 0 EOF";
        assert_eq!(held_on(line, 4242), Some(812));
        assert_eq!(held_on(line, 1), None);
        assert_eq!(
            held_on("3: -> FLOCK  ADVISORY  WRITE 813 00:1a:4242 0 EOF", 4242),
            None
        );
        assert_eq!(held_on("garbage", 4242), None);
    }
}
