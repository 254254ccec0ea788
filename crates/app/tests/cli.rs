//! The binary as a user meets it: exit codes, what goes to which stream, help, versions, completions.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::os::unix::process::CommandExt as _;
use std::process::{Command, Output};

struct Run {
    status: i32,
    stdout: String,
    stderr: String,
}

fn run_as(name: &str, args: &[&str]) -> Run {
    let Output {
        status,
        stdout,
        stderr,
    } = Command::new(env!("CARGO_BIN_EXE_ferry"))
        .arg0(name)
        .args(args)
        .output()
        .unwrap();
    Run {
        status: status.code().unwrap_or(-1),
        stdout: String::from_utf8(stdout).unwrap(),
        stderr: String::from_utf8(stderr).unwrap(),
    }
}

fn ferry(args: &[&str]) -> Run {
    run_as("ferry", args)
}

fn help() -> String {
    ferry(&["--help"]).stdout
}

/// The one log line with this message, its header cut off.
fn logged(stderr: &str, message: &str) -> String {
    let lines: Vec<&str> = stderr
        .lines()
        .filter(|line| line.contains(&format!("] \"{message}\"")))
        .collect();
    assert_eq!(lines.len(), 1, "{stderr}");
    lines[0].split_once("] ").unwrap().1.to_owned()
}

#[test]
fn help_goes_to_stdout() {
    for args in [
        &["--help"][..],
        &["-h"],
        &["help"],
        &["--config=/nonexistent", "-h"],
    ] {
        let run = ferry(args);
        assert_eq!((run.status, run.stderr.as_str()), (0, ""), "{args:?}");
        assert!(run.stdout.contains("Usage:\n  ferry [flags]"), "{args:?}");
    }
    insta::assert_snapshot!(help());
}

#[test]
fn help_lists_every_flag_that_is_not_deprecated() {
    let help = help();
    for flag in ferry_app::cli::flags::FLAGS {
        let listed = help.lines().any(|line| {
            line.split_whitespace()
                .any(|word| word == format!("--{}", flag.name))
        });
        assert_eq!(listed, flag.deprecated.is_none(), "--{}", flag.name);
    }
    assert!(
        help.lines().all(|line| line.chars().count() <= 100),
        "a line is too long"
    );
}

#[test]
fn help_of_the_commands() {
    let mut all = String::new();
    for command in [
        "plan",
        "trace",
        "explain",
        "status",
        "history",
        "diff",
        "flows",
        "bundle",
        "web",
        "compare",
        "demo",
        "completions",
    ] {
        let run = ferry(&["help", command]);
        assert_eq!((run.status, run.stderr.as_str()), (0, ""), "{command}");
        assert_eq!(ferry(&[command, "--help"]).stdout, run.stdout, "{command}");
        all.push_str(&format!("=== {command}\n{}\n", run.stdout));
    }
    insta::assert_snapshot!(all);
    let gates = ferry(&["help", "gates"]);
    assert!(
        gates.status == 0 && gates.stdout.contains("  AllowServiceExternalIPs "),
        "{}",
        gates.stdout
    );
    assert!(
        !gates.stdout.contains("MultiCIDRServiceAllocator"),
        "locked gates cannot be changed"
    );
    let unknown = ferry(&["help", "sail"]);
    assert_eq!(
        (unknown.status, unknown.stderr.as_str()),
        (1, "Error: there is no command \"sail\"\n")
    );
}

#[test]
fn in_kube_proxys_place_there_are_no_commands() {
    let run = run_as("/usr/local/bin/kube-proxy", &["status"]);
    assert_eq!(run.status, 1);
    assert_eq!(
        run.stderr,
        "Error: \"kube-proxy\" does not take any arguments, got [\"status\"]\n"
    );
    let help = run_as("kube-proxy", &["--help"]);
    assert!(help.stdout.contains("Usage:\n  kube-proxy [flags]\n") && !help.stdout.contains("Commands:"));
    assert_eq!(
        run_as("kube-proxy", &["--version"]).stdout,
        "Kubernetes v1.36.4\n"
    );
}

