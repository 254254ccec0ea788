//! Completion scripts, generated from the tables of flags and commands. This is all that `clap` is used for.

use std::collections::BTreeSet;
use std::process::ExitCode;

use clap::{Arg, ArgAction, Command, ValueHint};
use clap_complete::{Shell, generate};

use super::commands::COMMANDS;
use super::flags::{FLAGS, Flag, Kind};
use super::{Invocation, Refused, print};
use crate::config::values::quote;

const SHELLS: [(&str, Shell); 3] = [("bash", Shell::Bash), ("zsh", Shell::Zsh), ("fish", Shell::Fish)];

/// `ferry completions`
pub(super) fn run(invocation: Invocation) -> anyhow::Result<ExitCode> {
    let [name] = invocation.arguments.as_slice() else {
        return Err(Refused("exactly one of bash, zsh and fish is needed".to_owned()).into());
    };
    let Some((_, shell)) = SHELLS.iter().find(|(known, _)| known == name) else {
        return Err(Refused(format!("no completions for {}; bash, zsh or fish", quote(name))).into());
    };
    let mut script = Vec::new();
    generate(*shell, &mut program(), "ferry", &mut script);
    Ok(print(&String::from_utf8(script)?))
}

/// The program as the generator wants to see it.
fn program() -> Command {
    let commands = COMMANDS.iter().map(|row| {
        let shown = command(row.name, row.summary, &row.tables());
        if row.name == "completions" {
            let shells = SHELLS.iter().map(|(name, _)| *name).collect::<Vec<_>>();
            return shown.arg(Arg::new("shell").value_parser(shells));
        }
        shown
    });
    command("ferry", "Carries the traffic of Kubernetes Services", &[FLAGS])
        .disable_help_subcommand(true)
        .subcommands(commands)
}

fn command(name: &'static str, about: &'static str, tables: &[&'static [Flag]]) -> Command {
    // A command's own flag goes before one of the daemon's that has its name.
    let mut seen = BTreeSet::new();
    let flags = tables
        .iter()
        .copied()
        .flatten()
        .filter(|flag| flag.deprecated.is_none() && seen.insert(flag.name));
    let flags: Vec<&Flag> = flags.collect();
    Command::new(name)
        .about(about)
        .disable_help_flag(true)
        .disable_version_flag(true)
        .args(flags.into_iter().map(arg))
}

fn arg(flag: &'static Flag) -> Arg {
    let mut arg = Arg::new(flag.name).long(flag.name).help(flag.help);
    if let Some(short) = flag.short {
        arg = arg.short(short);
    }
    if flag.implied().is_some() {
        return arg.action(ArgAction::SetTrue);
    }
    match &flag.kind {
        Kind::Word(_) => arg.value_parser(flag.words()),
        Kind::Path(_) => arg.value_hint(ValueHint::AnyPath),
        _ => arg,
    }
}
