//! One directory of `tests/golden` for each behaviour: a small cluster, what is decided about it, and what each mode would
//! write for it, to the letter. `cargo xtask bless` rewrites them. See `tests/golden/README.md`.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use ferry_app::modes::Mode;
use ferry_lab::netns::Namespace;

fn behaviours() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden");
    let entries = fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path());
    let mut all: Vec<PathBuf> = entries.filter(|path| path.is_dir()).collect();
    all.sort();
    assert!(all.len() >= 13, "only {} behaviours", all.len());
    all
}

fn file_of(mode: Mode) -> String {
    let ending = match mode.name {
        "nftables" => "nft",
        "iptables" => "rules",
        _ => "txt",
    };
    format!("{mode}.{ending}")
}

/// What `ferry plan` prints about a behaviour, with the flags that its cluster names.
fn plan(behaviour: &Path, args: &[&str]) -> String {
    let cluster = fs::read_to_string(behaviour.join("in.yaml")).unwrap();
    let flags = cluster.lines().find_map(|line| line.strip_prefix("# flags: "));
    let output = Command::new(env!("CARGO_BIN_EXE_ferry"))
        .args([
            "plan",
            "--hostname-override=node-a",
            "--cluster-cidr=10.244.0.0/16",
            "--manifests",
        ])
        .arg(behaviour)
        .args(flags.unwrap_or_default().split_whitespace())
        .args(args)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {said}", behaviour.display());
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn every_behaviour_is_decided_and_written_as_it_says() {
    let bless = std::env::var_os("FERRY_BLESS").is_some();
    let mut wrong = Vec::new();
    for behaviour in behaviours() {
        let mut files = vec![("plan.txt".to_owned(), plan(&behaviour, &["--mode=nftables"]))];
        for mode in Mode::ALL {
            let rules = plan(&behaviour, &["--rules", &format!("--mode={mode}")]);
            files.push((file_of(*mode), rules));
        }
        for (file, text) in files {
            let path = behaviour.join(file);
            if bless {
                fs::write(path, text).unwrap();
            } else if fs::read_to_string(&path).unwrap_or_default() != text {
                wrong.push(format!("{}:\n{text}", path.display()));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "not as before; if that is meant, `cargo xtask bless`:\n{}",
        wrong.join("\n")
    );
}

/// Each family's part of what was printed.
fn family<'a>(text: &'a str, family: &str) -> &'a str {
    let start = format!("\n# {family}\n");
    let Some((_, part)) = text.split_once(&start) else {
        return "";
    };
    part.split("\n# IPv").next().unwrap()
}

fn feed(program: &str, args: &[&str], text: &str) -> Result<(), String> {
    use std::io::Write;
    let mut child = Command::new(program)
        .args(args)
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    output.status.success().then_some(()).ok_or(said)
}

#[test]
fn the_tools_of_the_kernel_accept_what_is_printed() {
    let namespace = Namespace::new("golden").unwrap();
    let accept = || {
        let mut wrong = Vec::new();
        let mut check = |behaviour: &Path, told: Result<(), String>| {
            wrong.extend(told.err().map(|told| format!("{}: {told}", behaviour.display())));
        };
        for behaviour in behaviours() {
            let nft = fs::read_to_string(behaviour.join("nftables.nft")).unwrap();
            check(&behaviour, feed("nft", &["-c", "-f", "-"], &nft));
            let ipvs = fs::read_to_string(behaviour.join("ipvs.txt")).unwrap();
            let sets = ipvs
                .lines()
                .filter(|line| line.starts_with("create ") || line.starts_with("add "));
            let sets: String = sets.map(|line| format!("{line}\n")).collect();
            check(&behaviour, feed("ipset", &["restore"], &sets));
            for mode in ["iptables.rules", "ipvs.txt", "userspace.txt"] {
                let text = fs::read_to_string(behaviour.join(mode)).unwrap();
                for (of, program) in [("IPv4", "iptables-restore"), ("IPv6", "ip6tables-restore")] {
                    let rules = family(&text, of).split_once("# iptables-restore --noflush\n");
                    let rules = rules.map_or("", |(_, rules)| rules);
                    check(&behaviour, feed(program, &["--test", "--noflush"], rules));
                }
            }
            check(&behaviour, feed("ipset", &["destroy"], ""));
        }
        wrong
    };
    let wrong = namespace.run(accept).unwrap();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn addresses_are_those_of_the_node_object_whoever_asks() {
    let behaviour = behaviours()
        .into_iter()
        .find(|path| path.ends_with("node-port-addresses"))
        .unwrap();
    // A namespace has no address of the node, nor has it any but its own.
    let text = Namespace::new("elsewhere")
        .unwrap()
        .run(|| plan(&behaviour, &[]))
        .unwrap();
    assert!(
        text.contains("its addresses are those of the Node object"),
        "{text}"
    );
    assert!(text.contains("node ports on 192.0.2.10"), "{text}");
}