#[test]
fn a_flag_that_is_not_understood_is_one_line_with_the_nearest() {
    for (args, why) in [
        (&["--nosuch"][..], "unknown flag: --nosuch"),
        (&["--logtostderr=true"], "unknown flag: --logtostderr"),
        (
            &["--proxy-mod=ipvs"],
            "unknown flag: --proxy-mod; did you mean --proxy-mode?",
        ),
        (
            &["--sync-period", "1s"],
            "unknown flag: --sync-period; did you mean --ipvs-sync-period, --config-sync-period or --iptables-sync-period?",
        ),
        (
            &["trace", "--form=10.0.0.1"],
            "unknown flag: --form; did you mean --from?",
        ),
        (&["--config"], "flag needs an argument: --config"),
        (
            &["--conntrack-min", "x"],
            "invalid argument \"x\" for \"--conntrack-min\" flag: strconv.ParseInt: parsing \"x\": invalid syntax",
        ),
    ] {
        for name in ["ferry", "kube-proxy"] {
            if name == "kube-proxy" && args[0] == "trace" {
                continue;
            }
            let run = run_as(name, args);
            assert_eq!((run.status, run.stdout.as_str()), (1, ""), "{args:?}");
            assert_eq!(run.stderr, format!("Error: {why}\n"), "{args:?}");
        }
    }
}

#[test]
fn a_command_that_is_mistyped_is_one_line_with_the_nearest() {
    for (args, why) in [
        (
            &["staus"][..],
            "there is no command \"staus\"; did you mean 'ferry status'?",
        ),
        (
            &["help", "trcae"],
            "there is no command \"trcae\"; did you mean 'ferry trace'?",
        ),
        (&["help", "sail"], "there is no command \"sail\""),
    ] {
        let run = ferry(args);
        assert_eq!((run.status, run.stdout.as_str()), (1, ""), "{args:?}");
        assert_eq!(run.stderr, format!("Error: {why}\n"), "{args:?}");
    }
}

#[test]
fn no_failure_is_told_twice() {
    for args in [
        &["plan", "--manifests=/nonexistent"][..],
        &["plan", "--kubeconfig=/nonexistent"],
        &["plan", "--config=/nonexistent"],
        &["status", "--socket=/nonexistent"],
        &[
            "--kubeconfig=/nonexistent",
            "--healthz-port=0",
            "--metrics-port=0",
        ],
        &["--write-config-to=/nonexistent/x"],
    ] {
        let run = ferry(args);
        assert_eq!(run.status, 1, "{args:?}: {}", run.stderr);
        for line in run.stderr.lines() {
            let times = line.to_lowercase().matches("no such file or directory").count();
            assert!(times <= 1, "{args:?}: {line}");
        }
    }
}

#[test]
fn arguments_are_refused_without_usage_unless_empty() {
    let run = ferry(&["extra", "more"]);
    assert_eq!(run.status, 1);
    assert_eq!(
        run.stderr,
        "Error: \"ferry\" does not take any arguments, got [\"extra\" \"more\"]\nRun 'ferry help' to see the commands.\n"
    );
    let tolerated = ferry(&["", "--write-config-to=/dev/null"]);
    assert_eq!(tolerated.status, 0, "{}", tolerated.stderr);
}

#[test]
fn versions() {
    assert_eq!(
        ferry(&["--version"]).stdout,
        format!("Kubernetes v1.36.4\nFerry {}\n", env!("CARGO_PKG_VERSION"))
    );
    let raw = ferry(&["--version=raw", "--config=/nonexistent"]);
    assert_eq!(
        (raw.status, raw.stderr.as_str()),
        (0, ""),
        "the version comes before everything else"
    );
    assert!(
        raw.stdout.starts_with("version.Info{Major:\"1\", Minor:\"36\", "),
        "{}",
        raw.stdout
    );
    assert!(raw.stdout.contains("GitVersion:\"v1.36.4\""));
    let other = ferry(&["--version=v1.36.4-custom.1+x", "--write-config-to=/dev/null"]);
    assert_eq!((other.status, other.stdout.as_str()), (0, ""), "{}", other.stderr);
    assert_eq!(ferry(&["--version=v1.37.0"]).status, 1);
}

