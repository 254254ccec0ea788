//! Kernel modules: whether one is there, loading it, and what to tell a person when that is not possible.
//! May read /sys/module and the list of built-in modules, and start `modprobe`.
//! Always holds: an error names the module and the command that would bring it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::process::{self, Limits, Unattended};

const MODPROBE_LIMITS: Limits = Limits {
    time: Duration::from_secs(60),
    output: 1 << 20,
};

/// A module is not there and could not be loaded.
#[derive(Debug, thiserror::Error)]
#[error(
    "kernel module {module} is not loaded ({why}); run `modprobe {module}` on the node, \
     and name it in /etc/modules-load.d/ so that it is there after the next boot"
)]
pub struct Missing {
    /// Its name.
    pub module: String,
    /// Why it could not be loaded from here.
    pub why: String,
}

/// The kernel's modules (or directories that stand in for them in tests).
#[derive(Clone, Debug)]
pub struct Modules {
    loaded: PathBuf,
    built_in: Option<PathBuf>,
}

impl Default for Modules {
    fn default() -> Self {
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").ok();
        let list = release.map(|release| {
            Path::new("/lib/modules")
                .join(release.trim())
                .join("modules.builtin")
        });
        Self {
            loaded: "/sys/module".into(),
            built_in: list,
        }
    }
}

impl Modules {
    /// Whether a module is loaded or part of the kernel itself. Parts of the kernel without parameters show nowhere
    /// but in a list that an image may lack, so `false` means "not known to be there".
    pub fn present(&self, module: &str) -> bool {
        let file = format!("/{module}.ko");
        let listed = |path: &PathBuf| {
            let text = std::fs::read_to_string(path).unwrap_or_default();
            text.lines().any(|line| line.replace('-', "_").ends_with(&file))
        };
        self.loaded.join(module).exists() || self.built_in.as_ref().is_some_and(listed)
    }

    /// Makes sure that a module is there, with the help of `modprobe` if it takes that.
    pub fn ensure(&self, module: &str) -> Result<(), Missing> {
        if self.present(module) {
            return Ok(());
        }
        let missing = |why: String| Missing {
            module: module.to_owned(),
            why,
        };
        let mut command = Command::new("modprobe");
        match process::run(command.arg(module), &[], MODPROBE_LIMITS, &mut Unattended) {
            Ok(done) if done.status.success() => Ok(()),
            Ok(done) => {
                let last = done.stderr.lines().next_back().unwrap_or("modprobe failed");
                Err(missing(last.trim().to_owned()))
            }
            Err(error) => Err(missing(format!("modprobe cannot be run: {error}"))),
        }
    }
}

/// The running kernel's version, its first two numbers: enough to tell features apart.
pub fn kernel_version() -> Option<(u32, u32)> {
    parse_version(&std::fs::read_to_string("/proc/sys/kernel/osrelease").ok()?)
}

fn parse_version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release
        .trim()
        .split(|c: char| !c.is_ascii_digit())
        .map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_what_distributions_write() {
        assert_eq!(parse_version("6.1.0-54-amd64\n"), Some((6, 1)));
        assert_eq!(parse_version("5.9-rc1"), Some((5, 9)));
        assert_eq!(parse_version("4.18.0-553.el8.x86_64"), Some((4, 18)));
        assert_eq!(parse_version("linux"), None);
    }

    #[test]
    fn a_module_is_present_when_loaded_or_built_in() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("sys/ip_vs")).unwrap();
        std::fs::write(
            dir.path().join("builtin"),
            "kernel/net/netfilter/nf-conntrack.ko\n",
        )
        .unwrap();
        let modules = Modules {
            loaded: dir.path().join("sys"),
            built_in: Some(dir.path().join("builtin")),
        };
        assert!(modules.present("ip_vs"));
        assert!(modules.present("nf_conntrack"));
        assert!(!modules.present("ip_vs_rr"));
    }

    #[test]
    fn what_is_missing_comes_with_the_command_that_brings_it() {
        let nowhere = Modules {
            loaded: "/nowhere".into(),
            built_in: None,
        };
        let error = nowhere.ensure("no_such_module_at_all").unwrap_err().to_string();
        assert!(error.contains("`modprobe no_such_module_at_all`"), "{error}");
    }
}
