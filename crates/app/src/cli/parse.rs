//! From arguments to the daemon or a command, through the configuration.

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use super::commands::{COMMANDS, Command};
use super::flags::{self, FLAGS, Typed, did_you_mean, nearest};
use super::{Action, Invocation, Refused, help, one_line, print, version};
use crate::config::values::quote;
use crate::config::written::Config;
use crate::config::{self, Completed, Level, Settings};
use crate::{daemon, logging};

/// Does what a command line asks for, the program's name first.
pub(super) fn run(args: impl IntoIterator<Item = OsString>) -> anyhow::Result<ExitCode> {
    let mut args = args.into_iter();
    let program = program_name(args.next());
    let words: Result<Vec<String>, OsString> = args.map(OsString::into_string).collect();
    let words = words.map_err(|arg| {
        Refused(format!(
            "argument {} is not UTF-8 text",
            quote(&arg.to_string_lossy())
        ))
    })?;
    // In kube-proxy's place there are no commands: its command line means what it means there.
    let command = words
        .first()
        .filter(|_| program != "kube-proxy")
        .and_then(|name| Command::named(name));
    let Some(command) = command else {
        return daemon(program, &words);
    };
    let invocation = Invocation::read(command, &words[1..])?;
    if invocation.typed.help {
        return Ok(print(&help::command(command)));
    }
    logging::init(&logging::Logging::default());
    (command.run)(invocation)
}

fn program_name(argv0: Option<OsString>) -> &'static str {
    let stem = argv0.as_deref().map(Path::new).and_then(Path::file_name);
    if stem.is_some_and(|stem| stem == "kube-proxy") {
        "kube-proxy"
    } else {
        "ferry"
    }
}

fn daemon(program: &'static str, args: &[String]) -> anyhow::Result<ExitCode> {
    let mut typed = Typed::default();
    let rest = flags::parse(&[FLAGS], args, &mut typed).map_err(|error| Refused(error.to_string()))?;
    for notice in &rest.notices {
        eprintln!("{notice}");
    }
    if typed.help {
        return Ok(print(&help::program(program)));
    }
    if rest.positional.iter().any(|arg| !arg.is_empty()) {
        return Err(unexpected(program, &rest.positional).into());
    }
    if let Some(text) = version::text(&typed.version, program) {
        return Ok(print(&text));
    }
    let typed = Arc::new(typed);
    let prepared = prepare(typed.clone(), Choices::Told);
    let outcome = prepared.and_then(|(settings, config)| {
        if typed.write_config_to.is_empty() {
            daemon::run(settings, action(&typed)).map_err(|error| one_line(&error))
        } else {
            write_config(&typed.write_config_to, &config)
        }
    });
    Ok(match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(err = error, "command failed");
            ExitCode::FAILURE
        }
    })
}

/// kube-proxy's message, or that there is no such command where one was meant.
fn unexpected(program: &str, args: &[String]) -> Refused {
    let shown: Vec<String> = args.iter().map(|arg| quote(arg)).collect();
    let mut text = format!(
        "\"{program}\" does not take any arguments, got [{}]",
        shown.join(" ")
    );
    if program != "kube-proxy" {
        let meant = args.first().map(|name| no_such_command(name));
        if let Some(meant) = meant.filter(|meant| meant.0.contains("did you mean")) {
            return meant;
        }
        text.push_str("\nRun 'ferry help' to see the commands.");
    }
    Refused(text)
}

pub(super) fn no_such_command(name: &str) -> Refused {
    let near = nearest(name, COMMANDS.iter().map(|command| command.name));
    let hint = did_you_mean(near.iter().map(|name| format!("'ferry {name}'")));
    Refused(format!("there is no command {}{hint}", quote(name)))
}

fn action(typed: &Typed) -> Action {
    if typed.cleanup {
        Action::Cleanup
    } else if typed.init_only {
        Action::InitOnly
    } else {
        Action::Run
    }
}

/// Whether to tell what was chosen where nothing was given: a command that only looks need not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Choices {
    Told,
    Silent,
}

/// Completes the configuration, starts logging as it says, and judges it. The configuration as written comes along.
pub(super) fn prepare(typed: Arc<Typed>, choices: Choices) -> Result<(Settings, Config), String> {
    logging::init(&logging::Logging::default());
    let text = |error: config::Error| error.to_string();
    let completed = config::complete(&typed).map_err(text)?;
    logging::init(&completed.logging().map_err(text)?);
    for (name, value) in flags::values(&typed) {
        tracing::info!(target: logging::PLAIN, v = 1, "FLAG: --{name}={}", quote(&value));
    }
    log_notes(&completed, choices);
    let written = completed.config.clone();
    let settings = completed.validate(typed).map_err(text)?;
    Ok((settings, written))
}

fn log_notes(completed: &Completed, choices: Choices) {
    for note in &completed.notes {
        let message = &note.message;
        let field = |key| {
            let mut fields = note.fields.iter();
            fields
                .find(|(name, _)| *name == key)
                .map(|(_, value)| value.as_str())
        };
        let (err, file, lines, flag) = (field("err"), field("file"), field("lines"), field("flag"));
        match note.level {
            Level::Choice if choices == Choices::Silent => {}
            Level::Choice | Level::Info => tracing::info!(err, file, lines, flag, "{message}"),
            Level::Warning => tracing::warn!(err, file, lines, flag, "{message}"),
        }
    }
}

fn write_config(path: &str, config: &Config) -> Result<(), String> {
    std::fs::write(path, config::to_yaml(config)).map_err(|error| format!("open {path}: {error}"))?;
    tracing::info!(file = path, "Wrote configuration");
    Ok(())
}
