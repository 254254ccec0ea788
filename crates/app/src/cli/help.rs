//! Help that a person can read: what it is, examples, then the flags by subject.

use std::process::ExitCode;

use super::commands::{COMMANDS, Command, Takes};
use super::flags::{FLAGS, Flag, HELP, Typed};
use super::{Invocation, parse, print};
use crate::gates::Gates;

const WIDTH: usize = 100;
/// Where the texts begin; flags with longer names have their text below them.
const COLUMN: usize = 38;
/// Below the flags of a command that takes the daemon's.
const DAEMON_FLAGS: &str = "\nThe other flags are the daemon's: put the command before the daemon's own command line to see\n\
                            what that daemon would decide. See 'ferry help'.\n";
/// The same, for commands that can ask a running one.
const DAEMON_FLAGS_OR_ASKED: &str = "\nThe other flags are the daemon's: put the command before the daemon's own command line to see\n\
                                     what that daemon would decide. With none of --manifests, --kubeconfig, --master and --config\n\
                                     the running daemon is asked. See 'ferry help'.\n";

/// Whether flags that count beside `--config` are told from the others.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stars {
    Shown,
    Hidden,
}

/// `ferry help`
pub(super) fn run(invocation: Invocation) -> anyhow::Result<ExitCode> {
    let text = match invocation.arguments.first().map(String::as_str) {
        None | Some("help") => program("ferry"),
        Some("gates") => gates(),
        Some(name) => command(Command::named(name).ok_or_else(|| parse::no_such_command(name))?),
    };
    Ok(print(&text))
}

/// The help of the program.
pub(super) fn program(program: &str) -> String {
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
        for command in COMMANDS {
            out.push_str(&format!("  {:<13}{}\n", command.name, command.summary));
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
    let shown: Vec<&Flag> = FLAGS.iter().filter(|flag| flag.deprecated.is_none()).collect();
    for flags in shown.chunk_by(|a, b| a.group == b.group) {
        let group = flags.first().map_or("", |flag| flag.group);
        out.push_str(&format!("\n{group}:\n"));
        push_flags(&mut out, flags, Stars::Shown);
    }
    out.push_str("\nFlags with * count also beside --config; a value of the file is then overridden.\n");
    out
}

/// The feature gates that can be changed.
fn gates() -> String {
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

/// The help of a command.
pub(super) fn command(command: &Command) -> String {
    let examples: String = command
        .examples
        .iter()
        .map(|line| format!("  {line}\n"))
        .collect();
    let mut out = format!(
        "{}\n\nUsage:\n  ferry {} {}\n\nExamples:\n{examples}\nFlags:\n",
        command.about, command.name, command.usage
    );
    let flags: Vec<&Flag> = command.flags.iter().copied().flatten().chain(HELP).collect();
    push_flags(&mut out, &flags, Stars::Hidden);
    match command.takes {
        Takes::OwnFlags => {}
        Takes::DaemonFlags => {
            let mut own = command.flags.iter().copied().flatten();
            let can_ask = own.any(|flag| flag.name == "socket");
            out.push_str(if can_ask {
                DAEMON_FLAGS_OR_ASKED
            } else {
                DAEMON_FLAGS
            });
        }
    }
    out
}

/// One line or more for each flag: name, kind of value, what it is for, default.
fn push_flags(out: &mut String, flags: &[&Flag], stars: Stars) {
    let defaults = Typed::default();
    for flag in flags {
        let mut text = flag.help.to_owned();
        let default = flag.show(&defaults);
        if !["", "false", "[]", "0", "0s"].contains(&default.as_str()) {
            text.push_str(&format!(" (default {default})"));
        }
        let mut head = head(flag, stars);
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

fn head(flag: &Flag, stars: Stars) -> String {
    let star = if stars == Stars::Shown && flag.counts_with_config {
        "*"
    } else {
        " "
    };
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