#[test]
fn failures_before_the_run_are_logged_and_exit_1() {
    for (args, err) in [
        (
            &["--config=/nonexistent"][..],
            "failed complete: open /nonexistent: no such file or directory",
        ),
        (
            &["--hostname-override= "],
            "failed complete: empty hostname-override is invalid",
        ),
        (
            &["--feature-gates=Foo=true"],
            "failed complete: unrecognized feature gate: Foo",
        ),
        (
            &["--logging-format=xml"],
            "initialize logging: logging.format: Invalid value: \\\"xml\\\": Unsupported log format",
        ),
        (
            &["--oom-score-adj=2000"],
            "failed validate: KubeProxyConfiguration.KubeProxyLinuxConfiguration.OOMScoreAdj: Invalid value: 2000: must be within the range [-1000, 1000]",
        ),
    ] {
        let run = ferry(args);
        assert_eq!((run.status, run.stdout.as_str()), (1, ""), "{args:?}");
        assert_eq!(
            logged(&run.stderr, "command failed"),
            format!("\"command failed\" err=\"{err}\""),
            "{args:?}"
        );
        assert!(run.stderr.lines().any(|line| line.starts_with('E')), "{args:?}");
    }
}

#[test]
fn failures_are_logged_in_the_format_that_was_asked_for() {
    let run = ferry(&["--logging-format=json", "--oom-score-adj=2000"]);
    assert_eq!(run.status, 1);
    let last: serde_json::Value = serde_json::from_str(run.stderr.lines().last().unwrap()).unwrap();
    assert_eq!(last["msg"], "command failed");
    assert!(last["err"].as_str().unwrap().starts_with("failed validate: ") && last.get("v").is_none());
}

