//! Notices a changed configuration file and judges it.
//!
//! The directory is watched rather than the file, so that a file written in place, a file renamed over the
//! old one and a ConfigMap's `..data` link pointing elsewhere all look the same: the content differs.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use notify::{RecursiveMode, Watcher as _};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::{Settings, settings};
use crate::cli::flags::Typed;

/// A burst of events ends when nothing happened for so long.
const DEBOUNCE: Duration = Duration::from_millis(200);
/// A file that never rests is read all the same.
const DEBOUNCE_LIMIT: Duration = Duration::from_secs(2);
/// The file is looked at this often even if no event came.
const POLL_INTERVAL: Duration = Duration::from_secs(30);
/// How soon a dropped watch is noticed.
const CLOSED_CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// Links followed before a chain counts as endless.
const MAX_LINKS: usize = 40;

/// What became of the configuration file.
#[derive(Debug)]
pub enum ConfigChange {
    /// It is valid and says something else than the settings in force: start over with it.
    Accepted(Box<Settings>),
    /// It cannot be used, for this reason; the settings in force stay.
    Refused(String),
    /// It was written again, and says what is in force.
    Same,
}

/// A watch on the configuration file; ends when dropped.
#[derive(Debug)]
pub struct ConfigWatch {
    changes: UnboundedReceiver<ConfigChange>,
}

impl ConfigWatch {
    /// Watches the file that the settings were read from; `None`: there was none.
    pub fn start(in_force: &Settings) -> std::io::Result<Option<Self>> {
        let Some(path) = in_force.config_file.clone() else {
            return Ok(None);
        };
        let (sender, changes) = unbounded_channel();
        let state = State {
            seen: std::fs::read(&path).ok(),
            path,
            typed: in_force.typed.clone(),
            in_force: in_force.configz.clone(),
        };
        std::thread::Builder::new()
            .name("config-watch".to_owned())
            .spawn(move || state.run(&sender))?;
        Ok(Some(Self { changes }))
    }

    /// Waits for the next change. `None`: the watch has ended.
    pub async fn next(&mut self) -> Option<ConfigChange> {
        self.changes.recv().await
    }

    /// As [`next`](Self::next), for a plain thread.
    pub fn blocking_next(&mut self) -> Option<ConfigChange> {
        self.changes.blocking_recv()
    }
}

struct State {
    path: PathBuf,
    typed: Arc<Typed>,
    /// What is in force, as `/configz` shows it.
    in_force: String,
    /// The content that was judged last; `None`: it could not be read.
    seen: Option<Vec<u8>>,
}

impl State {
    fn run(mut self, sender: &UnboundedSender<ConfigChange>) {
        let (events, arrivals) = mpsc::channel();
        let notify = notify::recommended_watcher(move |_| {
            let _ = events.send(());
        });
        let mut watcher = match notify {
            Ok(watcher) => Some(watcher),
            Err(error) => {
                tracing::warn!(err = %error, "Cannot watch the configuration file, looking at it now and then");
                None
            }
        };
        let mut watched = BTreeSet::new();
        let mut look_again = |path: &Path| {
            if let Some(watcher) = &mut watcher {
                follow(watcher, &mut watched, directories(path));
            }
        };
        look_again(&self.path);
        // The file may have changed between being read for the settings and being watched.
        match self.judge() {
            ConfigChange::Same => {}
            change => drop(sender.send(change)),
        }
        let mut last_check = Instant::now();
        loop {
            let happened = wait(&arrivals, CLOSED_CHECK_INTERVAL);
            if sender.is_closed() {
                return;
            }
            if !happened && last_check.elapsed() < POLL_INTERVAL {
                continue;
            }
            look_again(&self.path);
            last_check = Instant::now();
            let content = std::fs::read(&self.path).ok();
            if content == self.seen {
                continue;
            }
            self.seen = content;
            // Whether anybody still listens is seen at the next turn.
            let _ = sender.send(self.judge());
        }
    }

