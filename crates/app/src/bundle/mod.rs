//! A bundle: one tar with what is needed to understand a node elsewhere. `ferry bundle` writes it, `ferry plan` and
//! `ferry trace` read the facts in it. Reads the daemon's answers and what the kernel's tools list; changes nothing.
//! Always holds: no credential is in it. What they are in is not read, and what looks like one is struck out.

mod kernel;
mod secrets;
mod tar;

pub use secrets::struck_out;
pub use tar::TarError;

use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, ensure};
use serde::Serialize;
use serde_json::json;

use crate::clock::rfc3339;
use crate::facts::Facts;
use crate::status::{self, AskError, HistoryRequest};

/// Every file of a bundle is in this directory.
const DIRECTORY: &str = "ferry-bundle";
/// A larger file is no bundle that could be read into memory.
const LARGEST: u64 = 2 << 30;

const README: &str = "\
What `ferry bundle` found on a node. No credentials are in it.

version.json        which program, which kernel, which tools
facts.json          everything that the plan is made of: objects, addresses of the host, configuration;
                    `ferry plan --bundle FILE` and `ferry trace --bundle FILE --from IP --to IP:PORT` read it
configuration.yaml  the configuration in force
status.json         what `ferry status` says
plan.json           what is decided
rules.txt           what that is in the kernel's own language
diff.txt            where the kernel differs from it
history.txt, .json  what happened lately
kernel/             what the kernel's own tools list
missing.txt         what could not be found out, and why
";

/// What is gathered, one file after the other.
struct Gathering {
    archive: Vec<u8>,
    missing: Vec<String>,
    seconds: u64,
}

impl Gathering {
    fn put(&mut self, name: &str, content: &str) {
        let content = struck_out(content);
        let name = format!("{DIRECTORY}/{name}");
        self.archive
            .extend(tar::file(&name, content.as_bytes(), self.seconds));
    }

    fn told<T: Serialize>(&mut self, name: &str, answer: Result<T, AskError>) -> Option<T> {
        match answer {
            Ok(answer) => {
                match serde_json::to_string_pretty(&answer) {
                    Ok(text) => self.put(name, &text),
                    Err(error) => self.missing.push(format!("{name}: {error}")),
                }
                Some(answer)
            }
            Err(error) => {
                self.missing.push(format!("{name}: {error}"));
                None
            }
        }
    }
}

/// Asks the daemon and the kernel's tools, and writes all of it into a new file that only its owner can read. Returns
/// what could not be found out.
pub fn write(path: &Path, socket: &Path) -> anyhow::Result<Vec<String>> {
    let now = SystemTime::now();
    let mut gathering = Gathering {
        archive: Vec::new(),
        missing: Vec::new(),
        seconds: now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
    };
    gathering.put("README.txt", README);
    let versions = json!({
        "form": Facts::FORM,
        "time": rfc3339(now),
        "ferry": env!("CARGO_PKG_VERSION"),
        "kubernetes": crate::KUBERNETES_VERSION,
        "kernel": kernel::release(),
        "tools": kernel::versions(),
    });
    gathering.put("version.json", &format!("{versions:#}"));
    let facts = status::ask_facts(socket);
    if let Some(facts) = gathering.told("facts.json", facts)
        && let Ok(settings) = facts.settings(None)
    {
        gathering.put("configuration.yaml", &settings.written());
    }
    gathering.told("status.json", status::ask_status(socket));
    gathering.told("plan.json", status::ask_plan(socket));
    match status::ask_rules(socket) {
        Ok(rules) => gathering.put("rules.txt", &rules.to_string()),
        Err(error) => gathering.missing.push(format!("rules.txt: {error}")),
    }
    match status::ask_diff(socket) {
        Ok(diff) => gathering.put("diff.txt", &diff.to_string()),
        Err(error) => gathering.missing.push(format!("diff.txt: {error}")),
    }
    let history = status::ask_history(socket, HistoryRequest::default());
    if let Some(history) = gathering.told("history.json", history) {
        gathering.put("history.txt", &history.to_string());
    }
    for (name, listed) in kernel::listings() {
        match listed {
            Ok(text) => gathering.put(&format!("kernel/{name}"), &text),
            Err(why) => gathering.missing.push(format!("kernel/{name}: {why}")),
        }
    }
    gathering.put("missing.txt", &(gathering.missing.join("\n") + "\n"));
    gathering.archive.extend(tar::end());
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path);
    let mut file = file.with_context(|| path.display().to_string())?;
    file.write_all(&gathering.archive)
        .with_context(|| path.display().to_string())?;
    Ok(gathering.missing)
}

/// The facts in a bundle.
pub fn facts(path: &Path) -> anyhow::Result<Facts> {
    let shown = || path.display().to_string();
    let file = std::fs::File::open(path).with_context(shown)?;
    ensure!(
        file.metadata().with_context(shown)?.len() <= LARGEST,
        "{}: is larger than any bundle",
        shown()
    );
    let mut archive = Vec::new();
    file.take(LARGEST).read_to_end(&mut archive).with_context(shown)?;
    let found = tar::find(&archive, &format!("{DIRECTORY}/facts.json")).with_context(shown)?;
    let text = found.with_context(|| {
        format!(
            "{}: there is no facts.json in it; no daemon was running where it was made",
            shown()
        )
    })?;
    serde_json::from_slice(text).with_context(|| format!("{}: facts.json", shown()))
}
