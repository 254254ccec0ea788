//! The iptables programs of both flavours and the kernel's packet counters, in namespaces of their own.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use ferry_host::iptables::{Error, Failure, Flavour, Ip, Iptables};
use ferry_host::netns::Namespace;
use ferry_host::nfacct::Nfacct;
use ferry_lab::wait_until;

fn tool(ip: Ip, flavour: Flavour, lock: &Path) -> Iptables {
    Iptables::of_flavour(ip, flavour, Arc::default())
        .unwrap()
        .with_lock(lock.to_owned())
}

/// A test for each flavour, each in its own namespace with its own lock.
fn on_both(test: impl Fn(Iptables) + Send + Sync) {
    for flavour in [Flavour::Nft, Flavour::Legacy] {
        let directory = tempfile::tempdir().unwrap();
        let inside = || test(tool(Ip::V4, flavour, &directory.path().join("lock")));
        Namespace::new().unwrap().run(inside).unwrap();
    }
}

fn refused(tool: &Iptables, document: &str) -> Failure {
    match tool.restore_pieces(&[document]) {
        Err(Error::Restore(failure)) => *failure,
        other => panic!("{document} ended in {other:?}"),
    }
}

#[test]
fn what_is_restored_is_saved() {
    on_both(|tool| {
        assert_eq!(tool.can_do_nat(), Ok(()));
        tool.restore_pieces(&["*nat\n:MINE - [0:0]\n-A MINE -j RETURN\nCOMMIT\n"])
            .unwrap();
        let saved = tool.save().unwrap();
        assert!(
            saved.contains("\n:MINE - ") && saved.contains("\n-A MINE -j RETURN\n"),
            "{saved}"
        );
    });
}

#[test]
fn a_refused_restore_names_the_line_that_is_to_blame() {
    on_both(|tool| {
        let cases = [
            ("*nat\n:A - [0:0]\n-A A --nonsense\nCOMMIT\n", "-A A --nonsense"),
            ("*nat\n:A - [0:0]\n-A B -j RETURN\nCOMMIT\n", "-A B -j RETURN"),
            ("*nat\n:A - [0:0]\n-D A -j RETURN\nCOMMIT\n", "-D A -j RETURN"),
            ("*nat\n:A - [0:0]\n-A A -j NOWHERE\nCOMMIT\n", "-A A -j NOWHERE"),
            ("*nat\n:A - [0:0]\n:B - [0:0]\n-A B -j A\n-X A\nCOMMIT\n", "-X A"),
        ];
        for (document, line) in cases {
            let failure = refused(&tool, document);
            assert_eq!(failure.input.as_deref(), Some(line), "{failure}");
        }
        // What only the kernel can know, the legacy program cannot pin to a line.
        let unknown = "-A A -m nfacct --nfacct-name nowhere -j RETURN";
        let failure = refused(&tool, &format!("*nat\n:A - [0:0]\n{unknown}\nCOMMIT\n"));
        match tool.flavour() {
            Flavour::Nft => assert_eq!(failure.input.as_deref(), Some(unknown), "{failure}"),
            Flavour::Legacy => assert_eq!(failure.input.as_deref(), Some("COMMIT"), "{failure}"),
        }
        assert!(
            !tool.save().unwrap().contains(":A "),
            "a refused table is not changed"
        );
    });
}

/// Holds a lock file for a while, from another process.
fn hold(lock: &Path, seconds: &str) -> Child {
    let mut holder = Command::new("flock")
        .arg("--no-fork")
        .arg(lock)
        .args(["sleep", seconds])
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    let free = || {
        Command::new("flock")
            .arg("-n")
            .arg(lock)
            .arg("true")
            .status()
            .unwrap()
            .success()
    };
    assert!(
        wait_until(Duration::from_secs(10), || !free()),
        "the lock was not taken"
    );
    assert!(holder.try_wait().unwrap().is_none());
    holder
}

#[test]
fn a_held_lock_is_waited_for_and_its_holder_named() {
    Namespace::new()
        .unwrap()
        .run(|| {
            let directory = tempfile::tempdir().unwrap();
            let lock = directory.path().join("lock");
            let tool = tool(Ip::V4, Flavour::Legacy, &lock);
            let document = "*nat\n:MINE - [0:0]\nCOMMIT\n";
            assert_eq!(tool.restore_pieces(&[document]).unwrap().lock, None);

            let mut holder = hold(&lock, "2");
            let waited = tool
                .restore_pieces(&[document])
                .unwrap()
                .lock
                .expect("the wait goes unnoticed");
            assert_eq!(
                (waited.holder.pid, waited.holder.name.as_deref()),
                (holder.id(), Some("sleep"))
            );
            assert!(waited.held >= Duration::from_millis(250), "{waited:?}");
            holder.wait().unwrap();

            let mut holder = hold(&lock, "60");
            let error = tool.restore_pieces(&[document]).unwrap_err();
            assert!(error.is_transient(), "{error}");
            let text = error.to_string();
            assert!(
                text.contains(&format!("sleep (pid {}) held the xtables lock", holder.id())),
                "{text}"
            );
            holder.kill().unwrap();
            holder.wait().unwrap();
        })
        .unwrap();
}

#[test]
fn counters_are_made_once_and_read() {
    Namespace::new()
        .unwrap()
        .run(|| {
            let mut counters = Nfacct::open()
                .unwrap()
                .expect("this kernel has no packet counters");
            assert_eq!(counters.get("some_pkts").unwrap(), None);
            counters.ensure("some_pkts").unwrap();
            counters.ensure("some_pkts").unwrap();
            assert_eq!(counters.get("some_pkts").unwrap(), Some(Default::default()));
            assert!(counters.ensure("a_name_of_more_than_thirty_one_bytes").is_err());
        })
        .unwrap();
}
