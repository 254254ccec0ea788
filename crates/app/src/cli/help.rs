//! Help that a person can read: what it is, examples, then the flags by subject.

use super::flags::{COMMAND_FLAGS, FLAGS, Flag, Group, Typed};
use crate::gates::Gates;

const WIDTH: usize = 100;
/// Where the texts begin; flags with longer names have their text below them.
const COLUMN: usize = 38;
const COMMANDS: [(&str, &str); 6] = [
    (
        "plan",
        "print what would be done for every service; touches nothing",
    ),
    ("trace", "print what becomes of one packet, and why"),
    ("status", "ask the running daemon how it is doing"),
    ("demo", "see it work, in throw-away network namespaces"),
    ("completions", "print a completion script for bash, zsh or fish"),
    ("help", "show this text, or that of a command"),
];

/// The help of the daemon.
pub(super) fn daemon(program: &str) -> String {
    let mut out = String::from(
        "Ferry carries the traffic of Kubernetes Services on this node, in place of kube-proxy.\n\
         It follows the API server (or a directory of manifests) and programs the kernel by iptables,\n\
         ipvs or nftables, or relays connections itself.\n\n",
    );
    if program == "kube-proxy" {
        out.push_str("Usage:\n  kube-proxy [flags]\n");
    } else {
        out.push_str(
            "Usage:\n  ferry [flags]            run the proxy; kube-proxy's command line works unchanged\n  \
             ferry COMMAND [flags]\n\nCommands:\n",
        );
        for (name, what) in COMMANDS {
            out.push_str(&format!("  {name:<13}{what}\n"));
        }
    }
    out.push_str(&format!(
        "\nExamples:\n\
         \x20 # as a kubeadm cluster runs it\n\
         \x20 {program} --config=/var/lib/kube-proxy/config.conf --hostname-override=$(NODE_NAME)\n\n\
         \x20 # without a cluster: services from files\n\
         \x20 {program} --manifests ./services --proxy-mode nftables --hostname-override node-1\n\n\
         \x20 # what the flags amount to, as a configuration file\n\
         \x20 {program} --proxy-mode ipvs --write-config-to /dev/stdout\n"
    ));
    let defaults = Typed::default();
    for group in Group::ALL {
        let flags: Vec<&Flag> = FLAGS
            .iter()
            .filter(|flag| flag.group == group && flag.deprecated.is_none())
            .collect();
        out.push_str(&format!("\n{}:\n", group.title()));
        push_flags(&mut out, &flags, &defaults, true);
    }
    out.push_str("\nFlags with * count also beside --config; a value of the file is then overridden.\n");
    out
}

/// The feature gates that can be changed.
pub(super) fn gates() -> String {
    let mut out = "Feature gates of Kubernetes 1.36 that can be changed, with stage and default. These have an effect here:\n\
                   AllowServiceExternalIPs, ComponentFlagz, ComponentStatusz, LoggingAlphaOptions, LoggingBetaOptions,\n\
                   AllAlpha and AllBeta. The others are accepted.\n\n"
        .to_owned();
    for (name, stage, on) in Gates::changeable() {
        let default = if on { "on" } else { "off" };
        out.push_str(&format!("  {name:<56}{stage:<11}{default}\n"));
    }
    out
}

/// The help of a command; `None`: there is no such command.
pub(super) fn command(name: &str) -> Option<String> {
    let shared = "The other flags are the daemon's: put the command before the daemon's own command line to see\n\
                  what that daemon would decide. With none of --manifests, --kubeconfig, --master and --config\n\
                  the running daemon is asked. See 'ferry help'.\n";
    let (usage, about, tables, examples, rest): (_, _, Vec<&[Flag]>, _, _) = match name {
        "plan" => (
            "ferry plan [flags]",
            "Prints what is to become of the traffic of every service: addresses, endpoints, verdicts.\n\
             Touches nothing.",
            vec![
                COMMAND_FLAGS.output,
                COMMAND_FLAGS.mode,
                COMMAND_FLAGS.socket,
                COMMAND_FLAGS.help,
            ],
            "  ferry plan --manifests ./services --hostname-override node-1\n  \
             ferry plan --kubeconfig ~/.kube/config --mode nftables -o json\n",
            shared,
        ),
        "trace" => (
            "ferry trace --from IP --to IP:PORT[/PROTOCOL] [flags]",
            "Prints what becomes of one packet, with the reason for each step. Sends nothing.",
            vec![
                COMMAND_FLAGS.packet,
                COMMAND_FLAGS.output,
                COMMAND_FLAGS.mode,
                COMMAND_FLAGS.socket,
                COMMAND_FLAGS.help,
            ],
            "  ferry trace --from 10.244.1.5 --to 10.96.0.10:53/udp\n  \
             ferry trace --from 192.0.2.7 --to [fd00::1]:30080 --manifests ./services\n",
            shared,
        ),
        "status" => (
            "ferry status [flags]",
            "Asks the daemon of this node: mode, age of the last sync, counts, skipped objects and why,\n\
             the last error, and a row for each service.",
            vec![COMMAND_FLAGS.output, COMMAND_FLAGS.socket, COMMAND_FLAGS.help],
            "  ferry status\n  ferry status -o json | jq .mode\n",
            "",
        ),
        "demo" => (
            "ferry demo [flags]",
            "Makes network namespaces for a node, a client and three pods, runs the proxy among them, and\n\
             shows requests arriving while a service scales, breaks and heals. Needs root.",
            vec![COMMAND_FLAGS.mode, COMMAND_FLAGS.keep, COMMAND_FLAGS.help],
            "  sudo ferry demo\n  sudo ferry demo --mode iptables --keep\n",
            "",
        ),
        "completions" => (
            "ferry completions bash|zsh|fish",
            "Prints a completion script.",
            vec![COMMAND_FLAGS.help],
            "  ferry completions bash > /etc/bash_completion.d/ferry\n  \
             ferry completions zsh > \"${fpath[1]}/_ferry\"\n  \
             ferry completions fish > ~/.config/fish/completions/ferry.fish\n",
            "",
        ),
        _ => return None,
    };
    let mut out = format!("{about}\n\nUsage:\n  {usage}\n\nExamples:\n{examples}\nFlags:\n");
    let flags: Vec<&Flag> = tables.into_iter().flatten().collect();
    push_flags(&mut out, &flags, &Typed::default(), false);
    if !rest.is_empty() {
        out.push('\n');
        out.push_str(rest);
    }
    Some(out)
}

/// One line or more for each flag: name, kind of value, what it is for, default.
fn push_flags(out: &mut String, flags: &[&Flag], defaults: &Typed, mark: bool) {
    for flag in flags {
        let mut text = flag.help.to_owned();
        let default = flag.show(defaults);
        if !["", "false", "[]", "0", "0s"].contains(&default.as_str()) {
            text.push_str(&format!(" (default {default})"));
        }
        let mut head = head(flag, mark);
        if head.len() + 2 > COLUMN {
            out.push_str(&head);
            out.push('\n');
            head.clear();
        }
        for line in wrap(&text, WIDTH - COLUMN) {
            out.push_str(&format!("{head:<COLUMN$}{line}\n"));
            head.clear();
        }
    }
}

fn head(flag: &Flag, mark: bool) -> String {
    let star = if mark && flag.counts_with_config { "*" } else { " " };
    let short = flag
        .short
        .map_or("    ".to_owned(), |short| format!("-{short}, "));
    format!("{star} {short}--{} {}", flag.name, flag.placeholder())
        .trim_end()
        .to_owned()
}

fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}