    fn judge(&self) -> ConfigChange {
        match settings(self.typed.clone()) {
            Err(error) => ConfigChange::Refused(error.to_string()),
            Ok(settings) if settings.configz == self.in_force => ConfigChange::Same,
            Ok(settings) => ConfigChange::Accepted(Box::new(settings)),
        }
    }
}

/// Waits for an event and for the burst to end.
fn wait(arrivals: &mpsc::Receiver<()>, at_most: Duration) -> bool {
    match arrivals.recv_timeout(at_most) {
        Ok(()) => {}
        Err(mpsc::RecvTimeoutError::Timeout) => return false,
        // Without a watcher the file is only looked at now and then.
        Err(mpsc::RecvTimeoutError::Disconnected) => {
            std::thread::sleep(at_most);
            return false;
        }
    }
    let limit = Instant::now() + DEBOUNCE_LIMIT;
    while arrivals.recv_timeout(DEBOUNCE).is_ok() && Instant::now() < limit {}
    true
}

/// Every directory whose content decides what the path means: its own, and those of the links on the way.
fn directories(path: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    let mut path = path.to_path_buf();
    for _ in 0..MAX_LINKS {
        found.insert(parent_of(&path));
        let link = path
            .ancestors()
            .find_map(|part| Some((part.to_path_buf(), std::fs::read_link(part).ok()?)));
        let Some((link, target)) = link else { break };
        found.insert(parent_of(&link));
        let target = parent_of(&link).join(target);
        path = match path.strip_prefix(&link) {
            Ok(behind) if !behind.as_os_str().is_empty() => target.join(behind),
            _ => target,
        };
    }
    found
}

fn parent_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => PathBuf::from("."),
        Some(parent) => parent.to_path_buf(),
        None => PathBuf::from("/"),
    }
}