#[test]
fn flags_are_logged_at_verbosity_one() {
    let lines = |args: &[&str]| {
        let run = ferry(args);
        run.stderr
            .lines()
            .filter(|line| line.contains("] FLAG: --"))
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    assert!(lines(&["--write-config-to=/dev/null"]).is_empty());
    let shown = lines(&["--write-config-to=/dev/null", "-v1", "--cluster-cidr=10.0.0.0/8"]);
    assert_eq!(shown.len(), ferry_app::cli::flags::FLAGS.len());
    assert!(
        shown
            .iter()
            .any(|line| line.ends_with("] FLAG: --cluster-cidr=\"10.0.0.0/8\""))
    );
}

#[test]
fn configurations_are_written() {
    let dir = tempfile::tempdir().unwrap();
    let write = |args: &[&str]| {
        let path = dir.path().join("out.yaml");
        let to = format!("--write-config-to={}", path.display());
        let mut all = vec![to.as_str()];
        all.extend(args);
        let run = ferry(&all);
        assert_eq!((run.status, run.stdout.as_str()), (0, ""), "{}", run.stderr);
        assert!(
            logged(&run.stderr, "Wrote configuration").ends_with(&format!(" file=\"{}\"", path.display()))
        );
        std::fs::read_to_string(path).unwrap()
    };
    insta::assert_snapshot!("written_by_default", write(&[]));
    insta::assert_snapshot!(
        "written_from_flags",
        write(&[
            "--proxy-mode=nftables",
            "--masquerade-all",
            "--cluster-cidr=10.0.0.0/8,fd00::/8",
            "--healthz-bind-address=[::]:1",
            "--feature-gates=AllAlpha=true",
            "--vmodule=a=1",
            "--manifests=/m",
            "--ipvs-exclude-cidrs=10.0.0.0/8",
        ])
    );
    insta::assert_snapshot!(
        "written_from_kubeadm",
        write(&["--config=tests/data/kubeadm.conf", "--hostname-override=N1"])
    );
    let failed = ferry(&["--write-config-to=/nonexistent/x"]);
    assert_eq!(failed.status, 1);
    logged(&failed.stderr, "command failed");
    assert_eq!(
        failed.stderr.matches("/nonexistent/x").count(),
        1,
        "{}",
        failed.stderr
    );
}

#[test]
fn a_written_configuration_is_a_configuration() {
    let dir = tempfile::tempdir().unwrap();
    let (first, second) = (dir.path().join("1"), dir.path().join("2"));
    for mode in ["iptables", "ipvs", "nftables", "userspace"] {
        let mode_flag = format!("--proxy-mode={mode}");
        let to = |path: &std::path::Path| format!("--write-config-to={}", path.display());
        assert_eq!(ferry(&[&mode_flag, &to(&first), "--udp-timeout=3s"]).status, 0);
        let run = ferry(&[&format!("--config={}", first.display()), &to(&second)]);
        assert_eq!(run.status, 0);
        assert!(!run.stderr.contains("lenient"), "{}", run.stderr);
        let read = |path| std::fs::read_to_string(path).unwrap();
        assert_eq!(read(&first), read(&second), "{mode}");
    }
}

#[test]
fn lenient_decoding_and_void_flags_are_logged() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("c");
    std::fs::write(
        &path,
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nfoo: 1\n",
    )
    .unwrap();
    let run = ferry(&[
        &format!("--config={}", path.display()),
        "--write-config-to=/dev/null",
        "--proxy-mode=ipvs",
        "--healthz-port=1",
    ]);
    assert_eq!(run.status, 0, "{}", run.stderr);
    assert_eq!(
        logged(&run.stderr, "Using lenient decoding as strict decoding failed"),
        format!(
            "\"Using lenient decoding as strict decoding failed\" err=\"strict decoding error: unknown field \\\"foo\\\"\" file=\"{}\" lines=\"3\"",
            path.display()
        )
    );
    assert!(
        run.stderr
            .starts_with("Flag --healthz-port has been deprecated, ")
    );
    for flag in ["--proxy-mode", "--healthz-port"] {
        let warning = format!("] \"Flag has no effect because --config is given\" flag=\"{flag}\"");
        assert!(
            run.stderr
                .lines()
                .any(|line| line.starts_with('W') && line.ends_with(&warning)),
            "{}",
            run.stderr
        );
    }
}

#[test]
fn log_lines_have_klogs_header() {
    let run = ferry(&["--write-config-to=/dev/null"]);
    let line = run.stderr.lines().next().unwrap();
    let (header, message) = line.split_once("] ").unwrap();
    assert_eq!(message, "\"Using iptables proxy\"");
    let (stamp, place) = header.split_at(22);
    let shape: String = stamp
        .chars()
        .map(|c| if c.is_ascii_digit() { '9' } else { c })
        .collect();
    assert_eq!(shape, "I9999 99:99:99.999999 ");
    assert_eq!(&place[7..8], " ");
    assert!(
        place[..7].trim_start().bytes().all(|b| b.is_ascii_digit()),
        "{place}"
    );
    assert!(place[8..].starts_with("parse.rs:"), "{place}");
}

#[test]
fn streams_are_split_on_demand() {
    let args = [
        "--write-config-to=/dev/null",
        "--feature-gates=LoggingAlphaOptions=true",
        "--log-text-split-stream",
    ];
    let run = ferry(&args);
    assert_eq!((run.status, run.stderr.as_str()), (0, ""));
    assert!(run.stdout.contains("\"Wrote configuration\""));
}

