//! The Debian package in a fresh root: installed by apt, its unit's own commands serving, removed without a trace.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use ferry_deploy::{MANIFESTS, Running, confined_to, is_served};
use ferry_lab::netns::Network;

/// The exposure that `systemd-analyze security` may find, in tenths; 25 was measured.
const EXPOSURE: &str = "26";

/// A root of its own for a command: its /proc, and a fresh /run. `ro` makes kernel parameters read-only, as the unit does.
const INSIDE: &str = r#"root=$1 sysctls=$2; shift 2
mount --rbind /proc "$root/proc" && mount -t tmpfs run "$root/run" || exit
[ "$sysctls" = rw ] || { mount --bind /proc/sys "$root/proc/sys" && mount -o remount,ro,bind "$root/proc/sys"; } || exit
exec chroot "$root" "$@""#;

/// What `cargo xtask deploy` has made.
fn given(variable: &str) -> PathBuf {
    let path = std::env::var_os(variable);
    PathBuf::from(path.unwrap_or_else(|| panic!("{variable} is not set: run cargo xtask deploy")))
}

fn run(command: &mut Command) -> String {
    let out = command.stdin(Stdio::null()).output().unwrap();
    let said = format!(
        "{}{}",
        String::from_utf8_lossy(&out.stdout),
        String::from_utf8_lossy(&out.stderr)
    );
    assert!(out.status.success(), "{command:?}: {}\n{said}", out.status);
    said
}

/// A fresh Debian root.
struct Root(tempfile::TempDir);

impl Root {
    fn fresh() -> Root {
        let dir = tempfile::tempdir().unwrap();
        run(Command::new("tar")
            .arg("-xf")
            .arg(given("FERRY_ROOT"))
            .arg("-C")
            .arg(dir.path()));
        Root(dir)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    /// A command line in the root, on a node of the lab or (for installing) wherever we are.
    fn inside(&self, mut outer: Command, sysctls: &str, words: &[&str]) -> Command {
        outer
            .args(["--mount", "sh", "-c", INSIDE, "sh"])
            .arg(self.path())
            .arg(sysctls)
            .args(words)
            .env("DEBIAN_FRONTEND", "noninteractive")
            .env(
                "PATH",
                "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            );
        outer
    }

    fn apt(&self, words: &[&str]) -> String {
        // in a network of its own: removing the package removes rules
        let mut outer = Command::new("unshare");
        outer.arg("--net");
        let mut line = vec!["apt-get", "--quiet", "--yes"];
        line.extend(words);
        run(&mut self.inside(outer, "rw", &line))
    }

    fn has(&self, file: &str) -> bool {
        self.path().join(file).exists()
    }
}

/// The value of a setting of the installed unit, without the prefix that systemd reads.
fn unit(root: &Root, key: &str) -> String {
    let text = fs::read_to_string(root.path().join("lib/systemd/system/ferry.service")).unwrap();
    let mut lines = text
        .lines()
        .filter_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    let value = lines.next().unwrap_or_else(|| panic!("no {key} in the unit"));
    value.trim_start_matches('+').to_owned()
}

#[test]
fn it_is_installed_serves_and_goes() {
    let root = Root::fresh();
    fs::copy(given("FERRY_DEB"), root.path().join("ferry.deb")).unwrap();
    root.apt(&["install", "/ferry.deb"]);
    for file in [
        "usr/bin/ferry",
        "etc/ferry/config.yaml",
        "etc/ferry/services",
        "usr/lib/tmpfiles.d/ferry.conf",
        "usr/share/man/man8/ferry.8.gz",
        "usr/share/man/man1/ferry-trace.1.gz",
        "usr/share/bash-completion/completions/ferry",
    ] {
        assert!(root.has(file), "{file}");
    }
    fs::write(root.path().join("etc/ferry/services/web.yaml"), MANIFESTS).unwrap();
    // a namespace may not change what is the whole machine's
    let config = root.path().join("etc/ferry/config.yaml");
    let text = fs::read_to_string(&config).unwrap() + "conntrack: {maxPerCore: 0}\n";
    fs::write(config, text).unwrap();
    serves(&root);
    root.apt(&["purge", "ferry"]);
    assert!(!root.has("usr/bin/ferry") && !root.has("etc/ferry/config.yaml"));
    assert!(
        root.has("etc/ferry/services/web.yaml"),
        "what people wrote is theirs"
    );
}

/// What the unit says, done as systemd does it: the set-up with all privileges, the program with those that are left.
fn serves(root: &Root) {
    let network = Network::up().unwrap();
    let (before, start) = (unit(root, "ExecStartPre"), unit(root, "ExecStart"));
    let words: Vec<&str> = before.split(' ').collect();
    run(&mut root.inside(network.node().command("unshare"), "rw", &words));
    let capabilities = unit(root, "CapabilityBoundingSet");
    let confined = confined_to(capabilities.split(' '));
    let mut words = vec!["setpriv"];
    words.extend(confined.iter().map(String::as_str));
    words.extend(start.split(' '));
    let log = root.path().join("log");
    let mut command = root.inside(network.node().command("unshare"), "ro", &words);
    let running = Running::start(&mut command, &log).unwrap();
    assert!(
        is_served(&network).unwrap(),
        "{}",
        fs::read_to_string(log).unwrap()
    );
    drop(running);
}

#[test]
fn the_unit_is_well_formed_and_confined() {
    let file = ferry_deploy::repository().join("deploy/debian/ferry.service");
    let mut security = Command::new("systemd-analyze");
    security
        .args([
            "security",
            "--offline=true",
            "--no-pager",
            "--threshold",
            EXPOSURE,
        ])
        .arg(&file);
    run(&mut security);
    let text = fs::read_to_string(file).unwrap();
    assert!(text.contains("\nNoNewPrivileges=yes\n") && text.contains("\nProtectKernelTunables=yes\n"));
}

/// Every page is one that the formatter takes without a word, and has every flag of the help.
#[test]
fn the_manual_says_what_the_help_says() {
    let root = tempfile::tempdir().unwrap();
    run(Command::new("dpkg-deb")
        .arg("--extract")
        .arg(given("FERRY_DEB"))
        .arg(root.path()));
    let page = run(Command::new("zcat").arg(root.path().join("usr/share/man/man8/ferry.8.gz")));
    let help = run(ferry_deploy::ferry().unwrap().arg("help"));
    let flags = |text: &str| -> Vec<String> {
        let words = text
            .split_whitespace()
            .filter(|word| word.starts_with("--") && word.len() > 2);
        words
            .map(|word| word.trim_matches([',', '.', '\'', ';', ':']).to_owned())
            .collect()
    };
    let page = page
        .replace("\\-", "-")
        .replace("\\fB", "")
        .replace("\\fR", "")
        .replace("\\e", "\\");
    assert!(flags(&help).len() > 50);
    assert_eq!(flags(&page), flags(&help));
}