/// Watches these directories and no others. One that cannot be watched is tried again with the next event.
fn follow(
    watcher: &mut notify::RecommendedWatcher,
    watched: &mut BTreeSet<PathBuf>,
    wanted: BTreeSet<PathBuf>,
) {
    for gone in watched.difference(&wanted) {
        let _ = watcher.unwatch(gone);
    }
    watched.retain(|directory| wanted.contains(directory));
    for directory in wanted {
        // A directory deleted and made again has lost its watch; watching twice is harmless.
        if watcher.watch(&directory, RecursiveMode::NonRecursive).is_ok() {
            watched.insert(directory);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    const HEAD: &str = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";

    fn text(mode: &str) -> String {
        format!("{HEAD}mode: {mode}\n")
    }

    /// The first change that is not [`ConfigChange::Same`], or nothing for a while.
    fn next(watch: &mut ConfigWatch, timeout: Duration) -> Option<ConfigChange> {
        let deadline = Instant::now() + timeout;
        while Instant::now() < deadline {
            match watch.changes.try_recv() {
                Ok(ConfigChange::Same) => {}
                Ok(change) => return Some(change),
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        }
        None
    }

    #[track_caller]
    fn accepted(watch: &mut ConfigWatch) -> Settings {
        match next(watch, Duration::from_secs(40)) {
            Some(ConfigChange::Accepted(settings)) => *settings,
            other => panic!("{other:?}"),
        }
    }

    fn watched(path: &Path) -> ConfigWatch {
        let settings = Settings::from_args(&["--config", path.to_str().unwrap()]).unwrap();
        ConfigWatch::start(&settings).unwrap().unwrap()
    }

    #[test]
    fn without_a_file_there_is_nothing_to_watch() {
        let settings = Settings::from_args::<&str>(&[]).unwrap();
        assert!(ConfigWatch::start(&settings).unwrap().is_none());
    }

    #[test]
    fn a_file_written_in_place_is_noticed_and_a_bad_one_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.conf");
        fs::write(&path, text("iptables")).unwrap();
        let mut watch = watched(&path);

        fs::write(&path, text("bogus")).unwrap();
        match next(&mut watch, Duration::from_secs(40)) {
            Some(ConfigChange::Refused(reason)) => assert!(reason.contains("Mode.ProxyMode"), "{reason}"),
            other => panic!("{other:?}"),
        }
        fs::write(&path, "{").unwrap();
        match next(&mut watch, Duration::from_secs(40)) {
            Some(ConfigChange::Refused(reason)) => {
                assert!(reason.starts_with("failed complete: "), "{reason}")
            }
            other => panic!("{other:?}"),
        }
        fs::write(&path, text("nftables")).unwrap();
        assert_eq!(accepted(&mut watch).mode.name, "nftables");
    }

    #[test]
    fn a_file_renamed_over_the_old_one_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.conf");
        fs::write(&path, text("iptables")).unwrap();
        let mut watch = watched(&path);
        for mode in ["nftables", "ipvs"] {
            let new = dir.path().join("new");
            fs::write(&new, text(mode)).unwrap();
            fs::rename(&new, &path).unwrap();
            assert_eq!(accepted(&mut watch).mode.as_str(), mode);
        }
    }

    #[test]
    fn a_config_map_that_swaps_its_data_link_is_noticed_every_time() {
        let dir = tempfile::tempdir().unwrap();
        let make = |version: &str, mode: &str| {
            fs::create_dir(dir.path().join(version)).unwrap();
            fs::write(dir.path().join(version).join("config.conf"), text(mode)).unwrap();
            symlink(version, dir.path().join("..data_tmp")).unwrap();
            fs::rename(dir.path().join("..data_tmp"), dir.path().join("..data")).unwrap();
        };
        make("..v1", "iptables");
        symlink("..data/config.conf", dir.path().join("config.conf")).unwrap();
        let mut watch = watched(&dir.path().join("config.conf"));
        for (i, mode) in ["nftables", "ipvs"].iter().enumerate() {
            make(&format!("..v{}", i + 2), mode);
            fs::remove_dir_all(dir.path().join(format!("..v{}", i + 1))).unwrap();
            assert_eq!(accepted(&mut watch).mode.as_str(), *mode);
        }
    }

    #[test]
    fn a_file_behind_links_in_other_directories_is_noticed() {
        let (dir, far) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(far.path().join("real.conf"), text("iptables")).unwrap();
        symlink(far.path(), dir.path().join("d")).unwrap();
        symlink("d/real.conf", dir.path().join("config.conf")).unwrap();
        let mut watch = watched(&dir.path().join("config.conf"));
        fs::write(far.path().join("real.conf"), text("ipvs")).unwrap();
        assert_eq!(accepted(&mut watch).mode.as_str(), "ipvs");
    }

    #[test]
    fn what_says_the_same_is_no_change() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.conf");
        fs::write(&path, text("iptables")).unwrap();
        let mut watch = watched(&path);
        fs::write(&path, format!("# a comment\n{}", text("iptables"))).unwrap();
        match watch.blocking_next() {
            Some(ConfigChange::Same) => {}
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_change_before_the_watch_began_is_not_missed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.conf");
        fs::write(&path, text("iptables")).unwrap();
        let settings = Settings::from_args(&["--config", path.to_str().unwrap()]).unwrap();
        fs::write(&path, text("nftables")).unwrap();
        let mut watch = ConfigWatch::start(&settings).unwrap().unwrap();
        assert_eq!(accepted(&mut watch).mode.as_str(), "nftables");
    }

    #[test]
    fn links_that_lead_nowhere_end() {
        let dir = tempfile::tempdir().unwrap();
        symlink("b", dir.path().join("a")).unwrap();
        symlink("a", dir.path().join("b")).unwrap();
        assert_eq!(
            directories(&dir.path().join("a")),
            BTreeSet::from([dir.path().to_path_buf()])
        );
        assert_eq!(
            directories(Path::new("plain")),
            BTreeSet::from([PathBuf::from(".")])
        );
    }
}