#[test]
fn commands_check_what_they_are_given() {
    for (args, why) in [
        (&["trace"][..], "required flag(s) \"from\", \"to\" not set"),
        (&["trace", "--from=1.1.1.1"], "required flag(s) \"to\" not set"),
        (
            &["trace", "--from=x", "--to=1.1.1.1:1"],
            "invalid argument \"x\" for \"--from\" flag: must be an IP address",
        ),
        (
            &["trace", "--from=1.1.1.1", "--to=1.1.1.1:0"],
            "invalid argument \"1.1.1.1:0\" for \"--to\" flag: the port must be 1 to 65535",
        ),
        (
            &["trace", "--from=1.1.1.1", "--to=1.1.1.1:1/icmp"],
            "invalid argument \"1.1.1.1:1/icmp\" for \"--to\" flag: the protocol must be tcp, udp or sctp",
        ),
        (
            &["trace", "--from=1.1.1.1", "--to=[::1]:1"],
            "invalid argument \"[::1]:1\" for \"--to\" flag: must be of the same IP family as --from",
        ),
        (
            &["plan", "-o", "xml", "--manifests=/"],
            "invalid argument \"xml\" for \"-o, --output\" flag: must be text or json",
        ),
        (&["plan", "--nosuch"], "unknown flag: --nosuch"),
        (&["plan", "extra"], "unexpected argument \"extra\""),
        (
            &["plan", "--mode=ipvs"],
            "--mode needs one of --manifests, --kubeconfig, --master and --config; without them the running daemon is asked",
        ),
        (
            &["plan", "--manifests=/", "--mode=x"],
            "failed validate: KubeProxyConfiguration.Mode.ProxyMode: Invalid value: \"x\": must be iptables, ipvs, nftables, userspace or blank (blank means the best-available proxy [currently iptables])",
        ),
        (&["status", "--manifests=/"], "unknown flag: --manifests"),
        (&["completions"], "exactly one of bash, zsh and fish is needed"),
        (
            &["completions", "tcsh"],
            "no completions for \"tcsh\"; bash, zsh or fish",
        ),
    ] {
        let run = ferry(args);
        assert_eq!((run.status, run.stdout.as_str()), (1, ""), "{args:?}");
        assert!(
            run.stderr.ends_with(&format!("Error: {why}\n")),
            "{args:?}: {}",
            run.stderr
        );
    }
}

#[test]
fn completions_know_every_flag_and_command() {
    for shell in ["bash", "zsh", "fish"] {
        let run = ferry(&["completions", shell]);
        assert_eq!((run.status, run.stderr.as_str()), (0, ""), "{shell}");
        for flag in ferry_app::cli::flags::FLAGS
            .iter()
            .filter(|flag| flag.deprecated.is_none())
        {
            assert!(run.stdout.contains(flag.name), "{shell}: --{}", flag.name);
        }
        for word in [
            "plan",
            "trace",
            "status",
            "demo",
            "nftables",
            "InterfaceNamePrefix",
        ] {
            assert!(run.stdout.contains(word), "{shell}: {word}");
        }
    }
}

#[test]
fn bash_accepts_its_completions_and_completes_with_them() {
    let dir = tempfile::tempdir().unwrap();
    let script = dir.path().join("ferry.bash");
    std::fs::write(&script, ferry(&["completions", "bash"]).stdout).unwrap();
    let complete = |words: &str, at: usize| {
        let program = format!(
            "source {}; COMP_WORDS=({words}); COMP_CWORD={at}; _ferry ferry \"${{COMP_WORDS[$COMP_CWORD]}}\" \"${{COMP_WORDS[$COMP_CWORD-1]}}\"; echo \"${{COMPREPLY[*]}}\"",
            script.display()
        );
        let output = Command::new("bash")
            .args(["--norc", "-c", &program])
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    assert_eq!(complete("ferry --proxy-mo", 1), "--proxy-mode");
    assert_eq!(complete("ferry --proxy-mode nf", 2), "nftables");
    assert_eq!(complete("ferry tra", 1), "trace");
    assert_eq!(complete("ferry trace --fro", 2), "--from");
}
