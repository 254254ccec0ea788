//! Which iptables stands behind the plain names.

use std::ffi::OsString;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::ValueEnum;
use tempfile::TempDir;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Flavour {
    Nft,
    Legacy,
}

impl Flavour {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Flavour::Nft => "nft",
            Flavour::Legacy => "legacy",
        }
    }
}

/// A search path on which the plain names are programs of one flavour.
#[derive(Debug)]
pub(crate) struct Programs {
    dir: TempDir,
}

impl Programs {
    pub(crate) fn of(flavour: Flavour) -> Result<Programs> {
        let dir = tempfile::tempdir()?;
        for ip in ["iptables", "ip6tables"] {
            for what in ["", "-save", "-restore"] {
                let name = format!("{ip}-{}{what}", flavour.as_str());
                let program = find(&name).with_context(|| format!("{name} is not installed"))?;
                symlink(program, dir.path().join(format!("{ip}{what}")))?;
            }
        }
        Ok(Programs { dir })
    }

    /// A program and its arguments, to be run with that search path.
    pub(crate) fn around(&self, program: &Path, args: Vec<String>) -> Result<(PathBuf, Vec<String>)> {
        let mut path = OsString::from("PATH=");
        path.push(self.dir.path());
        path.push(":");
        path.push(std::env::var_os("PATH").unwrap_or_default());
        let text = |text: OsString| text.into_string().ok().context("a path is not text");
        let mut all = vec![text(path)?, text(program.into())?];
        all.extend(args);
        Ok(("env".into(), all))
    }
}

fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|dir| dir.join(name))
        .find(|program| program.is_file())
}
